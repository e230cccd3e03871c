"""The C++ kernels' library: compiled at first use, checked in a subprocess, loaded with ctypes.

Builds native.cpp with the user's own compiler into the cache folder. Knows nothing of what the
functions compute (native.py, execution/native.py).

OpenMP: the library is linked against the runtime that torch ships, where it ships one: then
/proc/self/maps shows a single libgomp with one pool of threads, and torch's operations and these
can alternate without two pools spinning against each other. On a Mac that is the only runtime there
is: Apple's compiler knows the pragmas, but brings neither a library nor omp.h.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import shlex
import shutil
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

SOURCES = tuple(
    Path(__file__).with_name(name)
    for name in (
        *("native.cpp", "native.h", "native_rows.h", "native_attention.h", "native_layer.h"),
        "native_choice.h",
    )
)
FLAGS = ("-O3", "-shared", "-fPIC", "-std=c++17", "-Wno-psabi")
WHAT_TO_DO = "install g++ or set CXX"
ON_A_MAC = "install Xcode's command line tools (`xcode-select --install`) or set CXX"
CHECK = f"{__package__}.native"  # its function `check` says whether a library computes right
TIMEOUT = 180.0  # seconds for the compiler and for the check, each
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

    Raises KernelUnavailable, saying why and what to do, without a compiler, on Windows, or when
    the library crashed or computed wrong numbers in its check.
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
    if sys.platform == "win32":
        raise _unavailable("they are not built on Windows", "use WSL or the torch kernels")
    compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    advice = ON_A_MAC if sys.platform == "darwin" else WHAT_TO_DO
    if shutil.which(compiler[0]) is None:
        raise _unavailable(f"there is no C++ compiler {compiler[0]!r}", advice)
    library = _openmp_of_torch(Path(torch.__file__).parent)
    before, after = machine_flags(sys.platform, platform.machine(), library)
    command = [*compiler, *FLAGS, *before, str(sources[0]), *after]
    path = folder / f"{sources[0].stem}-{_key(compiler, command, sources)}.so"
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / path.name
        code, _, said = _run([*command, "-o", str(made)])
        if code:
            raise _unavailable(f"{compiler[0]} failed ({said})", advice)
        made.replace(path)  # atomic: two processes may both come here
    return path


def _run(command: list[str]) -> tuple[int, str, str]:
    """Exit status, output, and the first error line."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise _unavailable(f"{command[0]} took over {TIMEOUT:.0f} s", "try again later") from error
    said = [line for line in done.stderr.splitlines() if "rror" in line and line[0] != " "]
    return done.returncode, done.stdout, said[0] if said else "no message"


def machine_flags(system: str, machine: str, openmp: Path | None) -> tuple[list[str], list[str]]:
    """Compiler arguments before and after the source: the processor, and OpenMP.

    `system` and `machine` as sys.platform and platform.machine() name them; `openmp` is the runtime
    that torch brings, if it brings one.
    """
    if system == "darwin":  # arm64 means an M1 there, which is what Apple's compiler assumes
        processor = [] if machine == "arm64" else ["-march=native"]
        linked = [str(openmp), f"-Wl,-rpath,{openmp.parent}"] if openmp else ["-lomp"]
        return [*processor, "-Xclang", "-fopenmp"], linked
    processor = ["-mcpu=native" if machine in ("aarch64", "arm64") else "-march=native"]
    return [*processor, "-fopenmp"], ["-Wl,--as-needed", str(openmp)] if openmp else []


def _openmp_of_torch(package: Path) -> Path | None:
    """The OpenMP runtime in torch's wheel: libgomp, or libomp on a Mac."""
    inside = (*package.glob("lib/libgomp*"), *package.glob("lib/libomp.dylib"))
    found = sorted((*inside, *package.parent.glob("torch.libs/libgomp*")))
    return found[0] if found else None


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
        crash = f"crashed in its check (signal {-status})"
        fault = crash if status < 0 else f"failed its check ({said})" if status else ""
        part = record.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps({"fault": fault}), encoding="utf-8")
        part.replace(record)
    if fault:
        raise _unavailable(f"{path} {fault}", "update g++, or delete that folder to try again")
