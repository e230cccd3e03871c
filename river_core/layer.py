"""What one decoder layer is: its sizes, the options of its family, and its weights.

Options, not subclasses: block.py runs every family by these. Knows nothing of how a layer runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # sizes alone, which the memory formula is made of, need no torch
    from torch import Tensor

    from .kernels.base import Linear

NORMS = {"qkv": "attn_norm", "gate_up": "ffn_norm"}  # fused linear -> the norm before it


@dataclass(frozen=True)
class BlockShape:
    """Sizes and options of one layer; the sizes are those of all layers of a model.

    hidden d; heads H query heads of head_dim D; kv_heads shared by H / kv_heads queries each;
    ffn F; eps of the RMSNorms. Options:

    - qkv_bias: biases on q, k and v;
    - qk_norm: an RMSNorm of q and k before RoPE, over each "head" or over "all" heads at once;
    - window: the number of positions that a row reads, its own too (None: all);
    - rope: which of the model's tables turns q and k (None: none, the layer has no RoPE);
    - scale: factor of the attention scores (None: D ** -0.5);
    - activation: of the feed-forward gate, "silu" or "gelu_tanh";
    - norms: RMSNorms "before" each half, "after" it, or "both".
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    eps: float
    qkv_bias: bool = False
    qk_norm: str | None = None
    window: int | None = None
    rope: int | None = 0
    scale: float | None = None
    activation: str = "silu"
    norms: str = "before"

    @property
    def options(self) -> tuple[str, ...]:
        """What this layer has beyond the plain one, in words for users."""
        named = {
            "biases on q, k and v": self.qkv_bias,
            "norms on q and k": self.qk_norm is not None,
            "a sliding window": self.window is not None,
            "no RoPE": self.rope is None,
            "a second RoPE table": bool(self.rope),
            "an attention scale of its own": self.scale is not None,
            "a GELU gate": self.activation != "silu",
            "norms after each half": self.norms != "before",
        }
        return tuple(name for name, there in named.items() if there)

    @property
    def in_eights(self) -> bool:
        """Whether all sizes are multiples of 8, which the C++ step takes at a time."""
        return not any(size % 8 for size in (self.hidden, self.ffn, self.head_dim))

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

    @property
    def vectors(self) -> dict[str, tuple[int, ...]]:
        """Size of each norm and bias that this layer has, by the names of `LayerWeights`."""
        d, sizes = (self.hidden,), dict[str, tuple[int, ...]]()
        if self.norms in ("before", "both"):
            sizes |= {"attn_norm": d, "ffn_norm": d}
        if self.norms in ("after", "both"):
            sizes |= {"attn_post_norm": d, "ffn_post_norm": d}
        if self.qkv_bias:
            sizes["qkv_bias"] = (self.matrices["qkv"][0],)
        if self.qk_norm is not None:
            sizes["qk_norm"] = (self.heads + self.kv_heads, self.head_dim)
        return sizes


@dataclass(frozen=True)
class LayerWeights:
    """One layer of one bank: linears fused as q,k,v and gate,up by rows; norms and biases fp32.

    Which norms and biases there are, and their sizes, is `BlockShape.vectors`; qk_norm has a row
    per head. A norm multiplies by its weight as it stands here.
    """

    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    attn_norm: Tensor | None = None
    ffn_norm: Tensor | None = None
    attn_post_norm: Tensor | None = None
    ffn_post_norm: Tensor | None = None
    qkv_bias: Tensor | None = None
    qk_norm: Tensor | None = None

    @classmethod
    def of(cls, linears: Mapping[str, Linear], small: Mapping[str, Tensor]) -> LayerWeights:
        """From the four linears and the norms and biases, by the names of the fields."""
        return cls(
            qkv=linears["qkv"],
            out=linears["out"],
            gate_up=linears["gate_up"],
            down=linears["down"],
            attn_norm=small.get("attn_norm"),
            ffn_norm=small.get("ffn_norm"),
            attn_post_norm=small.get("attn_post_norm"),
            ffn_post_norm=small.get("ffn_post_norm"),
            qkv_bias=small.get("qkv_bias"),
            qk_norm=small.get("qk_norm"),
        )

    def with_linears(self, linears: Mapping[str, Linear]) -> LayerWeights:
        """The twin of this layer: other linears, the same norms and biases."""
        return LayerWeights.of(linears, self.small)

    @property
    def linears(self) -> dict[str, Linear]:
        """The four linears by the names of `BlockShape.matrices`."""
        return {"qkv": self.qkv, "out": self.out, "gate_up": self.gate_up, "down": self.down}

    @property
    def small(self) -> dict[str, Tensor]:
        """The norms and biases that are there, which both banks share, by field name."""
        names = [f.name for f in fields(self) if f.name not in self.linears]
        return {name: t for name in names if (t := getattr(self, name)) is not None}
