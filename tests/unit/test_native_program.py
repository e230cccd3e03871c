"""The C++ kernels by other compilers and for another processor: the same numbers.

native_program.cpp is the kernels as a program. Arm's runs in an emulator: what a laptop with such a
processor compiles has run somewhere. Apple's compiler is a clang.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from river_core.kernels.native_compiler import FLAGS, machine_flags

PROGRAM = Path(__file__).with_name("native_program.cpp")
OPTIONS = ["-O1", *(flag for flag in FLAGS if flag not in ("-shared", "-O3"))]  # compiles sooner
EMULATOR = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
MINGW = "x86_64-w64-mingw32-g++-posix"
WINE = shutil.which("wine64") or shutil.which("wine64", path="/usr/lib/wine")
CLANG_OPENMP = sorted(Path("/usr/lib").glob("llvm-*/lib/libomp.so"))


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def built(folder: Path, *command: str) -> Path:
    subprocess.run([*command, "-o", str(folder / "program")], check=True, timeout=120)
    return folder / "program"


def results(program: Path, *emulator: str, threads: int = 2) -> Tensor:
    command = [*emulator, str(program), str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, timeout=120)
    return torch.frombuffer(bytearray(done.stdout), dtype=torch.float32)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    """What the compiler of this machine makes of it; test_native_kernels.py holds that to torch."""
    folder = tmp_path_factory.mktemp("here")
    return results(built(folder, "g++", *OPTIONS, "-march=native", "-fopenmp", str(PROGRAM)))


def require_same(found: Tensor, expected: Tensor) -> None:
    """Equal but for what a fused multiply-add changes, and a cache entry then rounded elsewhere."""
    assert found.shape == expected.shape and bool(expected.isfinite().all())
    for one, other in zip(found.split(128), expected.split(128), strict=True):
        assert float((one - other).norm()) < 1e-3 * float(other.norm())


@needs("g++", "aarch64-linux-gnu-g++", "qemu-aarch64")
def test_arm(expected: Tensor, tmp_path: Path) -> None:
    """With NEON, for any number of threads. -mcpu=native is what cross compilers lack."""
    before, after = machine_flags("linux", "aarch64", None)
    assert before == ["-mcpu=native", "-fPIC", "-fopenmp"] and after == []
    before[0] = "-mcpu=neoverse-n1"
    program = built(tmp_path, "aarch64-linux-gnu-g++", *OPTIONS, *before, str(PROGRAM))
    found = results(program, *EMULATOR)
    require_same(found, expected)
    assert torch.equal(found, results(program, *EMULATOR, threads=3))


@needs("g++", "clang++", "aarch64-linux-gnu-g++", "qemu-aarch64")
def test_arm_by_clang(expected: Tensor, tmp_path: Path) -> None:
    """As for a Mac's processor, and without OpenMP: there is no Arm libomp here."""
    machine = ["--target=aarch64-linux-gnu", "-mcpu=neoverse-n1", "-pthread"]
    program = built(tmp_path, "clang++", *OPTIONS, *machine, str(PROGRAM))
    require_same(results(program, *EMULATOR), expected)


@needs("g++")
def test_threads_of_our_own(expected: Tensor, tmp_path: Path) -> None:
    """Without OpenMP, the same to the last bit, on any number of threads, slept in between."""
    program = built(tmp_path, "g++", *OPTIONS, "-march=native", "-pthread", str(PROGRAM))
    for threads in (1, 2, 5):
        assert torch.equal(results(program, threads=threads), expected)
    before = results(program, "taskset", "1", threads=3)  # two of them always wait for the others
    assert torch.equal(before, expected)


@needs("g++", MINGW)
def test_as_on_windows(expected: Tensor, tmp_path: Path) -> None:
    """Compiled wherever MinGW is; run where Wine is."""
    before, after = machine_flags("win32", "AMD64", None)
    assert "-fopenmp" not in before and "-fPIC" not in before
    program = built(tmp_path, MINGW, *OPTIONS, *before, str(PROGRAM), *after)
    windows = program.with_suffix(".exe")
    if WINE is None:
        assert windows.stat().st_size > 100_000
        return
    home = {"WINEPREFIX": str(tmp_path / "wine"), "WINEDEBUG": "-all"}
    require_same(results(windows, "env", *(f"{k}={v}" for k, v in home.items()), WINE), expected)


@needs("g++", "clang++")
@pytest.mark.skipif(not CLANG_OPENMP, reason="not installed: clang's libomp")
def test_as_on_a_mac(expected: Tensor, tmp_path: Path) -> None:
    """Apple's compiler is a clang without omp.h, which takes the runtime that torch brings."""
    before, after = machine_flags("darwin", "x86_64", CLANG_OPENMP[0])
    program = built(tmp_path, "clang++", *OPTIONS, *before, str(PROGRAM), *after)
    require_same(results(program), expected)


def test_flags_of_a_mac(tmp_path: Path) -> None:
    """An M1 or later needs no name of its processor; old versions of that compiler refuse it."""
    before, after = machine_flags("darwin", "arm64", tmp_path / "libomp.dylib")
    assert before == ["-fPIC", "-Xclang", "-fopenmp"]
    assert after == [str(tmp_path / "libomp.dylib"), f"-Wl,-rpath,{tmp_path}"]
    assert machine_flags("darwin", "arm64", None) == (["-fPIC"], [])


def test_flags_for_zig_and_on_windows() -> None:
    zig = ["python", "-m", "ziglang", "c++"]
    assert machine_flags("linux", "x86_64", Path("libgomp.so"), zig) == (
        ["-march=native", "-fPIC"],
        [],
    )
    assert machine_flags("win32", "ARM64", None, zig) == (["-mcpu=native"], ["-static"])
    assert "-Wa,-muse-unaligned-vector-move" in machine_flags("win32", "AMD64", None)[0]
    for clang in (zig, ["clang++"]):
        assert machine_flags("win32", "AMD64", None, clang)[0] == ["-march=native"]
