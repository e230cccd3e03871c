"""Triton: attention of one row over the slots up to a position that the device holds.

The slots are split over programs; a second launch joins the parts in order. The query heads that
share a KV head are rows of one program, so that keys and values are read once.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend_parts(
    query, keys, values, position, parts, bests, totals, capacity, window, scale,
    QUERIES: tl.constexpr, SHARED: tl.constexpr, DIM: tl.constexpr, SLOTS: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Unnormalised sums [QUERIES, DIM] of KV head `program_id(0)` over split `program_id(1)`."""
    head = tl.program_id(0)
    length = tl.load(position).to(tl.int32) + 1
    first = tl.maximum(length - window, 0)
    turns = tl.cdiv(tl.cdiv(length - first, SLOTS), SPLITS)
    row, dim = tl.arange(0, SHARED), tl.arange(0, DIM)
    own = (head * QUERIES + row)[:, None]
    there = (row < QUERIES)[:, None]
    q = tl.load(query + own * DIM + dim[None, :], mask=there, other=0.0) * scale
    best = tl.full([SHARED], float("-inf"), tl.float32)
    total = tl.zeros([SHARED], tl.float32)
    acc = tl.zeros([SHARED, DIM], tl.float32)
    start = first + tl.program_id(1) * turns * SLOTS
    for turn in range(turns):
        slot = start + turn * SLOTS + tl.arange(0, SLOTS)
        held = slot < length
        at = (head * capacity + slot)[:, None] * DIM + dim[None, :]
        k = tl.load(keys + at, mask=held[:, None], other=0.0).to(tl.float32)
        v = tl.load(values + at, mask=held[:, None], other=0.0).to(tl.float32)
        score = tl.sum(q[:, None, :] * k[None, :, :], axis=2)
        score = tl.where(held[None, :], score, float("-inf"))
        top = tl.maximum(best, tl.max(score, axis=1))
        base = tl.where(top == float("-inf"), 0.0, top)  # a split that holds no slot
        weight = tl.exp(score - base[:, None])
        decay = tl.exp(best - base)
        total = total * decay + tl.sum(weight, axis=1)
        acc = acc * decay[:, None] + tl.sum(weight[:, :, None] * v[None, :, :], axis=1)
        best = top
    place = own * SPLITS + tl.program_id(1)
    tl.store(parts + place * DIM + dim[None, :], acc, mask=there)
    tl.store(bests + place, best[:, None], mask=there)
    tl.store(totals + place, total[:, None], mask=there)


@triton.jit
def attend_joined(parts, bests, totals, out, SPLITS: tl.constexpr, DIM: tl.constexpr):
    """Join the splits of query head `program_id(0)`."""
    place = tl.program_id(0) * SPLITS + tl.arange(0, SPLITS)
    dim = tl.arange(0, DIM)
    best = tl.load(bests + place)
    share = tl.exp(best - tl.max(best, axis=0))
    total = tl.sum(tl.load(totals + place) * share, axis=0)
    part = tl.load(parts + place[:, None] * DIM + dim[None, :])
    joined = tl.sum(part * share[:, None], axis=0) / total
    tl.store(out + tl.program_id(0) * DIM + dim, joined)
