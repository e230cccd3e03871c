"""Activation-aware scales: input channels that carry much are made larger before rounding.

AWQ (arXiv 2306.00978). The inverse scales go to what makes the inputs: a norm that the twin then
has for itself, or the rows of `up` for `down`. Never into `v` for `out`: both banks share one KV
cache, and its values have to stay in the backbone's units. Works on one layer's matrices and the
second moments of their inputs; knows nothing of how a layer runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .errors import RiverError
from .kernels.base import QuantMatrix, code_bits
from .layer import NORMS

RATIOS = tuple(0.05 * n for n in range(20))  # powers of the inputs' size, tried in turn
SHRINKS = tuple(1.0 - 0.05 * n for n in range(10))  # of a group's range
ROWS = 256  # that a candidate is judged by, evenly spread
BLOCK = 1 << 21  # numbers of a matrix that are rounded at once


@dataclass(frozen=True)
class ScaledLayer:
    """Codes of a layer's fused linears, and what its norms are to be divided by, fp32 [d] each."""

    matrices: dict[str, QuantMatrix]
    divisors: dict[str, Tensor]


def scaled_layer(
    matrices: Mapping[str, Tensor],
    moments: Mapping[str, Tensor],
    norms: Collection[str],
    group: int,
    top: int,
) -> ScaledLayer:
    """Quantise the fused matrices [N, K] of a layer that has these `norms`.

    `moments` fp32 [K, K] are the means of x x^T. A linear without a norm before it, as in OLMo 2,
    and `out` are rounded as they stand. Raises RiverError for moments that are not finite.
    """
    found: dict[str, QuantMatrix] = {}
    divisors: dict[str, Tensor] = {}
    for fused, matrix in matrices.items():
        norm, seen = NORMS.get(fused), moments[fused]
        folds = fused == "down" or norm in norms
        scales = channel_scales(matrix, seen, group, top) if folds else None
        found[fused] = clipped(matrix, seen, group, top, scales=scales)
        if norm is not None and scales is not None:
            divisors[norm] = scales
        elif scales is not None:
            found["gate_up"] = _divided(found["gate_up"], scales)
    return ScaledLayer(found, divisors)


def _divided(gate_up: QuantMatrix, scales: Tensor) -> QuantMatrix:
    """The rows of `up` divided by the scales [F] of what `down` reads: same codes, other scales."""
    rows = torch.cat([torch.ones_like(scales), 1 / scales]).unsqueeze(1)
    return replace(gate_up, scale=gate_up.scale * rows)


def channel_scales(weight: Tensor, moments: Tensor, group: int, top: int) -> Tensor:
    """Scales fp32 [K] of the columns: of 20 powers of their inputs' size, the least output error.

    The size is the root mean square, which the moments give; the paper takes the mean magnitude.
    Geometric middle 1; the power 0 is no scale at all.
    """
    _check(moments)
    size = moments.diagonal().clamp(min=0).sqrt()
    size = size.clamp(min=max(1e-4 * float(size.max()), 1e-12))
    at = torch.linspace(0, len(weight) - 1, min(ROWS, len(weight))).long()
    rows = weight[at].float()
    best, least = torch.ones_like(size), torch.inf
    for ratio in RATIOS:
        scales = size**ratio
        scales = scales / (scales.max() * scales.min()).sqrt()
        lost = _plain(rows * scales, group, top).dense() / scales - rows
        error = float(((lost @ moments) * lost).sum())
        if error < least:
            best, least = scales, error
    return best


def clipped(
    weight: Tensor, moments: Tensor, group: int, top: int, *, scales: Tensor | None = None
) -> QuantMatrix:
    """Codes of weight [N, K] times `scales` [K]; each group's range shrunk where that helps.

    Judged by the output error of the group alone: its block of the moments.
    """
    _check(moments)
    own = torch.ones(weight.shape[1]) if scales is None else scales
    parts = moments.view(-1, group, moments.shape[0] // group, group)
    blocks = torch.stack([parts[g, :, g] for g in range(len(parts))])
    sides = (1 / own).view(-1, group)
    blocks = blocks * sides.unsqueeze(2) * sides.unsqueeze(1)
    rows = max(1, BLOCK // weight.shape[1])
    pieces = weight.split(rows)
    return QuantMatrix.cat([_least(p.float() * own, blocks, group, top) for p in pieces])


def _check(moments: Tensor) -> None:
    if not bool(torch.isfinite(moments).all()):
        raise RiverError("the calibration text gives inputs that are not finite; use method 'hqq'.")


def _least(weight: Tensor, blocks: Tensor, group: int, top: int) -> QuantMatrix:
    """The best of all SHRINKS for each group of weight [N, K]; blocks [K / group, group, group]."""
    found = _plain(weight, group, top)
    best = _group_errors(weight, found, blocks)
    for shrink in SHRINKS[1:]:
        other = _plain(weight, group, top, shrink)
        error = _group_errors(weight, other, blocks)
        better = error < best
        codes = torch.where(better.repeat_interleave(group, 1), other.codes, found.codes)
        scale = torch.where(better, other.scale, found.scale)
        zero = torch.where(better, other.zero, found.zero)
        found = replace(found, codes=codes, scale=scale, zero=zero)
        best = torch.where(better, error, best)
    return found


def _group_errors(weight: Tensor, coded: QuantMatrix, blocks: Tensor) -> Tensor:
    """Mean squared error of each group's part of the products, [N, K / group]."""
    lost = (coded.dense() - weight).view(len(weight), *blocks.shape[:2]).transpose(0, 1)
    return (torch.bmm(lost, blocks) * lost).sum(-1).t()


def _plain(weight: Tensor, group: int, top: int, shrink: float = 1.0) -> QuantMatrix:
    """Equal steps over each group's range, 0 among them; the zero is a code, 0..top."""
    grouped = weight.view(weight.shape[0], -1, group)
    high, low = grouped.amax(-1).clamp(min=0), grouped.amin(-1).clamp(max=0)
    scale = ((high - low) * shrink / top).clamp(min=1e-8)
    zero = (-low * shrink / scale).round().clamp(0, top)
    codes = (grouped / scale.unsqueeze(-1)).round() + zero.unsqueeze(-1)
    found = codes.clamp(0, top).to(torch.uint8).view_as(weight)
    return QuantMatrix(found, scale, zero, group, code_bits(top))


def in_backbone_units(
    own: Mapping[str, Tensor],
    own_norms: Mapping[str, Tensor],
    twin: Mapping[str, Tensor],
    twin_norms: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """A twin's fused matrices with its scales taken out, to be compared with the backbone's.

    Those of qkv and gate_up are the ratios of the norms; those between up and down are found by
    least squares, column by column of down. The layer that they make is the same. All fp32.
    """
    found = dict(twin)
    for fused, norm in NORMS.items():
        if norm in own_norms:
            ratio = twin_norms[norm] / own_norms[norm]
            found[fused] = twin[fused] * torch.where(ratio.isfinite(), ratio, 1.0)
    ratio = row_ratios(own["down"].t(), twin["down"].t())
    found["down"] = twin["down"] / ratio
    found["gate_up"] = found["gate_up"] * torch.cat([torch.ones_like(ratio), ratio]).unsqueeze(1)
    return found


def row_ratios(own: Tensor, twin: Tensor) -> Tensor:
    """What each row of `own` [N, K] is best multiplied by to be `twin`'s, [N]; 1 where nothing."""
    ratio = (own * twin).sum(1) / own.square().sum(1)
    return torch.where(ratio.isfinite() & (ratio > 0), ratio, 1.0)
