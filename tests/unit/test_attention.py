"""Attention of many rows against a row by row reference, on every way that `attend` takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from river_core.block import attend, is_prefix
from river_core.cache import Rows
from river_core.shapes import SHAPES

SHAPE = SHAPES["tiny"].block


def row_by_row(q: Tensor, k: Tensor, v: Tensor, rows: Rows, window: int | None) -> Tensor:
    """Softmax of one row and one head after the other, in float64."""
    shared = q.shape[1] // k.shape[0]
    out = torch.empty(q.shape, dtype=torch.float64)
    for i, position in enumerate(rows.positions):
        first = 0 if window is None else max(0, position + 1 - window)
        for head in range(q.shape[1]):
            keys = k[head // shared, first : position + 1].double()
            values = v[head // shared, first : position + 1].double()
            scores = keys @ q[i, head].double() * q.shape[2] ** -0.5
            out[i, head] = torch.softmax(scores, 0) @ values
    return out.flatten(1).float()


@pytest.mark.parametrize(
    ("first", "count", "window", "causal"),
    [
        (0, 37, None, True),
        (0, 2, None, True),
        (0, 37, 40, True),
        (0, 37, 37, True),
        (0, 37, 36, False),
        (0, 37, 5, False),
        (20, 17, None, False),  # a piece of a longer prompt
        (36, 1, None, False),
    ],
)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
def test_attention_is_that_of_each_row(
    first: int, count: int, window: int | None, causal: bool, heads: int, kv_heads: int
) -> None:
    made = torch.Generator().manual_seed(first + count + heads)
    rows = Rows((1,) * count, tuple(range(first, first + count)))
    q = torch.randn(count, heads, 16, generator=made)
    k, v = (torch.randn(kv_heads, first + count, 16, generator=made) for _ in range(2))
    shape = replace(SHAPE, heads=heads, kv_heads=kv_heads, head_dim=16, window=window)
    assert count == 1 or is_prefix(rows, k.shape[1], window) == causal
    found = attend(q, k, v, rows, shape)
    torch.testing.assert_close(found, row_by_row(q, k, v, rows, window), atol=2e-6, rtol=1e-5)
