"""Triton: products of 4-bit weights with a few rows of x, fused with what stands around them.

Codes become numbers without a shift or a conversion each: a nibble in the low 23 bits, under the
exponent of 2^23, is the float 2^23 + code * 16^j exactly, and x takes the factor 16^-j. All
arithmetic is fp32. A norm's factor is the same for all columns: it multiplies the finished sum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_finish import finish, keep_part, weight_rows


@triton.jit
def _four_columns(x, norm, word, column, inside, NORM: tl.constexpr):
    """Sums over nibbles 0..3 of `word` [ROWS, SPANS, 8], and of x and its squares [SPANS, 8]."""
    dot = tl.zeros(word.shape, tl.float32)
    total = tl.zeros(column.shape, tl.float32)
    squares = tl.zeros(column.shape, tl.float32)
    for j in tl.static_range(4):
        value = tl.load(x + column + 8 * j, mask=inside, other=0.0)
        if NORM:
            squares += value * value
            value *= tl.load(norm + column + 8 * j, mask=inside, other=0.0)
        total += value
        lifted = (word & (15 << (4 * j))) | 0x4B000000
        number = lifted.to(tl.float32, bitcast=True) - 8388608.0
        dot += number * (value * (1.0 / 16**j))[None, :, :]
    return dot, total, squares


@triton.jit
def _scaled(dot, total, meta):
    """(dot - zero * total) * scale with scale, zero as fp16 in the halves of meta [ROWS, SPANS]."""
    scale = (meta & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    zero = (meta >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return (dot - zero[:, :, None] * total[None, :, :]) * scale[:, :, None]


@triton.jit
def int4_product(
    x, words, meta, norm, out, residual, parts, part_squares, rows, spans, groups, turns, eps,
    ROWS: tl.constexpr, SPANS: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr,
    NORM: tl.constexpr, RESIDUAL: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """ROWS rows of W with row `program_id(1)` of x, over `turns` turns of SPANS spans."""
    row = weight_rows(rows, ROWS, GATED)[:, None]
    lane = tl.arange(0, 8)
    x += tl.program_id(1) * spans * 64
    acc = tl.zeros([ROWS, SPANS, 8], tl.float32)
    squares = tl.zeros([SPANS, 8], tl.float32)
    first = tl.program_id(2) * turns
    for turn in range(first, first + turns):
        span = turn * SPANS + tl.arange(0, SPANS)
        inside = (span < spans)[:, None]
        column = span[:, None] * 64 + lane[None, :]
        at = (row * spans + span[None, :])[:, :, None] * 8 + lane[None, None, :]
        word = tl.load(words + at, mask=inside[None, :, :], other=0)
        low, low_x, low_squares = _four_columns(x, norm, word, column, inside, NORM)
        high, high_x, high_squares = _four_columns(x, norm, word >> 16, column + 32, inside, NORM)
        squares += low_squares + high_squares
        group = meta + row * groups + span[None, :] * 64 // GROUP
        there = (span < spans)[None, :]
        first_meta = tl.load(group, mask=there, other=0)
        if GROUP == 32:
            acc += _scaled(low, low_x, first_meta)
            acc += _scaled(high, high_x, tl.load(group + 1, mask=there, other=0))
        else:
            acc += _scaled(low + high, low_x + high_x, first_meta)
    y = tl.sum(tl.sum(acc, axis=2), axis=1)
    of_x = tl.sum(tl.sum(squares, axis=1), axis=0)
    if SPLITS == 1:
        columns = spans * 64
        finish(y, of_x, columns, eps, out, residual, rows, ROWS, NORM, RESIDUAL, GATED)
    else:
        keep_part(y, of_x, parts, part_squares, rows, ROWS, NORM)
