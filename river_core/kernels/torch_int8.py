"""8-bit codes in plain torch, for machines without a compiler and for GPUs: exact, not fast.

torch has no 8-bit product with groups. A product here turns the codes into numbers first, a few
rows at a time on a CPU; what it saves is memory, not reads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import KernelUnavailable
from .base import QuantMatrix

SCRATCH = 1 << 18  # fp32 numbers converted at a time on a CPU: they stay in its caches


class TorchInt8:
    """uint8 codes as they are; scale, and zero less 128, in fp16; fp32 products.

    Raises KernelUnavailable for other code bits and for scales or zeros beyond fp16.
    """

    name = "torch-int8"

    def __init__(self, matrix: QuantMatrix) -> None:
        if matrix.code_bits != 8:
            raise KernelUnavailable(f"torch-int8 does not read codes of {matrix.code_bits} bits.")
        self.shape = matrix.shape
        self.group = matrix.group_size
        self.bits = 8.0 + 32.0 / matrix.group_size
        self.codes = matrix.codes.contiguous()
        self.meta = torch.stack([matrix.scale, matrix.zero - 128]).half()
        if not bool(self.meta.isfinite().all()):
            raise KernelUnavailable("torch-int8 cannot hold a scale or zero over 65504.")

    def __call__(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return x @ self.dense().t()
        out = torch.empty(x.shape[0], self.shape[0])
        step = max(1, SCRATCH // self.shape[1])
        for start in range(0, self.shape[0], step):
            stop = min(start + step, self.shape[0])
            out[:, start:stop] = x @ self._rows(start, stop).t()
        return out

    def dense(self) -> Tensor:
        """The weights it computes with, fp32 [N, K]."""
        return self._rows(0, self.shape[0])

    def _rows(self, start: int, stop: int) -> Tensor:
        scale, zero = self.meta[:, start:stop, :, None].float()
        grouped = self.codes[start:stop].view(stop - start, -1, self.group)
        weights: Tensor = (grouped - (zero + 128)).mul_(scale).view(stop - start, -1)
        return weights

    def tensors(self) -> list[Tensor]:
        """Codes and metadata."""
        return [self.codes, self.meta]
