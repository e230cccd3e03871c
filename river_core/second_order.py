"""Second-order error compensation: columns are rounded one by one, the rest makes up for each.

GPTQ (arXiv 2210.17323) with static groups: each group's scale and zero are fixed first, so columns
may be taken in any order and the kernels' layout stays; at the end all scales and zeros of a row
are fitted once more to its codes. Works on one matrix and the second moments of its inputs; knows
nothing of layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .errors import RiverError
from .group_fit import Grid, Refit, fit_groups
from .kernels.base import QuantMatrix, code_bits

DAMP = 0.01  # of the mean second moment, added to all
SHRINK = 0.5  # what two channels have in common is halved: in a text this short much is chance
OUTER, INNER = 128, 16  # columns between two updates of all that follow, and of the outer block


class Compensation:
    """Rounds matrices that share their inputs, in groups of `group` with codes 0..`top`.

    `moments` fp32 [K, K] is the mean of x x^T over the inputs x. Raises RiverError where it is not
    finite.
    """

    def __init__(self, moments: Tensor, group: int, top: int) -> None:
        self.group, self.top = group, top
        self.moments = steadied(moments)
        self._order = torch.argsort(self.moments.diagonal(), descending=True)  # what matters most
        self._factor = inverse_factor(self.moments[self._order][:, self._order])

    def solve(self, weight: Tensor) -> QuantMatrix:
        """Codes of fp32 [N, K] that keep its products with its inputs, not its numbers."""
        grid = fit_groups(weight, self.moments.diagonal(), self.group, self.top)
        scale, zero = self._sides(grid)
        found = round_columns(self._columns(weight), self._factor, scale, zero, self.top)
        codes = self._rows(found)
        grid = Refit(weight, self.moments)(codes, *grid)
        return QuantMatrix(codes.to(torch.uint8), *grid, self.group, code_bits(self.top))

    def _columns(self, matrix: Tensor) -> Tensor:
        """[N, K] -> [K, N], a column of the matrix in one piece, in the order they are taken."""
        return matrix.t()[self._order].contiguous()

    def _rows(self, columns: Tensor) -> Tensor:
        """Back to [N, K] in the matrix's own order."""
        rows = torch.empty_like(columns)
        rows[self._order] = columns
        return rows.t().contiguous()

    def _sides(self, grid: Grid) -> Grid:
        """A column's own scale and zero, [K, N] each."""
        scale, zero = (side.t()[self._order // self.group].contiguous() for side in grid)
        return scale, zero


def steadied(moments: Tensor) -> Tensor:
    """Moments that a short text can vouch for.

    What two channels have in common is shrunk by SHRINK; a floor under the diagonal gives inputs
    that were never seen a cost.
    """
    if not bool(torch.isfinite(moments).all()):
        raise RiverError("the calibration text gives inputs that are not finite; use method 'hqq'.")
    mean = moments.diagonal().mean().clamp(min=1e-12)
    steady = moments * (1 - SHRINK)
    steady.diagonal().copy_(moments.diagonal() + DAMP * mean)
    return steady


def inverse_factor(moments: Tensor) -> Tensor:
    """Upper triangular U with U^T U = inverse of `moments`, fp32.

    With R upper triangular and R R^T = `moments`, U is the inverse of R. Steadied moments are far
    enough from singular for fp32.
    """
    upper = torch.linalg.cholesky(moments.flip(0, 1)).flip(0, 1)
    one = torch.eye(len(upper), device=upper.device)
    factor: Tensor = torch.linalg.solve_triangular(upper, one, upper=True)
    return factor


def round_columns(w: Tensor, factor: Tensor, scale: Tensor, zero: Tensor, top: int) -> Tensor:
    """Codes of the columns w [K, N], rounded in order; what each loses is put on the next ones.

    factor [K, K] is `inverse_factor`'s; scale and zero are [K, N], a column's own.
    """
    w, inverse, onto = w.clone(), 1 / scale, factor.t().contiguous()
    weighed = scale / factor.diagonal().unsqueeze(1)
    codes, lost = torch.empty_like(w), torch.empty_like(w)
    for start, end, within in _blocks(len(w)):
        for first, last in within:
            for i in range(first, last):
                w[i].addmv_(lost[first:i].t(), onto[i, first:i], alpha=-1)
                exact = torch.addcmul(zero[i], w[i], inverse[i])
                torch.round(exact, out=codes[i]).clamp_(0, top)
                torch.mul(exact.sub_(codes[i]), weighed[i], out=lost[i])
            w[last:end].addmm_(onto[last:end, first:last], lost[first:last], alpha=-1)
        w[end:].addmm_(onto[end:, start:end], lost[start:end], alpha=-1)
    return codes


def _blocks(count: int) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Outer blocks of columns (from, to), each with the inner blocks in it."""
    found = []
    for start in range(0, count, OUTER):
        end = min(start + OUTER, count)
        within = [(c, min(c + INNER, end)) for c in range(start, end, INNER)]
        found.append((start, end, within))
    return found
