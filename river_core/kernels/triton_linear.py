"""Linears of 16-bit and 4-bit weights as Triton kernels for CUDA: the 4-bit one also on old cards.

Rows of x beyond a few go through torch's matrix product. Only choose.py and execution/ import this
file, and only where it is used, because it imports triton.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ..errors import KernelUnavailable
from .base import QuantMatrix
from .gemv_plan import (
    GROUPS,
    MOST_ROWS,
    PLAIN,
    SPAN,
    Cut,
    Fused,
    cut_of,
    pack_meta,
    pack_words,
    unpack,
)
from .triton_finish import JOINED_ROWS, join_parts
from .triton_gemv import dense_product
from .triton_int4 import int4_product

SCRATCH = 1 << 24  # numbers of a 4-bit matrix that stand dequantised at a time
TURNS = {"columns": (512, 256, 128), "spans": (16, 8, 4)}  # of columns, of spans per program


@dataclass(frozen=True)
class Launch:
    """What the kernels do not share: which one, how many units of columns first among the sizes
    that it takes after the rows, and its constants."""

    kernel: Any
    sizes: tuple[int, ...]
    constants: Mapping[str, int]


class _Triton(ABC):
    """What both share: the launch, the second stage of a split product, and many rows of x."""

    name = ""
    bits = 0.0

    def __init__(
        self, shape: tuple[int, int], cut: Cut, device: torch.device, launch: Launch
    ) -> None:
        if device.type != "cuda" and isinstance(dense_product, triton.JITFunction):
            raise KernelUnavailable(f"{self.name} needs a CUDA GPU, not {device}.")
        self.shape = shape
        self._cut, self._own = cut, launch

    def __call__(self, x: Tensor) -> Tensor:
        """x [M, K] fp32 -> x W^T [M, N] fp32."""
        if x.shape[0] > MOST_ROWS:
            return self._many(x)
        return self.project(x.contiguous(), x.new_empty(x.shape[0], self.shape[0]))

    def project(self, x: Tensor, out: Tensor, fused: Fused = PLAIN) -> Tensor:
        """Product of x fp32 [M, K], M <= 8, and what `fused` says, into `out` fp32; returns it.

        `out` is [M, N], or [M, N / 2] where gated; it may not overlap x.
        """
        rows, cut = x.shape[0], self._cut
        parts = x.new_empty(cut.splits, rows, self.shape[0]) if cut.splits > 1 else out
        squares = x.new_empty(cut.splits, rows) if cut.splits > 1 else out
        norm = x if fused.norm is None else fused.norm
        residual = x if fused.residual is None else fused.residual
        flags = {
            "NORM": fused.norm is not None,
            "RESIDUAL": fused.residual is not None,
            "GATED": fused.gated,
            "SPLITS": cut.splits,
        }
        grid = (triton.cdiv(self.shape[0], cut.rows), rows, cut.splits)
        with torch.cuda.device_of(x):  # Triton launches on the current device
            self._launch(grid, (x, norm, out, residual, parts, squares), fused.eps, flags)
            if cut.splits == 1:
                return out
            join_parts[(triton.cdiv(self.shape[0], JOINED_ROWS), rows)](
                parts,
                squares,
                out,
                residual,
                *self.shape,
                fused.eps,
                ROWS=JOINED_ROWS,
                num_warps=1,
                **flags,
            )
        return out

    def _launch(
        self,
        grid: tuple[int, int, int],
        tensors: tuple[Tensor, ...],
        eps: float,
        flags: Mapping[str, int],
    ) -> None:
        own, cut = self._own, self._cut
        x, *rest = tensors
        turns = triton.cdiv(triton.cdiv(own.sizes[0], cut.units), cut.splits)
        own.kernel[grid](
            *(x, *self.tensors(), *rest),
            *(self.shape[0], *own.sizes, turns, eps),
            ROWS=cut.rows,
            num_warps=1,
            **own.constants,
            **flags,
        )

    @abstractmethod
    def _many(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def dense(self) -> Tensor: ...

    @abstractmethod
    def tensors(self) -> list[Tensor]: ...


class TritonDense(_Triton):
    """A weight [N, K] in fp16 or bf16 as it is stored, K % 16 == 0; bf16 from capability 8.0 on."""

    def __init__(self, weight: Tensor, cut: Cut | None = None) -> None:
        kinds = {torch.float16: "triton-fp16", torch.bfloat16: "triton-bf16"}
        (n, k), kind = weight.shape, kinds.get(weight.dtype)
        if kind is None or k % 16:
            what = f"{weight.dtype} with {k} columns"
            raise KernelUnavailable(
                "Triton's dense kernel needs 16-bit weights and columns in multiples of 16, not "
                f"{what}."
            )
        self.name, self.bits = kind, 16.0
        cut = cut or cut_of(n, k, TURNS["columns"])
        launch = Launch(dense_product, (k,), {"COLUMNS": cut.units})
        super().__init__((n, k), cut, weight.device, launch)
        self.weight = weight.contiguous()

    def _many(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x.to(self.weight.dtype), self.weight).float()

    def dense(self) -> Tensor:
        """The weight, fp32 [N, K]."""
        return self.weight.float()

    def tensors(self) -> list[Tensor]:
        """The stored weight."""
        return [self.weight]


class TritonInt4(_Triton):
    """4-bit codes in groups of 32, 64 or 128, K % 64 == 0; scale and zero rounded to fp16.

    Activations stay fp32 for a few rows. Runs on any card that Triton compiles for (capability 7.5
    and newer). Raises KernelUnavailable for other shapes, groups and code bits.
    """

    name = "triton-int4"

    def __init__(self, matrix: QuantMatrix, cut: Cut | None = None) -> None:
        (n, k), group = matrix.shape, matrix.group_size
        if matrix.code_bits != 4 or group not in GROUPS or k % max(group, SPAN):
            raise KernelUnavailable(
                "Triton's 4-bit kernel needs 4-bit codes in whole groups of 32, 64 or 128 and "
                f"columns in multiples of 64, not {n} x {k} in groups of {group}."
            )
        cut = cut or cut_of(n, k // SPAN, TURNS["spans"])
        constants = {"SPANS": cut.units, "GROUP": group}
        launch = Launch(int4_product, (k // SPAN, k // group), constants)
        super().__init__((n, k), cut, matrix.codes.device, launch)
        self.group, self.bits = group, 4.0 + 32.0 / group
        self.words, self.meta = pack_words(matrix.codes), pack_meta(matrix)

    def _many(self, x: Tensor) -> Tensor:
        step = max(1, SCRATCH // self.shape[1])
        firsts = range(0, self.shape[0], step)
        return torch.cat([x @ self._rows(n, n + step).t() for n in firsts], dim=1)

    def dense(self) -> Tensor:
        """The weights it computes with, fp32 [N, K]."""
        return self._rows(0, self.shape[0])

    def _rows(self, start: int, stop: int) -> Tensor:
        return unpack(self.words[start:stop], self.meta[start:stop], self.group).dense()

    def tensors(self) -> list[Tensor]:
        """Packed codes, and scales with zeros."""
        return [self.words, self.meta]
