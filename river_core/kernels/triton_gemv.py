"""Triton: products of 16-bit weights with a few rows of x, fused with what stands around them.

Weights are read 16 bytes at a time and become fp32 at once; all arithmetic is fp32. A norm's factor
is the same for all columns: it multiplies the finished sum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_finish import finish, keep_part, weight_rows


@triton.jit
def dense_product(
    x, weight, norm, out, residual, parts, part_squares, rows, columns, turns, eps,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr,
    NORM: tl.constexpr, RESIDUAL: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """ROWS rows of W with row `program_id(1)` of x, over `turns` turns of COLUMNS columns."""
    row = weight_rows(rows, ROWS, GATED).to(tl.int64)[:, None]
    x += tl.program_id(1) * columns
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    squares = tl.zeros([COLUMNS], tl.float32)
    first = tl.program_id(2) * turns
    for turn in range(first, first + turns):
        column = turn * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < columns
        w = tl.load(weight + row * columns + column[None, :], mask=inside[None, :], other=0.0)
        value = tl.load(x + column, mask=inside, other=0.0)
        if NORM:
            squares += value * value
            value *= tl.load(norm + column, mask=inside, other=0.0)
        acc += w.to(tl.float32) * value[None, :]
    y = tl.sum(acc, axis=1)
    of_x = tl.sum(squares, axis=0)
    if SPLITS == 1:
        finish(y, of_x, columns, eps, out, residual, rows, ROWS, NORM, RESIDUAL, GATED)
    else:
        keep_part(y, of_x, parts, part_squares, rows, ROWS, NORM)
