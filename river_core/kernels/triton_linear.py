"""Linears of 16-bit and 4-bit weights as Triton kernels for CUDA: the 4-bit one also on old cards.

Rows of x beyond a few go through torch's matrix product. Only choose.py and execution/ import this
file, and only where it is used, because it imports triton.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

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


class _Triton(ABC):
    """What both share: the launch, the second stage of a split product, and many rows of x."""

    name = ""
    bits = 0.0

    def __init__(self, shape: tuple[int, int], cut: Cut, device: torch.device) -> None:
        if device.type != "cuda" and isinstance(dense_product, triton.JITFunction):
            raise KernelUnavailable(f"{self.name} needs a CUDA GPU, not {device}.")
        self.shape = shape
        self._cut = cut

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

    @abstractmethod
    def _launch(
        self,
        grid: tuple[int, int, int],
        tensors: tuple[Tensor, ...],
        eps: float,
        flags: Mapping[str, int],
    ) -> None: ...

    @abstractmethod
    def _many(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def dense(self) -> Tensor: ...


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
        super().__init__((n, k), cut or cut_of(n, k, TURNS["columns"]), weight.device)
        self.weight = weight.contiguous()

    def _launch(
        self,
        grid: tuple[int, int, int],
        tensors: tuple[Tensor, ...],
        eps: float,
        flags: Mapping[str, int],
    ) -> None:
        (n, k), cut = self.shape, self._cut
        x, *rest = tensors
        turns = triton.cdiv(triton.cdiv(k, cut.units), cut.splits)
        dense_product[grid](
            x,
            self.weight,
            *rest,
            n,
            k,
            turns,
            eps,
            ROWS=cut.rows,
            COLUMNS=cut.units,
            num_warps=1,
            **flags,
        )

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
        super().__init__((n, k), cut or cut_of(n, k // SPAN, TURNS["spans"]), matrix.codes.device)
        self.group, self.bits = group, 4.0 + 32.0 / group
        self.words, self.meta = pack_words(matrix.codes), pack_meta(matrix)

    def _launch(
        self,
        grid: tuple[int, int, int],
        tensors: tuple[Tensor, ...],
        eps: float,
        flags: Mapping[str, int],
    ) -> None:
        (n, k), cut = self.shape, self._cut
        x, *rest = tensors
        turns = triton.cdiv(triton.cdiv(k // SPAN, cut.units), cut.splits)
        int4_product[grid](
            x,
            self.words,
            self.meta,
            *rest,
            n,
            k // SPAN,
            k // self.group,
            turns,
            eps,
            ROWS=cut.rows,
            SPANS=cut.units,
            GROUP=self.group,
            num_warps=1,
            **flags,
        )

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
