"""What every linear kernel is: one signature, and the quantised matrix that the river is made of.

Knows nothing of layers or models. x is [M, K] fp32 and the result [M, N] fp32 whatever the kernel
computes in: the residual stream is fp32 on every device (records.md, Numbers), each kernel casts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


def code_bits(top: int) -> int:
    """What codes 0..`top` are stored in: 4 bits or 8."""
    return 4 if top < 16 else 8


@dataclass(frozen=True)
class QuantMatrix:
    """A matrix as a quantizer made it: W[n, k] = (codes[n, k] - zero[n, g]) * scale[n, g].

    codes uint8 [N, K] with values below 2**code_bits, which is 4 or 8 and what a code is stored in;
    scale, zero fp32 [N, K // group_size]; g is k // group_size.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor
    group_size: int
    code_bits: int = 4

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): rows out, columns in."""
        return self.codes.shape[0], self.codes.shape[1]

    def dense(self) -> Tensor:
        """The weights it stands for, fp32 [N, K]."""
        n, k = self.shape
        grouped = self.codes.view(n, k // self.group_size, self.group_size).float()
        return ((grouped - self.zero.unsqueeze(-1)) * self.scale.unsqueeze(-1)).view(n, k)

    def to(self, device: torch.device) -> QuantMatrix:
        """The same on `device`."""
        codes, scale, zero = (t.to(device) for t in (self.codes, self.scale, self.zero))
        return QuantMatrix(codes, scale, zero, self.group_size, self.code_bits)

    @staticmethod
    def cat(parts: list[QuantMatrix]) -> QuantMatrix:
        """Stack matrices with the same columns by rows (fused q,k,v and gate,up)."""
        return QuantMatrix(
            torch.cat([p.codes for p in parts]),
            torch.cat([p.scale for p in parts]),
            torch.cat([p.zero for p in parts]),
            parts[0].group_size,
            parts[0].code_bits,
        )


@runtime_checkable
class Linear(Protocol):
    """x [M, K] fp32 -> [M, N] fp32, without bias. Built from weights, immutable afterwards."""

    name: str  # as the micro-test, the header and the page show it, e.g. "torch-fp16"
    bits: float  # stored bits per weight, metadata included
    shape: tuple[int, int]  # (N, K)

    def __call__(self, x: Tensor) -> Tensor: ...

    def dense(self) -> Tensor:
        """The weights that this kernel computes with, fp32 [N, K]: what its reference uses."""
        ...

    def tensors(self) -> list[Tensor]:
        """The tensors that hold its weights, for the memory ledger."""
        ...
