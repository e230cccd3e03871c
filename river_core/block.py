"""The decoder block, once, for every family: options, not subclasses.

x is [R, d] fp32, R rows that may stand at any positions. One function runs a backbone layer and a
river layer alike: only the linears differ, and both write the same KV slots. Knows nothing of
exits, policies or how many layers there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from .cache import Rows, SharedCache
from .kernels.base import Linear


@dataclass(frozen=True)
class BlockShape:
    """Sizes and options of one model's blocks, all layers alike.

    hidden d; heads H query heads of head_dim D; kv_heads shared by H / kv_heads queries each;
    ffn F; eps of the RMSNorms. Options: biases on q, k and v; an RMSNorm on every head of q and k
    before RoPE; a window, the number of positions that a row reads, its own too (None: all).
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    eps: float
    qkv_bias: bool = False
    qk_norm: bool = False
    window: int | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """What these blocks have beyond the plain one, in words for users."""
        named = {
            "biases on q, k and v": self.qkv_bias,
            "norms on q and k": self.qk_norm,
            "a sliding window": self.window is not None,
        }
        return tuple(name for name, there in named.items() if there)

    def within(self, capacity: int) -> BlockShape:
        """The same for positions below `capacity`: without a window that holds them all."""
        window = self.window
        return replace(self, window=window if window is not None and window < capacity else None)

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """(N, K) of the four fused linears, in the order they run."""
        wide = self.heads * self.head_dim
        return {
            "qkv": (wide + 2 * self.kv_heads * self.head_dim, self.hidden),
            "out": (self.hidden, wide),
            "gate_up": (2 * self.ffn, self.hidden),
            "down": (self.hidden, self.ffn),
        }


@dataclass(frozen=True)
class LayerWeights:
    """One layer of one bank: norms fp32 [d], linears fused as q,k,v and gate,up by rows.

    Where the shape has the options: qkv_bias fp32 [N] of the fused qkv; qk_norm fp32 [H + kv_heads,
    D], a row per head.
    """

    attn_norm: Tensor
    qkv: Linear
    out: Linear
    ffn_norm: Tensor
    gate_up: Linear
    down: Linear
    qkv_bias: Tensor | None = None
    qk_norm: Tensor | None = None

    @classmethod
    def of(cls, linears: Mapping[str, Linear], small: Mapping[str, Tensor]) -> LayerWeights:
        """From the four linears and the norms and biases, by the names of the fields."""
        return cls(
            attn_norm=small["attn_norm"],
            qkv=linears["qkv"],
            out=linears["out"],
            ffn_norm=small["ffn_norm"],
            gate_up=linears["gate_up"],
            down=linears["down"],
            qkv_bias=small.get("qkv_bias"),
            qk_norm=small.get("qk_norm"),
        )

    def with_linears(self, linears: Mapping[str, Linear]) -> LayerWeights:
        """The twin of this layer: other linears, the same norms and biases."""
        return replace(
            self,
            qkv=linears["qkv"],
            out=linears["out"],
            gate_up=linears["gate_up"],
            down=linears["down"],
        )

    @property
    def linears(self) -> dict[str, Linear]:
        """The four linears by the names of `BlockShape.matrices`."""
        return {"qkv": self.qkv, "out": self.out, "gate_up": self.gate_up, "down": self.down}

    @property
    def small(self) -> list[Tensor]:
        """Norms and biases, which both banks share."""
        tensors = (self.attn_norm, self.ffn_norm, self.qkv_bias, self.qk_norm)
        return [t for t in tensors if t is not None]


@dataclass(frozen=True)
class BlockRows:
    """The rows of a pass as a block needs them: where they stand and their RoPE factors [R, D]."""

    rows: Rows
    cos: Tensor
    sin: Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension, fp32 [R, d]."""
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * scale * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE to x [R, heads, D] with cos, sin [R, D] (Hugging Face's half-rotation layout)."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


def attend(q: Tensor, k: Tensor, v: Tensor, rows: Rows, window: int | None = None) -> Tensor:
    """Attention of q [R, H, D] over cached k, v [kv_heads, n, D] -> fp32 [R, H * D].

    A single row reads all n slots, several read slots 0..their own position, or the last `window`
    of these. The H / kv_heads query heads that share a KV head are taken as further query rows, so
    K and V are never expanded.
    """
    r, heads, dim = q.shape
    shared = heads // k.shape[0]
    k, v = k.float(), v.float()
    if r == 1:
        grouped = q.view(k.shape[0], shared, dim).unsqueeze(0)
        out = F.scaled_dot_product_attention(grouped, k.unsqueeze(0), v.unsqueeze(0))
        return out.reshape(1, heads * dim)
    slots, at = torch.arange(k.shape[1], device=q.device), rows.index(q.device).unsqueeze(1)
    seen = slots <= at
    if window is not None:
        seen &= slots > at - window
    mask = seen.repeat(shared, 1)
    grouped = q.view(r, k.shape[0], shared, dim).permute(1, 2, 0, 3).reshape(-1, shared * r, dim)
    out = F.scaled_dot_product_attention(grouped[None], k[None], v[None], attn_mask=mask)
    return out.view(-1, shared, r, dim).permute(2, 0, 1, 3).reshape(r, heads * dim)


def project(
    x: Tensor, weights: LayerWeights, shape: BlockShape, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Queries, then keys [R, H + kv_heads, D], turned by cos, sin [R, D]; values [R, kv_heads, D].

    x [R, d] fp32 is the layer's input, before its norm.
    """
    qkv = weights.qkv(rms_norm(x, weights.attn_norm, shape.eps))
    if weights.qkv_bias is not None:
        qkv = qkv + weights.qkv_bias
    qkv = qkv.view(x.shape[0], shape.heads + 2 * shape.kv_heads, shape.head_dim)
    queries_keys, values = qkv[:, : -shape.kv_heads], qkv[:, -shape.kv_heads :]
    if weights.qk_norm is not None:
        queries_keys = rms_norm(queries_keys, weights.qk_norm, shape.eps)
    return rotate(queries_keys, cos, sin), values


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
    turned, values = project(x, weights, shape, at.cos, at.sin)
    cache.write(slot, at.rows, turned[:, shape.heads :], values)
    k, v = cache.view(slot, at.rows, shape.window)
    q = turned[:, : shape.heads].contiguous()
    return x + weights.out(attend(q, k, v, at.rows, shape.window))


def run_feed_forward(x: Tensor, weights: LayerWeights, shape: BlockShape) -> Tensor:
    """The feed-forward half of a layer on x [R, d] fp32 -> [R, d]."""
    gate, up = weights.gate_up(rms_norm(x, weights.ffn_norm, shape.eps)).chunk(2, dim=-1)
    return x + weights.down(F.silu(gate) * up)


def write_keys_values(
    x: Tensor,
    weights: LayerWeights,
    shape: BlockShape,
    at: BlockRows,
    cache: SharedCache,
    slot: int,
) -> None:
    """Write the K and V of cache layer `slot` that x [R, d] fp32 gives, and nothing else.

    State propagation (CALM, arXiv 2207.07061): no attention, no feed-forward.
    """
    turned, values = project(x, weights, shape, at.cos, at.sin)
    cache.write(slot, at.rows, turned[:, shape.heads :], values)


def similarity(before: Tensor, after: Tensor) -> Tensor:
    """Cosine of a layer's input and output, fp32 [R, d] each -> [R], clamped (paper Eq. 1)."""
    dot = (before * after).sum(-1)
    norms = torch.linalg.vector_norm(before, dim=-1) * torch.linalg.vector_norm(after, dim=-1)
    return torch.clamp(dot / norms, -1.0, 1.0)
