"""The slow, obvious kernel: a plain fp32 matrix product. Every fast kernel is held equal to it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


class ReferenceDense:
    """x W^T in fp32 for a weight [N, K] of any float type."""

    name = "reference-dense"

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.shape = (weight.shape[0], weight.shape[1])
        self.bits = float(weight.element_size() * 8)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.float())

    def dense(self) -> Tensor:
        """The weight, fp32 [N, K]."""
        return self.weight.float()

    def tensors(self) -> list[Tensor]:
        """The stored weight."""
        return [self.weight]
