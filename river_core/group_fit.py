"""Scales and zeros of groups of columns: fitted to weights, and once more to codes.

Works on fp32 matrices [N, K] and the second moments [K, K] of their inputs; knows nothing of how
codes are found. In pieces of rows that stay in a processor's cache: no row depends on another.
"""

from __future__ import annotations

import torch
from torch import Tensor

SHRINKS = tuple(1.0 - 0.05 * n for n in range(7))  # of a group's range, tried in turn
REFITS = 2  # of a group's scale and zero to its codes
NUMBERS = 1 << 16  # of a piece of the matrix when groups are fitted one by one
REFIT_NUMBERS = 1 << 18  # ... and when all groups of a row are, at once
SMALLEST = 1e-8  # of a scale

Grid = tuple[Tensor, Tensor]  # scale, zero: fp32 [N, K / group] each


def fit_groups(weight: Tensor, importance: Tensor, group: int, top: int) -> Grid:
    """Scale and zero of least error, each column weighed by its importance [K].

    Of several shrunken ranges the best; then scale and zero by least squares to the codes, in turn.
    """
    h = importance.view(1, -1, group)
    pieces = weight.split(max(1, NUMBERS // weight.shape[1]))
    found = [_fit(w.view(len(w), -1, group), h, top) for w in pieces]
    scale, zero = (torch.cat(side) for side in zip(*found, strict=True))
    return scale, zero


def _fit(w: Tensor, h: Tensor, top: int) -> Grid:
    """`fit_groups` of w [N, groups, size]."""
    high, low = w.amax(-1).clamp(min=0), w.amin(-1).clamp(max=0)
    scale, zero = torch.ones_like(high), torch.zeros_like(high)
    best = torch.full_like(high, torch.inf)
    exact, codes = torch.empty_like(w), torch.empty_like(w)

    def encode(s: Tensor, z: Tensor) -> None:
        torch.addcmul(z.unsqueeze(-1), w, (1 / s).unsqueeze(-1), out=exact)
        torch.round(exact, out=codes)
        codes.clamp_(0, top)

    def offer(s: Tensor, z: Tensor) -> None:
        encode(s, z)
        error = codes.sub_(exact).square_().mul_(h).sum(-1) * s * s
        better = error < best
        for old, new in ((best, error), (scale, s), (zero, z)):
            old[better] = new[better]

    for shrink in SHRINKS:
        s = ((high - low) * shrink / top).clamp(min=SMALLEST)
        offer(s, -low * shrink / s)
    total = h.sum(-1)
    mean = (w * h).sum(-1) / total
    weighed = (w - mean.unsqueeze(-1)) * h
    for _ in range(REFITS):
        encode(scale, zero)
        middle = (codes * h).sum(-1) / total
        spread = codes.sub_(middle.unsqueeze(-1))
        covariance = (spread * weighed).sum(-1)
        s = covariance / spread.square_().mul_(h).sum(-1).clamp(min=1e-12)
        s = torch.where(s > SMALLEST, s, scale)
        offer(s, middle - mean / s)
    return scale, zero


class Refit:
    """Scales and zeros of least output error for given codes, all groups of a row at once.

    With W = scale * codes + shift, shift = -scale * zero, this is a linear problem of 2 K / group
    unknowns u per row: least u^T A u - 2 b^T u. For one weight [N, K] and any codes.
    """

    def __init__(self, weight: Tensor, moments: Tensor) -> None:
        self._moments = moments
        self._products = weight @ moments

    def __call__(self, codes: Tensor, scale: Tensor, zero: Tensor) -> Grid:
        """Scale and zero for codes [N, K]; a row that they do not improve keeps what it has."""
        rows = max(1, REFIT_NUMBERS // codes.shape[1])
        pieces = zip(*(t.split(rows) for t in (self._products, codes, scale, zero)), strict=True)
        found = [self._piece(*piece) for piece in pieces]
        new_scale, new_zero = (torch.cat(side) for side in zip(*found, strict=True))
        return new_scale, new_zero

    def _piece(self, products: Tensor, codes: Tensor, scale: Tensor, zero: Tensor) -> Grid:
        a = _quadratic(self._moments, codes, scale.shape[1]).double()
        grouped = [t.view(*scale.shape, -1) for t in (products, codes)]
        b = torch.cat([(grouped[0] * grouped[1]).sum(-1), grouped[0].sum(-1)], 1).double()
        ridge = 1e-6 * a.diagonal(dim1=1, dim2=2).mean(1, keepdim=True)
        steady = a.clone()
        steady.diagonal(dim1=1, dim2=2).add_(ridge)
        new = torch.linalg.solve(steady, b)
        old = torch.cat([scale, -scale * zero], 1).double()
        new_scale, shift = new.float().chunk(2, 1)
        new_zero = -shift / torch.where(new_scale.abs() > SMALLEST, new_scale, 1.0)
        fits = (new_scale > SMALLEST).all(1) & torch.isfinite(new_zero).all(1)
        keep = (fits & (_objective(a, b, new) < _objective(a, b, old))).unsqueeze(1)
        return torch.where(keep, new_scale, scale), torch.where(keep, new_zero, zero)


def _objective(a: Tensor, b: Tensor, u: Tensor) -> Tensor:
    """u^T A u - 2 b^T u of every row."""
    return ((a @ u.unsqueeze(2)).squeeze(2) - 2 * b).mul_(u).sum(1)


def _quadratic(moments: Tensor, codes: Tensor, groups: int) -> Tensor:
    """A of every row: [N, 2 G, 2 G] over scales, then shifts."""
    n, k = codes.shape
    size = k // groups
    q = codes.view(n, groups, size)
    h = moments.view(groups, size, groups, size)
    found = torch.empty(n, 2, groups, 2, groups, device=codes.device)
    found[:, 1, :, 1] = h.sum((1, 3))
    across = h.sum(3)
    for g in range(groups):
        start = g * size
        product = (q[:, g] @ moments[start : start + size, start:]).view(n, groups - g, size)
        both = product.mul_(q[:, g:]).sum(-1)
        found[:, 0, g, 0, g:] = both
        found[:, 0, g:, 0, g] = both
        mixed = q[:, g] @ across[g]
        found[:, 0, g, 1] = mixed
        found[:, 1, :, 0, g] = mixed
    return found.view(n, 2 * groups, 2 * groups)
