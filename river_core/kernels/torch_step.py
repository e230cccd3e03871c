"""The parts of a one-row step in plain torch: what triton_step.py is held to.

The position and the limit of an exit are device tensors, and outputs are given: nothing here waits
for the device or makes a tensor that a captured graph would have to keep.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Linear
from .gemv_plan import PLAIN, Fused


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
    layer, 16-bit or fp32.
    """
    (heads, dim), kv_heads = queries.shape, keys.shape[0]
    every = qkv.view(heads + 2 * kv_heads, dim)
    cos, sin = (table.index_select(0, position) for table in rope)
    half = dim // 2
    turned = torch.cat((-every[:, half:], every[:, :half]), dim=-1)
    rotated = every * cos + turned * sin
    queries.copy_(rotated[:heads])
    written = rotated[heads : heads + kv_heads].to(keys.dtype), every[heads + kv_heads :]
    keys.index_copy_(1, position, written[0].unsqueeze(1))
    values.index_copy_(1, position, written[1].to(values.dtype).unsqueeze(1))


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

    keys, values [kv_heads, capacity, D]; out fp32 [H, D]; scale multiplies the scores.
    """
    slots = torch.arange(keys.shape[1], device=keys.device)
    seen = slots <= position
    if window is not None:
        seen &= slots > position - window
    grouped = queries.view(1, keys.shape[0], -1, queries.shape[1])
    unseen = ~seen[:, None]  # whatever stands there, not a number too, counts as nothing
    k, v = (side.float().masked_fill(unseen, 0.0).unsqueeze(0) for side in (keys, values))
    mask = seen.view(1, 1, 1, -1)
    found = F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scale)
    out.copy_(found.view_as(out))


def compare(before: Tensor, after: Tensor, limit: Tensor, similarity: Tensor, flag: Tensor) -> None:
    """Similarity of a layer's input and output [d] fp32, and whether it is above the limit.

    limit, similarity fp32 [1]; flag int32 [1] becomes 1 where similarity > limit, else 0. Where a
    vector is zero or not finite the similarity is not a number and the flag 0.
    """
    norms = torch.linalg.vector_norm(before) * torch.linalg.vector_norm(after)
    similarity.copy_(((before * after).sum() / norms).clamp(-1.0, 1.0))
    flag.copy_(similarity > limit)


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
    """`turn_and_write` and `attend` in one: the heads' attention fp32 [H, D] into `out`.

    qkv, rope, position, scale and window as there; `cached` keys and values [kv_heads, capacity,
    D]; arrived int32 [kv_heads] is for kernels that count, and is left alone.
    """
    queries = torch.empty_like(out)
    turn_and_write(qkv, rope, position, queries, *cached)
    attend(queries, *cached, position, out, scale=scale, window=window)


def end_layer(
    stream: tuple[Tensor, Tensor, Tensor], inputs: Tensor, limit: Tensor, words: Tensor, slot: int
) -> None:
    """Post a layer's similarity as a word, and move the residual stream on.

    `stream` is (before, hidden, fresh), fp32 [1, d] each: the similarity is of the latter two, then
    hidden becomes before and fresh becomes hidden. inputs int64 [3] holds the step last; limit fp32
    [1]; words int64 [slots]: `slot` gets 31 bits of step, the flag "above the limit" and the bits
    of the similarity.
    """
    before, hidden, fresh = stream
    value, flag = limit.new_empty(1), limit.new_empty(1, dtype=torch.int32)
    compare(hidden, fresh, limit, value, flag)
    bits = value.view(torch.int32).long() & 0xFFFFFFFF
    words[slot : slot + 1] = (inputs[2:3] << 33) | (flag.long() << 32) | bits
    before.copy_(hidden)
    hidden.copy_(fresh)


def product(linear: Linear, x: Tensor, out: Tensor, fused: Fused = PLAIN) -> Tensor:
    """What `linear.project` computes, x fp32 [M, K] into `out` fp32, a step after the other."""
    if fused.norm is not None:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + fused.eps) * fused.norm
    y = linear(x)
    if fused.gated:
        gate, up = y.chunk(2, dim=-1)
        y = F.silu(gate) * up
    return out.copy_(y if fused.residual is None else y + fused.residual)
