"""The parts of a one-row step beside its products, in plain torch: what triton_step.py is held to.

The position and the limit of an exit are device tensors, and outputs are given: nothing here waits
for the device or makes a tensor that a captured graph would have to keep.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
