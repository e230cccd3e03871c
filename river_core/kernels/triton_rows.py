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
def _cosine(dot, squares, other):
    """Of the sums by lane of products and of both sides' squares; within -1..1, or not a number."""
    norms = tl.sqrt(tl.sum(squares, axis=0)) * tl.sqrt(tl.sum(other, axis=0))
    found = tl.sum(dot, axis=0) / norms
    found = tl.where(found > 1.0, 1.0, found)  # these keep what is not a number
    return tl.where(found < -1.0, -1.0, found)


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
    found = _cosine(dot, squares, other)
    tl.store(similarity, found)
    tl.store(flag, (found > tl.load(limit)).to(tl.int32))


@triton.jit(do_not_specialize=["slot"])
def end_of_layer(before, hidden, fresh, inputs, limit, words, slot, columns, BLOCK: tl.constexpr):
    """Post the similarity of hidden and fresh [columns] as word `slot`; hidden becomes before, and
    fresh becomes hidden. One program; `slot` stays a number, so that one binary serves all."""
    dot = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    other = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        b = tl.load(hidden + column, mask=column < columns, other=0.0)
        a = tl.load(fresh + column, mask=column < columns, other=0.0)
        dot += b * a
        squares += b * b
        other += a * a
        tl.store(before + column, b, mask=column < columns)
        tl.store(hidden + column, a, mask=column < columns)
    found = _cosine(dot, squares, other)
    bits = found.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    above = (found > tl.load(limit)).to(tl.int64)
    tl.store(words + slot, (tl.load(inputs + 2) << 33) | (above << 32) | bits)
