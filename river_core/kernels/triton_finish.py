"""Triton: the end of a product (norm factor, gate, residual), inside one program or over splits.

Partial sums of a split product go to memory and are added in order by a second launch: no atomics,
so that a result repeats bit for bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

JOINED_ROWS = 128


@triton.jit
def weight_rows(rows, ROWS: tl.constexpr, GATED: tl.constexpr):
    """Rows of W that a program reads: its own, or a gate and its up in turn; none past the last."""
    at = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1)
    if GATED:
        at = (at % 2) * (rows // 2) + at // 2
    return at


@triton.jit
def finish(
    y, squares, columns, eps, out, residual, rows,
    ROWS: tl.constexpr, NORM: tl.constexpr, RESIDUAL: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Store sums y [ROWS] of row `program_id(1)` of x, given the sum of that row's squares."""
    if NORM:
        y *= tl.rsqrt(squares / columns + eps)
    HALF: tl.constexpr = ROWS // 2 if GATED else ROWS
    if GATED:
        gate, up = tl.split(tl.reshape(y, (HALF, 2)))
        y = gate / (1.0 + tl.exp(-gate)) * up
        rows = rows // 2
    at = tl.program_id(0) * HALF + tl.arange(0, HALF)
    place = tl.program_id(1) * rows + at
    if RESIDUAL:
        y += tl.load(residual + place, mask=at < rows, other=0.0)
    tl.store(out + place, y, mask=at < rows)


@triton.jit
def keep_part(y, squares, parts, part_squares, rows, ROWS: tl.constexpr, NORM: tl.constexpr):
    """Store a split's sums: parts [splits, M, rows], part_squares [splits, M]."""
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
    tl.store(parts + place * rows + at, y, mask=at < rows)
    if NORM and tl.program_id(0) == 0:
        tl.store(part_squares + place, squares)


@triton.jit
def join_parts(
    parts, part_squares, out, residual, rows, columns, eps,
    ROWS: tl.constexpr, SPLITS: tl.constexpr, NORM: tl.constexpr, RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
):  # fmt: skip
    """Add the splits' sums in order and finish."""
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    y = tl.zeros([ROWS], tl.float32)
    squares = 0.0
    for split in tl.static_range(SPLITS):
        place = split * tl.num_programs(1) + tl.program_id(1)
        y += tl.load(parts + place * rows + at, mask=at < rows, other=0.0)
        if NORM:
            squares += tl.load(part_squares + place)
    finish(y, squares, columns, eps, out, residual, rows, ROWS, NORM, RESIDUAL, GATED)
