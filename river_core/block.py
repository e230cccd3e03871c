"""The decoder block, once, for every family: options, not subclasses.

x is [R, d] fp32, R rows that may stand at any positions. One function runs a backbone layer and a
river layer alike: only the linears differ, and both write the same KV slots. Knows nothing of
exits, policies or how many layers there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .cache import Rows, SharedCache
from .layer import BlockShape, LayerWeights


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x) of any shape; on a CPU the same bits with any number of threads.

    torch's own gives every thread a share of the numbers and rounds those at a share's end, which
    fill no vector, in another way than the others. Its exp and tanh round all alike.
    """
    if x.device.type != "cpu":
        return F.silu(x)
    below = torch.neg(x).exp_().add_(1)
    return torch.div(x, below, out=below)


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its tanh approximation, of any shape; on a CPU made of torch's tanh, see `silu`."""
    if x.device.type != "cpu":
        return F.gelu(x, approximate="tanh")
    inner = x.square().mul_(0.044715).add_(1).mul_(x).mul_(math.sqrt(2 / math.pi))
    return inner.tanh_().add_(1).mul_(x).mul_(0.5)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": silu, "gelu_tanh": gelu_tanh}


@dataclass(frozen=True)
class Rope:
    """RoPE factors fp32 [n, D] of n positions, the second half of a row repeating the first.

    queries fp32 [n] multiplies the turned queries by position (Ministral 3); None: by 1.
    """

    cos: Tensor
    sin: Tensor
    queries: Tensor | None = None

    def at(self, positions: Tensor) -> Rope:
        """The rows of some positions, int64 [R]."""
        queries = None if self.queries is None else self.queries[positions]
        return Rope(self.cos[positions], self.sin[positions], queries)

    def part(self, some: slice) -> Rope:
        """Some of the rows that follow one another, as a view."""
        queries = None if self.queries is None else self.queries[some]
        return Rope(self.cos[some], self.sin[some], queries)

    def to(self, device: torch.device) -> Rope:
        """The same on `device`."""
        queries = None if self.queries is None else self.queries.to(device)
        return Rope(self.cos.to(device), self.sin.to(device), queries)

    @property
    def tensors(self) -> list[Tensor]:
        """All there are, for the memory ledger."""
        return [t for t in (self.cos, self.sin, self.queries) if t is not None]


@dataclass(frozen=True)
class BlockRows:
    """The rows of a pass as a block needs them: where they stand and their RoPE factors."""

    rows: Rows
    ropes: tuple[Rope, ...]

    @classmethod
    def of(cls, rows: Rows, tables: Sequence[Rope]) -> BlockRows:
        """The rows, with their part of the model's tables."""
        at = rows.index(tables[0].cos.device)
        return cls(rows, tuple(table.at(at) for table in tables))

    def part(self, some: slice) -> BlockRows:
        """Some of the rows that follow one another."""
        rows = Rows(self.rows.token_ids[some], self.rows.positions[some])
        return BlockRows(rows, tuple(rope.part(some) for rope in self.ropes))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension, fp32 [R, d]."""
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * scale * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE to x [R, heads, D] with cos, sin [R, D] (Hugging Face's half-rotation layout)."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


def attend(q: Tensor, k: Tensor, v: Tensor, rows: Rows, shape: BlockShape) -> Tensor:
    """Attention of q [R, H, D] over cached k, v [kv_heads, n, D] -> fp32 [R, H * D].

    A single row reads all n slots, several read slots 0..their own position, or the last `window`
    of these. The H / kv_heads query heads that share a KV head are taken as further query rows, so
    that a decode step expands neither K nor V; a whole prompt expands them, and what lies after a
    row is not computed.
    """
    r, heads, dim = q.shape
    shared = heads // k.shape[0]
    k, v = k.float(), v.float()
    if r == 1:
        grouped = q.view(k.shape[0], shared, dim).unsqueeze(0)
        out = F.scaled_dot_product_attention(
            grouped, k.unsqueeze(0), v.unsqueeze(0), scale=shape.scale
        )
        return out.reshape(1, heads * dim)
    if is_prefix(rows, k.shape[1], shape.window):
        return attend_causally(q, k, v, shape)
    slots, at = torch.arange(k.shape[1], device=q.device), rows.index(q.device).unsqueeze(1)
    seen = slots <= at
    if shape.window is not None:
        seen &= slots > at - shape.window
    mask = seen.repeat(shared, 1)
    grouped = q.view(r, k.shape[0], shared, dim).permute(1, 2, 0, 3).reshape(-1, shared * r, dim)
    out = F.scaled_dot_product_attention(
        grouped[None], k[None], v[None], attn_mask=mask, scale=shape.scale
    )
    return out.view(-1, shared, r, dim).permute(2, 0, 1, 3).reshape(r, heads * dim)


def is_prefix(rows: Rows, slots: int, window: int | None) -> bool:
    """Whether the rows are all that stand in these slots, 0.. on, and each sees all before it."""
    whole = rows.contiguous and len(rows) == slots == rows.span
    return whole and (window is None or window >= slots)


def attend_causally(q: Tensor, k: Tensor, v: Tensor, shape: BlockShape) -> Tensor:
    """As `attend` with q [R, H, D] over k, v fp32 [kv_heads, R, D], each row up to its own."""
    r, heads, dim = q.shape
    k, v = (side.repeat_interleave(heads // k.shape[0], 0)[None] for side in (k, v))
    rows = q.transpose(0, 1)[None]
    out = F.scaled_dot_product_attention(rows, k, v, is_causal=True, scale=shape.scale)
    return out[0].transpose(0, 1).reshape(r, heads * dim)


def _normed(x: Tensor, weight: Tensor | None, shape: BlockShape) -> Tensor:
    """x [R, d] after a norm that the layer may not have."""
    return x if weight is None else rms_norm(x, weight, shape.eps)


def _norm_heads(x: Tensor, weight: Tensor, shape: BlockShape) -> Tensor:
    """Queries and keys [R, H + kv_heads, D] after their norms, weight [H + kv_heads, D]."""
    if shape.qk_norm == "head":
        return rms_norm(x, weight, shape.eps)
    sides = (shape.heads, shape.kv_heads)
    whole = zip(x.split(sides, 1), weight.split(sides), strict=True)
    return torch.cat(
        [rms_norm(side.flatten(1), w.flatten(), shape.eps).view_as(side) for side, w in whole], 1
    )


def project(
    x: Tensor, weights: LayerWeights, shape: BlockShape, ropes: Sequence[Rope]
) -> tuple[Tensor, Tensor]:
    """Queries, then keys [R, H + kv_heads, D], turned by RoPE; values [R, kv_heads, D].

    x [R, d] fp32 is the layer's input, before its norm; `ropes` are the rows of the model's tables.
    """
    qkv = weights.qkv(_normed(x, weights.attn_norm, shape))
    if weights.qkv_bias is not None:
        qkv = qkv + weights.qkv_bias
    qkv = qkv.view(x.shape[0], shape.heads + 2 * shape.kv_heads, shape.head_dim)
    queries_keys, values = qkv[:, : -shape.kv_heads], qkv[:, -shape.kv_heads :]
    if weights.qk_norm is not None:
        queries_keys = _norm_heads(queries_keys, weights.qk_norm, shape)
    if shape.rope is None:
        return queries_keys, values
    rope = ropes[shape.rope]
    turned = rotate(queries_keys, rope.cos, rope.sin)
    if rope.queries is not None:
        turned[:, : shape.heads] *= rope.queries[:, None, None]
    return turned, values


def run_block(
    x: Tensor,
    weights: LayerWeights,
    shape: BlockShape,
    at: BlockRows,
    cache: SharedCache,
    slot: int,
) -> Tensor:
    """Run one layer on x [R, d] fp32: writes K and V of cache layer `slot`, returns x' [R, d]."""
    return run_feed_forward(run_attention(x, weights, shape, at, cache, slot), weights, shape)


def run_attention(
    x: Tensor,
    weights: LayerWeights,
    shape: BlockShape,
    at: BlockRows,
    cache: SharedCache,
    slot: int,
) -> Tensor:
    """The attention half of a layer on x [R, d] fp32, with its K and V written -> [R, d]."""
    turned, values = project(x, weights, shape, at.ropes)
    cache.write(slot, at.rows, turned[:, shape.heads :], values)
    k, v = cache.view(slot, at.rows, shape.window)
    q = turned[:, : shape.heads].contiguous()
    return add_attended(x, attend(q, k, v, at.rows, shape), weights, shape)


def add_attended(x: Tensor, attended: Tensor, weights: LayerWeights, shape: BlockShape) -> Tensor:
    """x [R, d] plus what the heads gathered, attended [R, H * D], in fp32 -> [R, d]."""
    return x + _normed(weights.out(attended), weights.attn_post_norm, shape)


def run_feed_forward(x: Tensor, weights: LayerWeights, shape: BlockShape) -> Tensor:
    """The feed-forward half of a layer on x [R, d] fp32 -> [R, d]."""
    gate, up = weights.gate_up(_normed(x, weights.ffn_norm, shape)).chunk(2, dim=-1)
    out = weights.down(ACTIVATIONS[shape.activation](gate).mul_(up))
    return x + _normed(out, weights.ffn_post_norm, shape)


def write_keys_values(
    x: Tensor,
    weights: LayerWeights,
    shape: BlockShape,
    at: BlockRows,
    cache: SharedCache,
    slot: int,
) -> None:
    """Write the K and V of cache layer `slot` that x [R, d] fp32 gives, and nothing else.

    State propagation (CALM, arXiv 2207.07061): no attention, no feed-forward. Where the layer has
    no norm before its attention (OLMo 2), x goes into the product as it is.
    """
    turned, values = project(x, weights, shape, at.ropes)
    cache.write(slot, at.rows, turned[:, shape.heads :], values)


def similarity(before: Tensor, after: Tensor) -> Tensor:
    """Cosine of a layer's input and output, fp32 [R, d] each -> [R], clamped (paper Eq. 1)."""
    dot = (before * after).sum(-1)
    norms = torch.linalg.vector_norm(before, dim=-1) * torch.linalg.vector_norm(after, dim=-1)
    return torch.clamp(dot / norms, -1.0, 1.0)
