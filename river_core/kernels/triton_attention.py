"""Triton: attention of one row over the slots up to a position that the device holds.

The slots are split over programs; a second launch joins the parts in order, or, where one launch
does all, the program that arrives last. The query heads that share a KV head are rows of one
program, so that keys and values are read once.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _gather(
    q, keys, values, base, start, end, turns, best, total, acc,
    DIM: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Add `turns` times SLOTS slots from `start`, those before `end`, to what q has gathered.

    `base` is the first slot of the KV head; best and total [SHARED] and acc [SHARED, DIM] are the
    greatest score, the sum of weights and that of weighted values.
    """
    dim = tl.arange(0, DIM)
    for turn in range(turns):
        slot = start + turn * SLOTS + tl.arange(0, SLOTS)
        held = slot < end
        at = (base + slot)[:, None] * DIM + dim[None, :]
        k = tl.load(keys + at, mask=held[:, None], other=0.0).to(tl.float32)
        v = tl.load(values + at, mask=held[:, None], other=0.0).to(tl.float32)
        score = tl.sum(q[:, None, :] * k[None, :, :], axis=2)
        score = tl.where(held[None, :], score, float("-inf"))
        top = tl.maximum(best, tl.max(score, axis=1))
        reference = tl.where(top == float("-inf"), 0.0, top)  # a split that holds no slot
        weight = tl.exp(score - reference[:, None])
        decay = tl.exp(best - reference)
        total = total * decay + tl.sum(weight, axis=1)
        acc = acc * decay[:, None] + tl.sum(weight[:, :, None] * v[None, :, :], axis=1)
        best = top
    return best, total, acc


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
    best, total, acc = _gather(
        q, keys, values, head * capacity, start, length, turns, best, total, acc, DIM, SLOTS
    )
    place = own * SPLITS + tl.program_id(1)
    tl.store(parts + place * DIM + dim[None, :], acc, mask=there)
    tl.store(bests + place, best[:, None], mask=there)
    tl.store(totals + place, total[:, None], mask=there)


@triton.jit
def _join(parts, bests, totals, out, head, SPLITS: tl.constexpr, DIM: tl.constexpr):
    """The splits of a query head, weighed and added in order."""
    place = head * SPLITS + tl.arange(0, SPLITS)
    dim = tl.arange(0, DIM)
    best = tl.load(bests + place)
    share = tl.exp(best - tl.max(best, axis=0))
    total = tl.sum(tl.load(totals + place) * share, axis=0)
    part = tl.load(parts + place[:, None] * DIM + dim[None, :])
    joined = tl.sum(part * share[:, None], axis=0) / total
    tl.store(out + head * DIM + dim, joined)


@triton.jit
def attend_joined(parts, bests, totals, out, SPLITS: tl.constexpr, DIM: tl.constexpr):
    """Join the splits of query head `program_id(0)`."""
    _join(parts, bests, totals, out, tl.program_id(0), SPLITS, DIM)


@triton.jit
def _turned(qkv, cos, sin, head, slot, dim, DIM: tl.constexpr):
    """Heads `head` of qkv after RoPE at `slot`, in the shape of `dim` against `head`."""
    half: tl.constexpr = DIM // 2
    own = tl.load(qkv + head * DIM + dim)
    other = tl.load(qkv + head * DIM + (dim + half) % DIM)
    other = tl.where(dim < half, -other, other)
    return own * tl.load(cos + slot * DIM + dim) + other * tl.load(sin + slot * DIM + dim)


@triton.jit
def turn_and_attend_heads(
    qkv, cos, sin, position, keys, values, parts, bests, totals, arrived, out,
    capacity, window, scale,
    QUERIES: tl.constexpr, SHARED: tl.constexpr, DIM: tl.constexpr, SLOTS: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """RoPE, the write at the position and attention: KV head `program_id(0)`, split `(1)`.

    The new key and value never come back from memory: the first split holds them, rounded as they
    are stored, beside its share of the slots before. The last split of a head to arrive joins them,
    in their order, so that the result does not depend on which one that is.
    """
    head, split = tl.program_id(0), tl.program_id(1)
    kv_heads = tl.num_programs(0)
    slot = tl.load(position).to(tl.int32)
    first = tl.maximum(slot + 1 - window, 0)
    row, dim = tl.arange(0, SHARED), tl.arange(0, DIM)
    own = tl.minimum(head * QUERIES + row, kv_heads * QUERIES - 1)[:, None]
    q = _turned(qkv, cos, sin, own, slot, dim[None, :], DIM) * scale
    kind = keys.dtype.element_ty
    key = _turned(qkv, cos, sin, kv_heads * QUERIES + head, slot, dim, DIM).to(kind)
    value = tl.load(qkv + (kv_heads * (QUERIES + 1) + head) * DIM + dim).to(kind)
    place = (head * capacity + slot) * DIM + dim
    tl.store(keys + place, key, mask=split == 0)
    tl.store(values + place, value, mask=split == 0)
    new = tl.sum(q * key.to(tl.float32)[None, :], axis=1)
    best = tl.where(split == 0, new, float("-inf"))
    total = tl.where(split == 0, 1.0, tl.zeros([SHARED], tl.float32))
    acc = tl.where(split == 0, value.to(tl.float32)[None, :], tl.zeros([SHARED, DIM], tl.float32))
    turns = tl.cdiv(tl.cdiv(slot - first, SLOTS), SPLITS)
    start = first + split * turns * SLOTS
    best, total, acc = _gather(
        q, keys, values, head * capacity, start, slot, turns, best, total, acc, DIM, SLOTS
    )
    query = (head * QUERIES + row)[:, None]
    there = (row < QUERIES)[:, None]
    if SPLITS == 1:
        tl.store(out + query * DIM + dim[None, :], acc / total[:, None], mask=there)
    else:
        part = query * SPLITS + split
        tl.store(parts + part * DIM + dim[None, :], acc, mask=there)
        tl.store(bests + part, best[:, None], mask=there)
        tl.store(totals + part, total[:, None], mask=there)
        tl.debug_barrier()  # all threads' parts are written before this one is counted
        count = tl.atomic_add(arrived + head, 1, sem="acq_rel")
        tl.debug_barrier()
        if count == SPLITS - 1:
            tl.store(arrived + head, 0)
            for n in range(QUERIES):
                _join(parts, bests, totals, out, head * QUERIES + n, SPLITS, DIM)
