"""Which C++ compiler builds the kernels, and its arguments for this machine.

OpenMP: the library is linked against the runtime that torch ships, where it ships one: then
/proc/self/maps shows a single libgomp with one pool of threads, and torch's operations and these
can alternate without two pools spinning against each other. On a Mac that is the only runtime there
is: Apple's compiler knows the pragmas, but brings neither a library nor omp.h. On Windows and by
zig, which bring none, the kernels use threads of their own (native_threads.h).
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

FLAGS = ("-O3", "-shared", "-std=c++17", "-Wno-psabi")
ZIG = "ziglang"  # the package of PyPI that brings a compiler along
ADVICE = {
    "darwin": "install Xcode's command line tools (`xcode-select --install`) or set CXX",
    "win32": "install MinGW's g++, or `pip install ziglang`, or set CXX",
}
ADVICE_ELSEWHERE = "install g++, or `pip install ziglang`, or set CXX"


def advice() -> str:
    """What to do for a compiler on this system."""
    return ADVICE.get(sys.platform, ADVICE_ELSEWHERE)


def find_compiler() -> tuple[list[str], bool]:
    """$CXX, else g++, else the zig that pip installs; and whether it can be started."""
    windows = sys.platform == "win32"
    named = shlex.split(os.environ.get("CXX", ""), posix=not windows)  # C:\... is no escape
    command = [part.strip('"') for part in named] or ["g++"]
    if shutil.which(command[0]) is not None:
        return command, True
    if not named and importlib.util.find_spec(ZIG) is not None:
        return [sys.executable, "-m", ZIG, "c++"], True
    return command, False


def machine_flags(
    system: str, machine: str, openmp: Path | None, compiler: Sequence[str] = ("g++",)
) -> tuple[list[str], list[str]]:
    """Compiler arguments before and after the source: the processor, and threads.

    `system` and `machine` as sys.platform and platform.machine() name them; `openmp` is the runtime
    that torch brings, if it brings one.
    """
    zig = ZIG in compiler
    arm = machine.lower() in ("aarch64", "arm64")
    processor = ["-mcpu=native" if arm else "-march=native"]
    if system == "win32":
        # GCC keeps vectors on a stack that Windows aligns to 16 bytes only (GCC's bug 54412)
        clang = zig or "clang" in Path(compiler[0]).name
        return [*processor, *([] if clang else ["-Wa,-muse-unaligned-vector-move"])], ["-static"]
    if zig:
        return [*processor, "-fPIC"], []
    if system == "darwin":
        if arm:  # an M1 or later is what Apple's compiler assumes; old ones know no "native" there
            processor = []
        if openmp is None:
            return [*processor, "-fPIC"], []
        linked = [str(openmp), f"-Wl,-rpath,{openmp.parent}"]
        return [*processor, "-fPIC", "-Xclang", "-fopenmp"], linked
    return [*processor, "-fPIC", "-fopenmp"], ["-Wl,--as-needed", str(openmp)] if openmp else []


def openmp_of_torch(package: Path) -> Path | None:
    """The OpenMP runtime in torch's wheel: libgomp, or libomp on a Mac."""
    inside = (*package.glob("lib/libgomp*"), *package.glob("lib/libomp.dylib"))
    found = sorted((*inside, *package.parent.glob("torch.libs/libgomp*")))
    return found[0] if found else None
