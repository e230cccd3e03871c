"""Triton: RoPE with the write of keys and values, and the similarity of a layer's two ends.

Position and limit are read from device memory, so that a captured graph never burns them in.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def turn_and_write_heads(
    qkv, cos, sin, position, queries, keys, values, heads, kv_heads, capacity, HALF: tl.constexpr
):
    """Head `program_id(0)` of q, k, v: turned where it is not a value, stored where it belongs."""
    head = tl.program_id(0)
    slot = tl.load(position)
    half = tl.arange(0, HALF)
    first = tl.load(qkv + head * 2 * HALF + half)
    second = tl.load(qkv + head * 2 * HALF + HALF + half)
    if head < heads + kv_heads:
        c = tl.load(cos + slot * 2 * HALF + half)
        s = tl.load(sin + slot * 2 * HALF + half)
        turned = first * c - second * s
        second = second * c + first * s
        first = turned
    if head < heads:
        tl.store(queries + head * 2 * HALF + half, first)
        tl.store(queries + head * 2 * HALF + HALF + half, second)
    else:
        kv_head = (head - heads) % kv_heads
        place = (kv_head * capacity + slot) * 2 * HALF + half
        kind = keys.dtype.element_ty
        if head < heads + kv_heads:
            tl.store(keys + place, first.to(kind))
            tl.store(keys + place + HALF, second.to(kind))
        else:
            tl.store(values + place, first.to(kind))
            tl.store(values + place + HALF, second.to(kind))


@triton.jit
def compare_ends(before, after, limit, similarity, flag, columns, BLOCK: tl.constexpr):
    """Cosine of before and after [columns], whether it is above the limit; one program."""
    dot = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    other = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        b = tl.load(before + column, mask=column < columns, other=0.0)
        a = tl.load(after + column, mask=column < columns, other=0.0)
        dot += b * a
        squares += b * b
        other += a * a
    norms = tl.sqrt(tl.sum(squares, axis=0)) * tl.sqrt(tl.sum(other, axis=0))
    found = tl.sum(dot, axis=0) / norms
    found = tl.where(found > 1.0, 1.0, found)  # these keep what is not a number
    found = tl.where(found < -1.0, -1.0, found)
    tl.store(similarity, found)
    tl.store(flag, (found > tl.load(limit)).to(tl.int32))
