"""Generated code in a process of its own: limited in time, memory, files; without network.

Parent's side; what the process does to itself is sandbox_child.py's. Off unless a caller asks for
it. It keeps mistakes in, not attackers: for those use a container or a virtual machine as well.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .errors import SettingsError

CHILD = Path(__file__).with_name("sandbox_child.py")


@dataclass(frozen=True)
class Limits:
    """What the process may use: seconds of wall clock and processor, bytes, counts."""

    wall_seconds: float = 10.0
    cpu_seconds: int = 5
    memory_bytes: int = 2**29
    file_bytes: int = 2**16
    open_files: int = 32
    output_bytes: int = 2**16

    def kernel(self) -> dict[str, int]:
        """As `resource` names them."""
        return {
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_NPROC": 0,
            "RLIMIT_CORE": 0,
        }


@dataclass(frozen=True)
class Outcome:
    """Whether the code ran to its end; else why not, as "time limit" or its last words.

    `network` says how that was off: "namespace" (the kernel's) or "audit hook" (Python's).
    """

    passed: bool
    reason: str
    network: str
    seconds: float


def run_code(code: str, limits: Limits | None = None) -> Outcome:
    """Run Python source to its end, in an empty folder and environment, and kill what is left.

    Raises SettingsError where the system has no resource limits (Windows).
    """
    if os.name != "posix" or importlib.util.find_spec("resource") is None:
        raise SettingsError(
            "generated code is run only under resource limits, which this system lacks; use Linux "
            "or macOS, or leave --allow-code out."
        )
    limits, token, begun = limits or Limits(), secrets.token_hex(16), time.monotonic()
    order = {"code": code, "token": token, "limits": limits.kernel()}
    with tempfile.TemporaryDirectory(prefix="river-code-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin as out:
                out.write(json.dumps(order, ensure_ascii=True).encode())
            output, broken = _read(process.stdout, begun + limits.wall_seconds, limits.output_bytes)
            if not broken:
                broken = _wait(process, begun + limits.wall_seconds)
        finally:
            _kill(process)
    return _outcome(process.returncode, output, token, broken, time.monotonic() - begun)


def network_off() -> str:
    """How this system keeps generated code off the network: "namespace" or "audit hook"."""
    return run_code("").network


def _read(pipe: IO[bytes], deadline: float, most: int) -> tuple[str, str]:
    """What the process writes until it ends, and the limit that it broke, or ""."""
    found, broken = bytearray(), ""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while not broken:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                broken = "time limit"
                break
            piece = os.read(pipe.fileno(), 65536)
            if not piece:
                break
            found += piece
            if len(found) > most:
                broken = "output limit"
    return found[: most + 1024].decode("utf-8", "replace"), broken


def _wait(process: subprocess.Popen[bytes], deadline: float) -> str:
    """Wait for a process that closed its output; the limit that it broke, or ""."""
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return "time limit"
    return ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and its whole group, whatever signals they ignore."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.poll() is None:
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _outcome(status: int, output: str, token: str, broken: str, seconds: float) -> Outcome:
    """Read what the process said; only the token at its end means that the code passed."""
    lines = [line for line in output.splitlines() if line.strip()]
    started = [line for line in lines if line.startswith(f"{token} ")]
    network = started[0].split(" ", 1)[1] if started else "not reached"
    passed = not broken and status == 0 and lines[-1:] == [f"{token} passed"]
    if passed:
        return Outcome(True, "", network, seconds)
    said = [line for line in lines if not line.startswith(token)]
    if not broken and status in (-signal.SIGXCPU, -signal.SIGKILL):
        broken = "CPU limit"
    reason = broken or (said[-1][-200:] if said else f"it ended with status {status}")
    return Outcome(False, reason, network, seconds)
