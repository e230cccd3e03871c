"""The process that generated code runs in: limits first, then the code. Started by sandbox.py.

Standard library only, run by `python -I -S -B`, the order as JSON on standard input. The kernel's
limits are what holds; the audit hook refuses what they leave open, but code that means harm may
get around a hook, so this is no place for an attacker's code.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import stat
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

NOBODY = 65534
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # linux/sched.h
NO_NEW_PRIVILEGES = 38  # linux/prctl.h
LANDLOCK_CREATE, LANDLOCK_RESTRICT = 444, 446  # linux/landlock.h; syscall numbers of every machine
LANDLOCK_WRITES = 0b1_1111_1111_0010  # ABI 1: all but execute, read file, read folder
LANDLOCK_LATER = {2: 1 << 13, 3: 1 << 14}  # from that ABI on: move between folders, truncate
REFUSED = ("os.", "socket.", "subprocess.", "ctypes.", "shutil.", "pty.", "signal.", "syslog.")
HARMLESS = ("os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.getxattr", "os.listxattr")
NATIVE = frozenset({"ctypes", "_ctypes", "_posixsubprocess", "_socket", "socket", "subprocess"})
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main() -> None:
    """Read the order, shut everything, run the code; the token on standard output means passed."""
    order = json.load(sys.stdin)
    network = _shut(order)
    print(f"{order['token']} {network}", flush=True)
    code, token = order["code"], order["token"]
    del order
    for name in NATIVE & set(sys.modules):
        del sys.modules[name]
    sys.addaudithook(_guard(os.path.realpath(os.getcwd())))
    exec(compile(code, "<answer>", "exec"), {"__name__": "answer"})
    print(f"\n{token} passed", flush=True)
    os._exit(0)


def _shut(order: Mapping[str, Any]) -> str:
    """Give up rights, network and means; how the network is off: "namespace" or "audit hook"."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(os, "geteuid") and os.geteuid() == 0 and _readable_by_all():
        os.chown(".", NOBODY, NOBODY)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    network = "audit hook"
    if sys.platform == "linux":
        if libc.unshare(NEW_USER | NEW_NETWORK) == 0 or libc.unshare(NEW_NETWORK) == 0:
            network = "namespace"
        _no_writes(libc)
    for name, value in order["limits"].items():
        _limit(name, value)
    return network


def _limit(name: str, value: int) -> None:
    """Set a hard limit, never above the one in force."""
    which = getattr(resource, name, None)
    if which is None:
        return
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    grace = 1 if name == "RLIMIT_CPU" and hard != value else 0  # SIGXCPU first, then SIGKILL
    try:
        resource.setrlimit(which, (value, value + grace))
    except (ValueError, OSError):
        print(f"{name} cannot be limited here", file=sys.stderr)


def _readable_by_all() -> bool:
    """Whether another user could still import the standard library."""
    path = os.path.realpath(os.__file__)
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        if not os.stat(path).st_mode & stat.S_IXOTH:
            return False
    return True


def _no_writes(libc: Any) -> None:
    """Landlock, where the kernel has it: no file anywhere is written, made or removed."""
    abi = libc.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    later = sum(right for since, right in LANDLOCK_LATER.items() if abi >= since)
    rules = struct.pack("=Q", LANDLOCK_WRITES | later)
    found = libc.syscall(LANDLOCK_CREATE, rules, ctypes.c_size_t(len(rules)), ctypes.c_uint32(0))
    if found >= 0 and libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0:
        libc.syscall(LANDLOCK_RESTRICT, ctypes.c_int(found), ctypes.c_uint32(0))
        os.close(found)


def _guard(here: str) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook: files of the standard library may be read, nothing else may be touched."""
    library = {os.path.realpath(os.path.dirname(os.__file__)), here}
    library |= {os.path.realpath(path) for path in sys.path if path}
    realpath, fsdecode, join, separator = os.path.realpath, os.fsdecode, os.path.join, os.sep

    def inside(path: Any) -> bool:
        found = realpath(join(here, fsdecode(path)))
        return any(found == top or found.startswith(top + separator) for top in library)

    def guard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            if isinstance(path, int):
                return
            wants_write = any(c in (mode or "r") for c in "wax+") or (flags or 0) & WRITES
            if wants_write or not inside(path):
                raise PermissionError("generated code may not open this file")
        elif event == "import":
            if arguments[0].partition(".")[0] in NATIVE:
                raise ImportError(f"generated code may not import {arguments[0]}")
        elif event.startswith(REFUSED) and event not in HARMLESS:
            raise PermissionError(f"generated code may not call {event}")

    return guard


if __name__ == "__main__":
    main()
