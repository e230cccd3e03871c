"""Linears in C++ for the CPU: dense, 4-bit and 8-bit products of a few rows.

Wraps what native_library.py loads. Knows nothing of layers (execution/native.py does) or of who
chooses a kernel.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..errors import KernelUnavailable
from .base import Linear, QuantMatrix
from .native_library import NativeLibrary, load_library, open_library
from .pages import together

FEW_ROWS = 16  # more rows than this go through torch's matrix product in fp32
SCRATCH = 1 << 21  # numbers of fp32 that a product of many rows widens at a time
HOLD_BYTES = 64 << 20  # calls that read more release the GIL
TYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
)  # as `Kind` of native_rows.h counts; int4 is 3, int8 is 4


class CMatrix(ctypes.Structure):
    """`Matrix` of native_rows.h. Its owner keeps the tensors that the pointers lead into."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("kind", "group", "rows", "cols")),
        *((name, ctypes.c_void_p) for name in ("weight", "meta")),
    )


def check(path: str) -> None:
    """Compare small products with torch; raise ArithmeticError if wrong. May end its process."""
    library = open_library(Path(path))
    torch.manual_seed(0)
    linears: list[_Native] = [NativeDense(torch.randn(19, 576).to(t), library) for t in TYPES]
    for group, columns in ((32, 544), (64, 576), (128, 512)):
        for bits, kind in ((4, NativeInt4), (8, NativeInt8)):
            codes = torch.randint(0, 2**bits, (19, columns), dtype=torch.uint8)
            scale, zero = torch.rand(2, 19, columns // group)
            matrix = QuantMatrix(codes, scale + 0.5, (2**bits - 1) * zero, group, bits)
            linears.append(kind(matrix, library))
    for linear in linears:
        x = torch.randn(2, linear.shape[1])
        expected = x @ linear.dense().T
        error = float((linear(x) - expected).abs().max() / expected.abs().max())
        if not error < 1e-4:
            raise ArithmeticError(f"{type(linear).__name__} is off by {error:.1e}")


class _Native(ABC):
    """What all linears share: the descriptor, and products of a few rows in C++."""

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

    def move(self, kept: list[Tensor]) -> None:
        """Read the weights from copies of `tensors()` from now on. Before anything points here."""
        self._kept = kept
        self.descriptor.weight = kept[0].data_ptr()
        self.descriptor.meta = kept[1].data_ptr() if len(kept) > 1 else None

    def __call__(self, x: Tensor) -> Tensor:
        """x [M, K] fp32 on the CPU -> x W^T [M, N] fp32. ValueError where K does not fit."""
        if x.ndim != 2 or x.shape[1] != self.shape[1]:
            raise ValueError(f"x {tuple(x.shape)} does not fit a weight of {self.shape}")
        x = x.to("cpu", torch.float32).contiguous()
        step = max(1, SCRATCH // self.shape[1])
        few = x.shape[0] <= FEW_ROWS
        if not few and step >= self.shape[0]:
            return x @ self.dense().T  # nothing to copy into `out`
        out = torch.empty(x.shape[0], self.shape[0])
        if few:
            threads = torch.get_num_threads()
            self._few(self._address, x.data_ptr(), x.shape[0], out.data_ptr(), threads)
            return out
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
        weight = weight.contiguous()
        kind = TYPES.index(weight.dtype)
        self.name = ("native-fp16", "native-bf16", "native-fp32")[kind]
        matrix = CMatrix(kind, 0, *weight.shape, weight.data_ptr(), None)
        super().__init__(library, [weight], matrix)

    def _rows(self, start: int, stop: int) -> Tensor:
        return self._kept[0][start:stop].float()


class _Coded(_Native):
    """Codes in groups of 32, 64 or 128 columns; scale and zero are rounded to fp16.

    For a few rows activations become 16-bit integers with one scale per group, an error of 1.5e-5
    of the group's largest (fp16 activations: 4.9e-4 of each); the rest is fp32. Raises
    KernelUnavailable for other groups, columns or code bits, for scales or zeros beyond fp16, and
    where the library is unavailable.
    """

    name = ""
    kind = code_bits = 0

    def __init__(self, q: QuantMatrix, library: NativeLibrary | None = None) -> None:
        (n, k), group = q.shape, q.group_size
        if group not in (32, 64, 128) or k % group or q.codes.device.type != "cpu":
            raise KernelUnavailable(
                f"{self.name} needs columns in whole groups of 32, 64 or 128 on a CPU, not {k} "
                f"columns in groups of {group} on {q.codes.device}."
            )
        if q.code_bits != self.code_bits:
            raise KernelUnavailable(f"{self.name} does not read codes of {q.code_bits} bits.")
        codes, meta = self._pack(q)
        if not bool(meta.isfinite().all()):
            raise KernelUnavailable(f"{self.name} cannot hold a scale or zero over 65504.")
        matrix = CMatrix(self.kind, group, n, k, codes.data_ptr(), meta.data_ptr())
        super().__init__(library, [codes, meta], matrix)
        self._unpack = self._library.function("river_dequantise", None, "pnnpi", hold=True)

    def _rows(self, start: int, stop: int) -> Tensor:
        out = torch.empty(stop - start, self.shape[1])
        self._unpack(self._address, start, stop, out.data_ptr(), torch.get_num_threads())
        return out

    @abstractmethod
    def _pack(self, q: QuantMatrix) -> tuple[Tensor, Tensor]: ...


class NativeInt4(_Coded):
    """4-bit codes, see `_Coded`."""

    name = "native-int4"
    kind, code_bits = 3, 4

    def _pack(self, q: QuantMatrix) -> tuple[Tensor, Tensor]:
        return _pack_nibbles(q), _pack_meta(q.scale, q.zero, paired=q.group_size == 32)


class NativeInt8(_Coded):
    """8-bit codes, see `_Coded`; the zeros that it rounds to fp16 are those less 128."""

    name = "native-int8"
    kind, code_bits = 4, 8

    def _pack(self, q: QuantMatrix) -> tuple[Tensor, Tensor]:
        codes = _padded(q.codes, q.shape[1]).view(-1, 4, q.shape[1] // q.group_size, q.group_size)
        signed = (codes ^ 128).view(torch.int8).transpose(1, 2).contiguous()
        return signed, _pack_meta(q.scale, q.zero - 128)


Native = NativeDense | NativeInt4 | NativeInt8


def on_large_pages(linears: Sequence[Linear]) -> None:
    """Move the weights of the native ones among `linears` side by side onto large pages."""
    native = [linear for linear in linears if isinstance(linear, _Native)]
    copies = together([t for linear in native for t in linear.tensors()])
    for linear in native:
        count = len(linear.tensors())
        linear.move(copies[:count])
        copies = copies[count:]


def _padded(values: Tensor, columns: int) -> Tensor:
    """[N, C] -> [N up to a multiple of 4, columns], filled with zeros."""
    n, k = values.shape
    return torch.nn.functional.pad(values, (0, columns - k, 0, -n % 4))


def _pack_nibbles(q: QuantMatrix) -> Tensor:
    """uint8 [N, K] -> int16 [N / 4, spans, 4, lanes], the layout that native_rows.h describes."""
    span = max(64, q.group_size)
    parts, lanes = (2, 8) if q.group_size == 32 else (span // 64, 16)
    codes = _padded(q.codes, -(-q.shape[1] // span) * span)
    nibbles = codes.view(codes.shape[0] // 4, 4, -1, parts, 4, lanes).transpose(1, 2)
    words = torch.zeros(*nibbles.shape[:4], lanes, dtype=torch.int16)
    for j in range(4):
        words |= nibbles[..., j, :].to(torch.int16) << (4 * j)
    return words.flatten(3)


def _pack_meta(scale: Tensor, zero: Tensor, *, paired: bool = False) -> Tensor:
    """Scale and zero [N, K / group] -> fp16 [N / 4, groups, 2, 4]; even groups where they pair."""
    groups = scale.shape[1] + (scale.shape[1] % 2 if paired else 0)
    both = torch.stack([_padded(part, groups) for part in (scale, zero)])
    return both.view(2, -1, 4, groups).permute(1, 3, 0, 2).half().contiguous()
