"""int4 kernels that torch already has: aten's for CPU, tinygemm for CUDA. bf16 activations.

Both compute W = (q - 8) * s + z, so a quantizer's W = (q - zero) * scale becomes s = scale and
z = (8 - zero) * scale, computed in fp32 and cast last (speed.md section 3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ..errors import KernelUnavailable
from .base import QuantMatrix


def _scales_and_zeros(matrix: QuantMatrix) -> Tensor:
    """bf16 [K / group, N, 2]: scale and shifted zero as both kernels read them."""
    zeros = (8.0 - matrix.zero) * matrix.scale
    pair = torch.stack([matrix.scale, zeros], dim=-1)
    return pair.transpose(0, 1).contiguous().to(torch.bfloat16)


class _Int4(ABC):
    """What the two kernels share: packed codes, bf16 metadata, reading back through the kernel."""

    name = ""

    def __init__(self, matrix: QuantMatrix) -> None:
        self.shape = matrix.shape
        self.group = matrix.group_size
        self.bits = 4.0 + 32.0 / matrix.group_size
        self.packed, self.meta = self._pack(matrix), _scales_and_zeros(matrix)

    @abstractmethod
    def _pack(self, matrix: QuantMatrix) -> Tensor: ...

    @abstractmethod
    def _product(self, x: Tensor) -> Tensor: ...

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] > self.shape[1]:  # then reading the matrix back once is the cheaper way
            return x @ self.dense().t()
        return self._product(x.bfloat16()).float()

    def dense(self) -> Tensor:
        """The weights it computes with (bf16 metadata and bf16 output), fp32 [N, K]."""
        eye = torch.eye(self.shape[1], device=self.meta.device).bfloat16()
        return self._product(eye).float().t().contiguous()

    def tensors(self) -> list[Tensor]:
        """Packed codes and metadata."""
        return [self.packed, self.meta]


class AtenInt4(_Int4):
    """aten's CPU kernel. Rows must be a multiple of 16, the group one of 32, 64, 128."""

    name = "aten-int4"

    def _pack(self, matrix: QuantMatrix) -> Tensor:
        n, k = matrix.shape
        if n % 16 or matrix.group_size not in (32, 64, 128) or k % matrix.group_size:
            raise KernelUnavailable(
                f"aten's int4 kernel needs rows in multiples of 16, not {n} x {k} with groups of "
                f"{matrix.group_size}."
            )
        codes = matrix.codes.to(torch.int32)
        packed: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        return packed

    def _product(self, x: Tensor) -> Tensor:
        op = torch.ops.aten._weight_int4pack_mm_for_cpu
        result: Tensor = op(x.contiguous(), self.packed, self.group, self.meta)
        return result


class TinygemmInt4(_Int4):
    """tinygemm on CUDA: compute capability 8.0 or newer, rows % 8, columns % 64 == 0."""

    name = "tinygemm-int4"

    def _pack(self, matrix: QuantMatrix) -> Tensor:
        codes = matrix.codes
        n, k = matrix.shape
        if codes.device.type != "cuda" or torch.cuda.get_device_capability(codes.device) < (8, 0):
            raise KernelUnavailable(
                "tinygemm needs a CUDA GPU of compute capability 8.0 or newer; the river runs "
                "dequantised instead."
            )
        tiles = inner_k_tiles(n, k)
        packed: Tensor = torch.ops.aten._convert_weight_to_int4pack(tinygemm_bytes(codes), tiles)
        return packed

    def _product(self, x: Tensor) -> Tensor:
        op = torch.ops.aten._weight_int4pack_mm
        result: Tensor = op(x.contiguous(), self.packed, self.group, self.meta)
        return result


def tinygemm_bytes(codes: Tensor) -> Tensor:
    """Codes uint8 [N, K] -> uint8 [N, K / 2], the even column in the high half of each byte."""
    return (codes[:, ::2] << 4 | codes[:, 1::2]).contiguous()


def inner_k_tiles(n: int, k: int) -> int:
    """Largest tile count that tinygemm accepts for [n, k]; raises KernelUnavailable for none."""
    for tiles in (8, 4, 2):
        if n % 8 == 0 and k % (16 * tiles) == 0:
            return tiles
    raise KernelUnavailable(
        f"tinygemm needs rows in multiples of 8 and columns in multiples of 32, not {n} x {k}."
    )
