"""Kernels in C++ for the CPU: compiled at first use, checked in a subprocess, loaded with ctypes.

Builds native.cpp with the user's own compiler into the cache folder and wraps its products as
linears. Knows nothing of layers (execution/native.py does) or of who chooses a kernel.

OpenMP: the library is linked against the runtime that torch ships, where it ships one: then
/proc/self/maps shows a single libgomp with one pool of threads, and torch's operations and these
can alternate without two pools spinning against each other.
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
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..cache_paths import cache_root
from ..errors import KernelUnavailable
from .base import QuantMatrix

SOURCES = tuple(Path(__file__).with_name(name) for name in ("native.cpp", "native.h"))
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=c++17", "-Wno-psabi")
FEW_ROWS = 4  # more rows than this go through torch's matrix product in fp32
SCRATCH = 1 << 20  # fp32 numbers converted at a time for that product
HOLD_BYTES = 64 << 20  # calls that read more release the GIL
TIMEOUT = 180.0  # seconds for the compiler and for the check, each
TYPES = (torch.float16, torch.bfloat16, torch.float32)  # as `Kind` of native.h counts; int4 is 3
CTYPES = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "i": ctypes.c_int, "d": ctypes.c_double}


class CMatrix(ctypes.Structure):
    """`Matrix` of native.h. The tensors that the pointers lead into must be kept by its owner."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "group", "rows", "cols")),
        *((name, ctypes.c_void_p) for name in ("weight", "meta")),
    )


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
    return _open(path)


def _unavailable(why: str, what_to_do: str) -> KernelUnavailable:
    return KernelUnavailable(f"The native CPU kernels cannot be used: {why}; {what_to_do}.")


def _open(path: Path) -> NativeLibrary:
    try:
        return NativeLibrary(path, ctypes.CDLL(str(path)))
    except OSError as error:
        raise _unavailable(f"{path} does not load ({error})", "delete that file") from error


def _build(folder: Path) -> Path:
    """Compile into `folder` unless a library of the same key is there; return its path."""
    if sys.platform == "win32":
        raise _unavailable("they are not built on Windows", "use WSL or the torch kernels")
    compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    if shutil.which(compiler[0]) is None:
        raise _unavailable(f"there is no C++ compiler {compiler[0]!r}", "install g++ or set CXX")
    command = [*compiler, *FLAGS, str(SOURCES[0]), *_openmp_of_torch()]
    path = folder / f"native-{_key(compiler, command)}.so"
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / path.name
        code, _, said = _run([*command, "-o", str(made)])
        if code:
            raise _unavailable(f"{compiler[0]} failed ({said})", "install a working g++ or set CXX")
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


def _openmp_of_torch() -> list[str]:
    """Linker arguments for the libgomp that torch's wheel brings, if it brings one."""
    package = Path(torch.__file__).parent
    found = sorted((*package.glob("lib/libgomp*"), *package.parent.glob("torch.libs/libgomp*")))
    return ["-Wl,--as-needed", str(found[0])] if found else []


def _key(compiler: list[str], command: list[str]) -> str:
    """What decides the machine code: sources, command, compiler version, processor."""
    version = _run([*compiler, "--version"])[1].partition("\n")[0]
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    wanted = ("model name", "flags", "Features", "CPU part")
    processor = sorted({line for line in text.splitlines() if line.startswith(wanted)})
    parts = [*(s.read_text(encoding="utf-8") for s in SOURCES), *command, version, *processor]
    parts += [platform.machine(), platform.processor()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _require_checked(path: Path) -> None:
    """Raise KernelUnavailable unless `check` passed in a fresh Python; the outcome is kept."""
    record = path.with_suffix(".json")
    try:
        fault = json.loads(record.read_text(encoding="utf-8"))["fault"]
    except (OSError, ValueError, KeyError, TypeError):
        code = f"import sys; sys.path.insert(0, sys.argv[1]); from {__name__} import check; "
        root = str(Path(__file__).parents[2])
        status, _, said = _run([sys.executable, "-c", code + "check(sys.argv[2])", root, str(path)])
        crash = f"crashed in its check (signal {-status})"
        fault = crash if status < 0 else f"failed its check ({said})" if status else ""
        part = record.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps({"fault": fault}), encoding="utf-8")
        part.replace(record)
    if fault:
        raise _unavailable(f"{path} {fault}", "update g++, or delete that folder to try again")


def check(path: str) -> None:
    """Compare small products with torch; raise ArithmeticError if wrong. May end its process."""
    library = _open(Path(path))
    torch.manual_seed(0)
    linears: list[_Native] = [NativeDense(torch.randn(19, 576).to(t), library) for t in TYPES]
    for group, columns in ((32, 544), (64, 576), (128, 512)):
        codes = torch.randint(0, 16, (19, columns), dtype=torch.uint8)
        scale, zero = torch.rand(2, 19, columns // group)
        linears.append(NativeInt4(QuantMatrix(codes, scale + 0.5, 15 * zero, group), library))
    for linear in linears:
        x = torch.randn(2, linear.shape[1])
        expected = x @ linear.dense().T
        error = float((linear(x) - expected).abs().max() / expected.abs().max())
        if not error < 1e-4:
            raise ArithmeticError(f"{type(linear).__name__} is off by {error:.1e}")


class _Native(ABC):
    """What both linears share: the descriptor, and products of a few rows in C++."""

    def __init__(self, library: NativeLibrary | None, kept: list[Tensor], matrix: CMatrix) -> None:
        self._library = load_library() if library is None else library
        self._kept = kept
        self.descriptor = matrix
        self.shape = (int(matrix.rows), int(matrix.cols))
        self.nbytes = sum(t.numel() * t.element_size() for t in kept)
        self.bits = self.nbytes * 8 / (self.shape[0] * self.shape[1])
        self._address = ctypes.addressof(matrix)
        hold = self.nbytes <= HOLD_BYTES
        self._few = self._library.function("river_linear", None, "ppnpi", hold=hold)

    def tensors(self) -> list[Tensor]:
        return list(self._kept)

    def __call__(self, x: Tensor) -> Tensor:
        """x [M, K] fp32 on the CPU -> x W^T [M, N] fp32. ValueError where K does not fit."""
        if x.ndim != 2 or x.shape[1] != self.shape[1]:
            raise ValueError(f"x {tuple(x.shape)} does not fit a weight of {self.shape}")
        x = x.to("cpu", torch.float32).contiguous()
        out = torch.empty(x.shape[0], self.shape[0])
        if x.shape[0] <= FEW_ROWS:
            threads = torch.get_num_threads()
            self._few(self._address, x.data_ptr(), x.shape[0], out.data_ptr(), threads)
            return out
        step = max(1, SCRATCH // self.shape[1])
        for start in range(0, self.shape[0], step):
            part = self._rows(start, min(start + step, self.shape[0]))
            out[:, start : start + step] = x @ part.T
        return out

    def dense(self) -> Tensor:
        """The weights that the kernel computes with, fp32 [N, K]."""
        return self._rows(0, self.shape[0])

    @abstractmethod
    def _rows(self, start: int, stop: int) -> Tensor: ...


class NativeDense(_Native):
    """A dense weight [N, K] of fp16, bf16 or fp32, on the CPU; contiguous ones are not copied.

    Raises KernelUnavailable for other types and devices, and where the library is unavailable.
    """

    def __init__(self, weight: Tensor, library: NativeLibrary | None = None) -> None:
        if weight.device.type != "cpu" or weight.dtype not in TYPES:
            what = f"{weight.dtype} on {weight.device}"
            raise KernelUnavailable(f"native kernels take fp16, bf16, fp32 on a CPU, not {what}.")
        self.weight = weight.contiguous()
        kind = TYPES.index(weight.dtype)
        self.name = ("native-fp16", "native-bf16", "native-fp32")[kind]
        matrix = CMatrix(kind, 0, *weight.shape, self.weight.data_ptr(), None)
        super().__init__(library, [self.weight], matrix)

    def _rows(self, start: int, stop: int) -> Tensor:
        return self.weight[start:stop].float()


class NativeInt4(_Native):
    """4-bit codes in groups of 32, 64 or 128 columns; scale and zero are rounded to fp16.

    For a few rows activations become 16-bit integers with one scale per group, an error of 1.5e-5
    of the group's largest (fp16 activations: 4.9e-4 of each); the rest is fp32. Raises
    KernelUnavailable for other groups or columns, for scales or zeros beyond fp16, and where the
    library is unavailable.
    """

    name = "native-int4"

    def __init__(self, q: QuantMatrix, library: NativeLibrary | None = None) -> None:
        (n, k), group = q.shape, q.group_size
        if group not in (32, 64, 128) or k % group or q.codes.device.type != "cpu":
            raise KernelUnavailable(
                f"native-int4 needs columns in whole groups of 32, 64 or 128 on a CPU, not {k} "
                f"columns in groups of {group} on {q.codes.device}."
            )
        self.codes, self.meta = _pack_codes(q), _pack_meta(q)
        matrix = CMatrix(3, group, n, k, self.codes.data_ptr(), self.meta.data_ptr())
        super().__init__(library, [self.codes, self.meta], matrix)
        self._unpack = self._library.function("river_dequantise", None, "pnnpi", hold=True)

    def _rows(self, start: int, stop: int) -> Tensor:
        out = torch.empty(stop - start, self.shape[1])
        self._unpack(self._address, start, stop, out.data_ptr(), torch.get_num_threads())
        return out


def _padded(values: Tensor, columns: int) -> Tensor:
    """[N, C] -> [N up to a multiple of 4, columns], filled with zeros."""
    n, k = values.shape
    return torch.nn.functional.pad(values, (0, columns - k, 0, -n % 4))


def _pack_codes(q: QuantMatrix) -> Tensor:
    """uint8 [N, K] -> int16 [N / 4, spans, 4, lanes], the layout that native.h describes."""
    span = max(64, q.group_size)
    parts, lanes = (2, 8) if q.group_size == 32 else (span // 64, 16)
    codes = _padded(q.codes, -(-q.shape[1] // span) * span)
    nibbles = codes.view(codes.shape[0] // 4, 4, -1, parts, 4, lanes).transpose(1, 2)
    words = torch.zeros(*nibbles.shape[:4], lanes, dtype=torch.int16)
    for j in range(4):
        words |= nibbles[..., j, :].to(torch.int16) << (4 * j)
    return words.flatten(3)


def _pack_meta(q: QuantMatrix) -> Tensor:
    """Scale and zero [N, K / group] -> fp16 [N / 4, groups, 2, 4]; even groups where they pair."""
    groups = q.scale.shape[1] + (q.scale.shape[1] % 2 if q.group_size == 32 else 0)
    both = torch.stack([_padded(part, groups) for part in (q.scale, q.zero)])
    meta = both.view(2, -1, 4, groups).permute(1, 3, 0, 2).half().contiguous()
    if not bool(meta.isfinite().all()):
        raise KernelUnavailable("native-int4 cannot hold a scale or zero over 65504.")
    return meta
