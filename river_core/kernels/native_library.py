"""The C++ kernels' library: compiled at first use, checked in a subprocess, loaded with ctypes.

Builds native.cpp with the user's own compiler into the cache folder. Knows nothing of what the
functions compute (native.py, execution/native.py).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ..cache_paths import cache_root
from ..errors import KernelUnavailable
from .native_compiler import FLAGS, ZIG, advice, find_compiler, machine_flags, openmp_of_torch

SOURCES = tuple(
    Path(__file__).with_name(name)
    for name in (
        *("native.cpp", "native.h", "native_rows.h", "native_attention.h", "native_layer.h"),
        *("native_choice.h", "native_threads.h"),
    )
)
CHECK = f"{__package__}.native"  # its function `check` says whether a library computes right
TIMEOUT = 180.0  # seconds for the compiler and for the check, each
FIRST_TIME = 900.0  # the same for zig, which builds its C++ library before the first program
CTYPES = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "i": ctypes.c_int, "d": ctypes.c_double}


@dataclass(frozen=True)
class NativeLibrary:
    """The loaded library; `path` is the file that it came from."""

    path: Path
    handle: ctypes.CDLL

    def function(self, name: str, result: Any, arguments: str, hold: bool) -> Callable[..., Any]:
        """An exported function; arguments p (pointer), n (int64), i (int) or d (double).

        With `hold` it keeps the GIL, as a call of a few milliseconds should: a thread that gives
        it away may wait for 5 ms to get it back when another one computes in Python.
        """
        kind = ctypes.PYFUNCTYPE if hold else ctypes.CFUNCTYPE
        return kind(result, *(CTYPES[a] for a in arguments))((name, self.handle))


@lru_cache(maxsize=8)
def load_library(cache_dir: Path | None = None) -> NativeLibrary:
    """The library from `cache_dir` (default cache_root() / "native"), built there first if missing.

    Raises KernelUnavailable, saying why and what to do, without a compiler, or when the library
    crashed or computed wrong numbers in its check.
    """
    folder = cache_root() / "native" if cache_dir is None else cache_dir
    try:
        path = _build(folder)
        _require_checked(path)
    except OSError as error:
        raise _unavailable(f"{folder} cannot be used ({error})", "set RIVER_CACHE") from error
    return open_library(path)


def _unavailable(why: str, what_to_do: str) -> KernelUnavailable:
    return KernelUnavailable(f"The native CPU kernels cannot be used: {why}; {what_to_do}.")


def open_library(path: Path) -> NativeLibrary:
    """The library at `path`, unchecked; KernelUnavailable where it does not load."""
    try:
        return NativeLibrary(path, ctypes.CDLL(str(path)))
    except OSError as error:
        raise _unavailable(f"{path} does not load ({error})", "delete that file") from error


def load_source(source: Path) -> NativeLibrary:
    """A library of one small file, built in the same folder; it is loaded without a check.

    Raises KernelUnavailable as `load_library` does.
    """
    folder = cache_root() / "native"
    try:
        return open_library(_build(folder, (source,)))
    except OSError as error:
        raise _unavailable(f"{folder} cannot be used ({error})", "set RIVER_CACHE") from error


def _build(folder: Path, sources: tuple[Path, ...] = SOURCES) -> Path:
    """Compile into `folder` unless a library of the same key is there; return its path."""
    compiler, found = find_compiler()
    if not found:
        raise _unavailable(f"there is no C++ compiler {compiler[0]!r}", advice())
    library = openmp_of_torch(Path(torch.__file__).parent)
    before, after = machine_flags(sys.platform, platform.machine(), library, compiler)
    command = [*compiler, *FLAGS, *before, str(sources[0]), *after]
    ending = ".dll" if sys.platform == "win32" else ".so"
    path = folder / f"{sources[0].stem}-{_key(compiler, command, sources)}{ending}"
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / path.name
        limit = FIRST_TIME if ZIG in compiler else TIMEOUT
        code, _, said = _run([*command, "-o", str(made)], limit)
        if code:
            name = ZIG if ZIG in compiler else compiler[0]
            raise _unavailable(f"{name} failed ({said})", advice())
        made.replace(path)  # atomic: two processes may both come here
    return path


def _run(command: list[str], limit: float = TIMEOUT) -> tuple[int, str, str]:
    """Exit status, output, and the first error line."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=limit
        )
    except subprocess.TimeoutExpired as error:
        raise _unavailable(f"{command[0]} took over {limit:.0f} s", "try again later") from error
    said = [line for line in done.stderr.splitlines() if "rror" in line and line[0] != " "]
    return done.returncode, done.stdout, said[0] if said else "no message"


def _key(compiler: list[str], command: list[str], sources: tuple[Path, ...]) -> str:
    """What decides the machine code: sources, command, compiler version, processor."""
    version = _run([*compiler, "--version"])[1].partition("\n")[0]
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    wanted = ("model name", "flags", "Features", "CPU part")
    processor = sorted({line for line in text.splitlines() if line.startswith(wanted)})
    parts = [*(s.read_text(encoding="utf-8") for s in sources), *command, version, *processor]
    parts += [platform.machine(), platform.processor()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _require_checked(path: Path) -> None:
    """Raise KernelUnavailable unless `check` passed in a fresh Python; the outcome is kept."""
    record = path.with_suffix(".json")
    try:
        fault = json.loads(record.read_text(encoding="utf-8"))["fault"]
    except (OSError, ValueError, KeyError, TypeError):
        code = f"import sys; sys.path.insert(0, sys.argv[1]); from {CHECK} import check; "
        root = str(Path(__file__).parents[2])
        status, _, said = _run([sys.executable, "-c", code + "check(sys.argv[2])", root, str(path)])
        crashed = status < 0 or status > 255  # a signal; on Windows the number of an exception
        crash = f"crashed in its check (signal {-status})"
        fault = crash if crashed else f"failed its check ({said})" if status else ""
        part = record.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps({"fault": fault}), encoding="utf-8")
        part.replace(record)
    if fault:
        raise _unavailable(f"{path} {fault}", "update g++, or delete that folder to try again")
