"""What a one-row product on a GPU fuses, how its work is cut, and the layout of its 4-bit weights.

Plain torch and numbers, no Triton: the kernels (triton_*.py) and their references share it. How the
work is cut depends on the shape alone, so that a result never depends on the card or on timing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..errors import KernelUnavailable
from .base import Linear, QuantMatrix

SPAN = 64  # columns of one packing unit: 8 words of 8 codes
GROUPS = (32, 64, 128)
MOST_ROWS = 8  # rows of x that a kernel takes one beside the other
WAVE = 512  # programs that fill a card; a product with fewer has its columns split


@dataclass(frozen=True)
class Fused:
    """What a product y = x W^T does besides, x fp32 [M, K], y fp32 [M, N].

    norm fp32 [K]: x goes through an RMSNorm with `eps` first; residual fp32 [M, N] is added to y
    (it may be the output itself); gated: W is [2 N, K], gate rows first, y = silu(gate) * up.
    """

    norm: Tensor | None = None
    eps: float = 0.0
    residual: Tensor | None = None
    gated: bool = False


PLAIN = Fused()


@runtime_checkable
class FusedLinear(Linear, Protocol):
    """A linear whose product also does what `Fused` says."""

    def project(self, x: Tensor, out: Tensor, fused: Fused = PLAIN) -> Tensor:
        """Product of x fp32 [M, K], M <= 8, and the rest into `out` fp32; returns it."""
        ...


@dataclass(frozen=True)
class Cut:
    """How a product is cut: weight rows per program, units of columns per turn, splits of K.

    A unit is a span of 64 columns for 4-bit weights and one column for 16-bit ones.
    """

    rows: int
    units: int
    splits: int


def cut_of(rows: int, units: int, choices: tuple[int, ...]) -> Cut:
    """Cut a matrix of `rows` x `units`; of `choices` the turn that leaves the fewest lanes idle.

    A program is one warp, so that its threads never wait for each other.
    """
    turn = min(choices, key=lambda size: (-(-units // size) * size, -size))
    height = 4
    if rows >= 16 * WAVE:  # a larger share of x's own work is then shared by rows
        height, turn = 8, turn // 2
    programs, turns = -(-rows // height), -(-units // turn)
    splits = max(1, min(turns, 8, WAVE // programs))
    return Cut(height, turn, splits)


def pack_words(codes: Tensor) -> Tensor:
    """4-bit codes uint8 [N, K] -> int32 [N, K / 8].

    Word w of a span holds columns w, w + 8, ..., w + 56 of its 64, the first in its lowest bits: a
    thread reads 16 bytes of codes, and the columns of each nibble follow each other too.
    """
    n, k = codes.shape
    if k % SPAN:
        raise KernelUnavailable(f"4-bit Triton kernels need columns in multiples of 64, not {k}.")
    nibbles = codes.view(n, k // SPAN, 8, 8).to(torch.int64)
    shifts = torch.arange(0, 32, 4, device=codes.device).view(8, 1)
    words = (nibbles << shifts).sum(2)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32).view(n, k // 8)


def unpack_words(words: Tensor) -> Tensor:
    """The inverse of `pack_words`: int32 [N, K / 8] -> uint8 [N, K]."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device).view(8, 1)
    nibbles = words.view(words.shape[0], -1, 1, 8) >> shifts & 15
    return nibbles.to(torch.uint8).flatten(1)


def pack_meta(matrix: QuantMatrix) -> Tensor:
    """Scale (low half) and zero (high half) of a group in fp16 -> int32 [N, K / group]."""
    pair = torch.stack([matrix.scale, matrix.zero], dim=-1).half()
    if not bool(pair.isfinite().all()):
        raise KernelUnavailable("4-bit Triton kernels cannot hold a scale or zero over 65504.")
    return pair.contiguous().view(torch.int32).squeeze(-1)


def unpack(words: Tensor, meta: Tensor, group: int) -> QuantMatrix:
    """The matrix that packed words and meta stand for, its scales and zeros rounded to fp16."""
    pair = meta.unsqueeze(-1).view(torch.float16).float()
    return QuantMatrix(unpack_words(words), pair[..., 0], pair[..., 1], group)
