"""The parts of a one-row step beside its products, as Triton kernels: torch_step.py's functions.

Only execution/ imports this file, and only where it is used, because it imports triton.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from .triton_attention import attend_joined, attend_parts, turn_and_attend_heads
from .triton_loading import require_power
from .triton_rows import compare_ends, end_of_layer, turn_and_write_heads

COMPARED = 1024  # columns that `compare` takes at a time
TILE = 4096  # products of queries and keys that a program holds at a time
SPLIT_SLOTS, MOST_SPLITS = 128, 64  # a split of the cache's capacity is at least this many slots


def turn_and_write(
    qkv: Tensor,
    rope: tuple[Tensor, Tensor],
    position: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
) -> None:
    """Turn queries and keys by RoPE; store queries, and keys and values at `position`.

    qkv fp32 [(H + 2 kv_heads) * D]; rope (cos, sin) fp32 [n, D], the second half of a row repeating
    the first; position int64 [1]; queries fp32 [H, D]; keys, values [kv_heads, capacity, D] of one
    layer, 16-bit or fp32. D is a power of two, else KernelUnavailable.
    """
    (heads, dim), (kv_heads, capacity, _) = queries.shape, keys.shape
    require_power(dim)
    caches, sizes = (queries, keys, values), (heads, kv_heads, capacity)
    with torch.cuda.device_of(qkv):  # Triton launches on the current device
        turn_and_write_heads[(heads + 2 * kv_heads,)](
            qkv, *rope, position, *caches, *sizes, HALF=dim // 2, num_warps=1
        )


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    out: Tensor,
    *,
    scale: float,
    window: int | None = None,
) -> None:
    """Attention of queries fp32 [H, D] over slots 0..position, or the last `window`, into `out`.

    keys, values [kv_heads, capacity, D]; out fp32 [H, D]; scale multiplies the scores. D is a power
    of two, else KernelUnavailable.
    """
    (heads, dim), (kv_heads, capacity, _) = queries.shape, keys.shape
    require_power(dim)
    tile = tile_of(heads // kv_heads, dim, capacity)
    parts = queries.new_empty(heads, tile["SPLITS"], dim)
    bests, totals = queries.new_empty(2, heads, tile["SPLITS"]).unbind(0)
    sizes = capacity, capacity if window is None else window
    shared = heads // kv_heads
    with torch.cuda.device_of(queries):
        attend_parts[(kv_heads, tile["SPLITS"])](
            *(queries, keys, values, position, parts, bests, totals, *sizes, scale),
            **(tile | {"QUERIES": shared, "DIM": dim, "num_warps": 4}),
        )
        attend_joined[(heads,)](
            parts, bests, totals, out, SPLITS=tile["SPLITS"], DIM=dim, num_warps=1
        )


def tile_of(shared: int, dim: int, capacity: int) -> dict[str, int]:
    """How attention is cut, by shape alone: query rows, slots per turn, splits of the slots."""
    rows = triton.next_power_of_2(shared)
    slots = min(64, max(8, TILE // (rows * dim)))
    splits = min(MOST_SPLITS, triton.next_power_of_2(max(1, capacity // SPLIT_SLOTS)))
    return {"SHARED": rows, "SLOTS": slots, "SPLITS": splits}


def compare(before: Tensor, after: Tensor, limit: Tensor, similarity: Tensor, flag: Tensor) -> None:
    """Similarity of a layer's input and output [d] fp32, and whether it is above the limit.

    limit, similarity fp32 [1]; flag int32 [1] becomes 1 where similarity > limit, else 0. Where a
    vector is zero or not finite the similarity is not a number and the flag 0.
    """
    with torch.cuda.device_of(before):
        compare_ends[(1,)](
            before, after, limit, similarity, flag, before.numel(), BLOCK=COMPARED, num_warps=4
        )


def turn_and_attend(
    qkv: Tensor,
    rope: tuple[Tensor, Tensor],
    position: Tensor,
    cached: tuple[Tensor, Tensor],
    arrived: Tensor,
    out: Tensor,
    *,
    scale: float,
    window: int | None = None,
) -> None:
    """As torch_step.py's, in one launch: the last split to arrive joins them.

    arrived int32 [kv_heads] counts the splits: zeros before and after. D is a power of two, else
    KernelUnavailable.
    """
    (heads, dim), (kv_heads, capacity, _) = out.shape, cached[0].shape
    require_power(dim)
    shared = heads // kv_heads
    tile = tile_of(shared, dim, capacity)
    splits = tile["SPLITS"]
    parts = qkv.new_empty(heads, splits, dim)
    bests, totals = qkv.new_empty(2, heads, splits).unbind(0)
    sizes = capacity, capacity if window is None else window
    with torch.cuda.device_of(qkv):
        turn_and_attend_heads[(kv_heads, splits)](
            *(qkv, *rope, position, *cached, parts, bests, totals, arrived, out, *sizes, scale),
            **(tile | {"QUERIES": shared, "DIM": dim, "num_warps": 4}),
        )


def end_layer(
    stream: tuple[Tensor, Tensor, Tensor], inputs: Tensor, limit: Tensor, words: Tensor, slot: int
) -> None:
    """As torch_step.py's, in one launch; `words` int64 [slots] may be pinned host memory."""
    before, hidden, fresh = stream
    with torch.cuda.device_of(hidden):
        end_of_layer[(1,)](
            *(before, hidden, fresh, inputs, limit, words, slot, hidden.numel()),
            BLOCK=COMPARED,
            num_warps=4,
        )
