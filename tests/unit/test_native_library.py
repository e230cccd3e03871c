"""The compiled library: what happens without a compiler, with a bad one, and without intrinsics."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from river_core.errors import KernelUnavailable
from river_core.kernels.native_compiler import find_compiler
from river_core.kernels.native_library import NativeLibrary, load_library
from tests.unit.test_native_kernels import (  # noqa: F401 (fixtures)
    CODED_KINDS,
    _one_thread,
    library,
    pytestmark,
)
from tests.unit.test_native_kernels import (
    test_fused_layer as fused_layer_equals_torch,
)
from tests.unit.test_native_options import (
    test_each_option as option_equals_torch,
)


def attempt(monkeypatch: pytest.MonkeyPatch, where: Path, script: str) -> str:
    compiler = where / "compiler"
    answer = '[ "$1" = --version ] && exit'
    compiler.write_text(f"#!/bin/sh\n{answer}\n{script}\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(KernelUnavailable) as caught:
        load_library(where)
    return str(caught.value)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "bad day" in attempt(monkeypatch, tmp_path, "echo 'error: bad day' >&2; exit 1")
    assert not list(tmp_path.glob("*.so"))
    monkeypatch.setenv("CXX", "/nonexistent")
    with pytest.raises(KernelUnavailable, match="'/nonexistent'; install g"):
        load_library(tmp_path)


def test_which_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """$CXX, else g++, else the one that pip installs; on Windows a path keeps its backslashes."""
    monkeypatch.delenv("CXX", raising=False)
    assert find_compiler() == (["g++"], True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler() == (["g++"], False)
    (tmp_path / "ziglang").mkdir()
    (tmp_path / "ziglang" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_compiler() == ([sys.executable, "-m", "ziglang", "c++"], True)
    monkeypatch.setenv("CXX", "mine -m32")
    assert find_compiler() == (["mine", "-m32"], False), "what was asked for is not replaced"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("CXX", '"C:\\Program Files\\g++.exe" -m64')
    assert find_compiler()[0] == ["C:\\Program Files\\g++.exe", "-m64"]


def test_a_library_that_crashes_or_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its check runs elsewhere, once: the outcome is kept, and this process goes on."""
    for body, expected in (
        ("__attribute__((constructor)) static void f() { __builtin_trap(); }", "signal"),
        ('extern "C" void river_linear() {} extern "C" void river_dequantise() {}', "is off by"),
    ):
        folder = tmp_path / expected.replace(" ", "-")
        folder.mkdir()
        (folder / "x.cpp").write_text(body, encoding="utf-8")
        compiler = f'for out; do :; done; g++ -shared -fPIC {folder}/x.cpp -o "$out"'
        assert expected in attempt(monkeypatch, folder, compiler)
        monkeypatch.setattr(sys, "executable", "/nonexistent")  # a second check would fail
        assert expected in attempt(monkeypatch, folder, compiler)
        monkeypatch.undo()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the intrinsics are those of x86")
def test_portable_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same sources without the intrinsics, as on a processor that lacks them."""
    monkeypatch.setenv("CXX", "g++ -mno-avx2 -mno-f16c")
    portable = load_library(tmp_path)
    for kind in ("fp16", "bf16", *CODED_KINDS):
        fused_layer_equals_torch(portable, kind, 4, 64)
    for option in ("as Gemma 3", "as OLMo 2", "biases and norms"):
        option_equals_torch(portable, "bf16", option)


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc/self/maps here")
def test_one_openmp_runtime(library: NativeLibrary) -> None:  # noqa: F811
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    assert len({line.split()[-1] for line in lines if "gomp" in line or "iomp" in line}) == 1
