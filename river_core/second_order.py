"""Second-order error compensation: columns are rounded one by one, the rest makes up for each.

GPTQ (arXiv 2210.17323) with static groups: each group's scale and zero are fixed first, so columns
may be taken in any order and the kernels' layout stays. Works on one matrix and the second moments
of its inputs; knows nothing of layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .errors import RiverError
from .kernels.base import QuantMatrix, code_bits

DAMP = 0.01  # of the mean second moment, added to all
BLOCK = 128  # columns between two updates of all that follow
SHRINKS = tuple(1.0 - 0.025 * n for n in range(17))  # of a group's range, tried in turn
REFITS = 3  # of a group's scale and zero to its codes
REFIT_NUMBERS = 1 << 24  # of the largest temporary when all groups of a row are fitted


class Compensation:
    """Rounds matrices that share their inputs, in groups of `group` with codes 0..`top`.

    `moments` fp32 [K, K] is the mean of x x^T over the inputs x. Raises RiverError where it is not
    finite.
    """

    def __init__(self, moments: Tensor, group: int, top: int) -> None:
        self.group, self.top = group, top
        self.moments = _damped(moments)
        self._order = torch.argsort(self.moments.diagonal(), descending=True)  # what matters most
        self._factor = _inverse_factor(self.moments[self._order][:, self._order])

    def solve(self, weight: Tensor) -> QuantMatrix:
        """Codes of fp32 [N, K] that keep its products with its inputs, not its numbers."""
        importance = self.moments.diagonal()
        scale, zero = fit_groups(weight, importance, self.group, self.top)
        order = self._order
        grid = tuple(side[:, order // self.group] for side in (scale, zero))
        codes = torch.empty_like(weight)
        codes[:, order] = _round(weight[:, order], self._factor, grid[0], grid[1], self.top)
        rows = max(1, REFIT_NUMBERS // (weight.shape[1] * scale.shape[1]))
        parts = zip(*(t.split(rows) for t in (weight, codes, scale, zero)), strict=True)
        fitted = [refit(w, self.moments, q, s, z) for w, q, s, z in parts]
        scale, zero = (torch.cat(side) for side in zip(*fitted, strict=True))
        found = codes.to(torch.uint8)
        return QuantMatrix(found, scale, zero, self.group, code_bits(self.top))


def _damped(moments: Tensor) -> Tensor:
    """With a floor under the diagonal, so that inputs that were never seen cost something."""
    if not bool(torch.isfinite(moments).all()):
        raise RiverError("the calibration text gives inputs that are not finite; use method 'hqq'.")
    damped = moments.clone()
    mean = damped.diagonal().mean().clamp(min=1e-12)
    damped.diagonal().add_(DAMP * mean)
    return damped


def _inverse_factor(moments: Tensor) -> Tensor:
    """Upper triangular U with U^T U = inverse of `moments`."""
    lower = torch.linalg.cholesky(moments.double())
    upper: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)
    return upper.float()


def fit_groups(weight: Tensor, importance: Tensor, group: int, top: int) -> tuple[Tensor, Tensor]:
    """Scale and zero fp32 [N, K / group] of least error, each column weighed by its importance [K].

    Of several shrunken ranges the best; then scale and zero by least squares to the codes, in turn.
    """
    n, k = weight.shape
    w = weight.view(n, k // group, group)
    h = importance.view(1, -1, group)
    high, low = w.amax(-1).clamp(min=0), w.amin(-1).clamp(max=0)
    best = torch.full_like(high, torch.inf)
    scale, zero = torch.ones_like(high), torch.zeros_like(high)

    def offer(s: Tensor, z: Tensor) -> None:
        q = _codes(w, s.unsqueeze(-1), z.unsqueeze(-1), top)
        error = (((q - z.unsqueeze(-1)) * s.unsqueeze(-1) - w).square() * h).sum(-1)
        better = error < best
        for old, new in ((best, error), (scale, s), (zero, z)):
            old[better] = new[better]

    for shrink in SHRINKS:
        s = ((high - low) * shrink / top).clamp(min=1e-8)
        offer(s, -low * shrink / s)
    for _ in range(REFITS):
        q = _codes(w, scale.unsqueeze(-1), zero.unsqueeze(-1), top)
        total = h.sum(-1)
        mean_q, mean_w = (q * h).sum(-1) / total, (w * h).sum(-1) / total
        dq = q - mean_q.unsqueeze(-1)
        covariance = (dq * (w - mean_w.unsqueeze(-1)) * h).sum(-1)
        s = covariance / (dq.square() * h).sum(-1).clamp(min=1e-12)
        s = torch.where(s > 1e-8, s, scale)
        offer(s, mean_q - mean_w / s)
    return scale, zero


def _codes(w: Tensor, scale: Tensor, zero: Tensor, top: int) -> Tensor:
    return (w / scale + zero).round_().clamp_(0, top)


def _round(w: Tensor, factor: Tensor, scale: Tensor, zero: Tensor, top: int) -> Tensor:
    """Round the columns of w [N, K] in order; what each loses is put on those that follow.

    scale and zero are [N, K], a column's own.
    """
    codes = torch.empty_like(w)
    for start in range(0, w.shape[1], BLOCK):
        block = w[:, start : start + BLOCK]
        width = block.shape[1]
        own = factor[start : start + width, start : start + width]
        errors = torch.empty_like(block)
        for c in range(width):
            at = start + c
            q = _codes(block[:, c], scale[:, at], zero[:, at], top)
            codes[:, at] = q
            lost = (block[:, c] - (q - zero[:, at]) * scale[:, at]) / own[c, c]
            errors[:, c] = lost
            block[:, c + 1 :] -= torch.outer(lost, own[c, c + 1 :])
        w[:, start + width :] -= errors @ factor[start : start + width, start + width :]
    return codes


def refit(
    weight: Tensor, moments: Tensor, codes: Tensor, scale: Tensor, zero: Tensor
) -> tuple[Tensor, Tensor]:
    """Scales and zeros of least output error for fixed codes [N, K], all groups of a row at once.

    With W = scale * codes + shift, shift = -scale * zero, this is a linear problem of 2 K / group
    unknowns per row. A row that it does not improve keeps what it has.
    """
    n, groups = scale.shape
    size = codes.shape[1] // groups
    q = codes.view(n, groups, size)
    h = moments.view(groups, size, groups, size)
    qh = torch.einsum("nga,gahb->nghb", q, h)  # [N, G, G, size]
    ones = h.sum((1, 3))
    quad = torch.empty(n, 2, groups, 2, groups)
    quad[:, 0, :, 0] = (qh * q.unsqueeze(1)).sum(-1)
    quad[:, 0, :, 1] = qh.sum(-1)
    quad[:, 1, :, 0] = quad[:, 0, :, 1].transpose(1, 2)
    quad[:, 1, :, 1] = ones
    wh = (weight @ moments).view(n, groups, size)
    right = torch.stack([(wh * q).sum(-1), wh.sum(-1)], 1).flatten(1)
    quad = quad.view(n, 2 * groups, 2 * groups)
    ridge = 1e-6 * quad.diagonal(dim1=1, dim2=2).mean(1)
    quad = quad + torch.diag_embed(ridge.unsqueeze(1).expand(-1, 2 * groups))
    solved = torch.linalg.solve(quad.double(), right.double()).float().view(n, 2, groups)
    new_scale, shift = solved[:, 0], solved[:, 1]
    new_zero = -shift / torch.where(new_scale.abs() > 1e-8, new_scale, torch.ones_like(new_scale))
    fits = (new_scale > 1e-8).all(1) & torch.isfinite(new_zero).all(1)
    better = fits & (
        output_error(weight, moments, codes, new_scale, new_zero)
        < output_error(weight, moments, codes, scale, zero)
    )
    keep = better.unsqueeze(1)
    return torch.where(keep, new_scale, scale), torch.where(keep, new_zero, zero)


def output_error(
    weight: Tensor, moments: Tensor, codes: Tensor, scale: Tensor, zero: Tensor
) -> Tensor:
    """Mean squared error of the products of each row, fp32 [N]."""
    n, groups = scale.shape
    grouped = codes.view(n, groups, -1)
    dense = ((grouped - zero.unsqueeze(-1)) * scale.unsqueeze(-1)).view_as(weight)
    lost = dense - weight
    return ((lost @ moments) * lost).sum(1)
