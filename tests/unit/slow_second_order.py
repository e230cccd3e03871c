"""The slow, obvious form of error compensation: row by row, column by column, in fp64."""

from __future__ import annotations

import torch
from torch import Tensor


def nearest(value: Tensor, scale: Tensor, zero: Tensor, top: int) -> Tensor:
    return (value / scale + zero).round().clamp(0, top)


def round_columns(w: Tensor, moments: Tensor, scale: Tensor, zero: Tensor, top: int) -> Tensor:
    """Codes [N, K]: after each column the best real values for all that are not rounded yet."""
    n, k = w.shape
    codes = torch.empty(n, k, dtype=torch.float64)
    for row in range(n):
        left = w[row].double().clone()
        for c in range(k):
            codes[row, c] = nearest(left[c], scale[row, c], zero[row, c], top)
            value = (codes[row, c] - zero[row, c]) * scale[row, c]
            rest = torch.linalg.inv(moments[c:, c:].double())
            left[c:] -= (left[c] - value) / rest[0, 0] * rest[0]
    return codes


def normal_equations(moments: Tensor, codes: Tensor, groups: int) -> Tensor:
    """[N, 2 G, 2 G] over scales, then shifts: B moments B^T, a row of B per unknown."""
    n, k = codes.shape
    found = torch.empty(n, 2 * groups, 2 * groups, dtype=torch.float64)
    for row in range(n):
        b = torch.zeros(2, groups, k, dtype=torch.float64)
        for g in range(groups):
            own = slice(g * k // groups, (g + 1) * k // groups)
            b[0, g, own] = codes[row, own].double()
            b[1, g, own] = 1
        b = b.flatten(0, 1)
        found[row] = b @ moments.double() @ b.T
    return found


def output_error(
    weight: Tensor, moments: Tensor, codes: Tensor, scale: Tensor, zero: Tensor
) -> Tensor:
    """Mean squared error of the products of each row, fp32 [N]."""
    n, groups = scale.shape
    grouped = codes.view(n, groups, -1)
    dense = ((grouped - zero.unsqueeze(-1)) * scale.unsqueeze(-1)).view_as(weight)
    lost = dense - weight
    return ((lost @ moments) * lost).sum(1)
