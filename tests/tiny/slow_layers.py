"""transformers' own layers of any family, part by part, for the slow references.

Shares no code with the engine but the quantizer.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from river_core.quantize import quantize
from river_core.settings import QuantSpec

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FUSED = ("qkv_proj", "gate_up_proj")


def twin_of(config: Any, name: str, weight: Tensor, spec: QuantSpec) -> Tensor:
    """The dequantised twin of a linear's weight; the parts of a fused one apart."""
    return torch.cat([quantize(part, spec).dense() for part in split(config, name, weight)])


def split(config: Any, name: str, weight: Tensor) -> list[Tensor]:
    if name == "qkv_proj":
        dim = config.hidden_size // config.num_attention_heads
        sizes = [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads]
        return list(weight.split([n * dim for n in sizes]))
    return list(weight.chunk(2)) if name == "gate_up_proj" else [weight]


class SlowLayer:
    """One layer: linears by part, own and twin, and what its family does around them."""

    def __init__(self, model: Any, n: int, spec: QuantSpec) -> None:
        self.config, self.layer = model.config, model.model.layers[n - 1]
        self.attention, self.rotary = self.layer.self_attn, model.model.rotary_emb
        self.weights: dict[str, tuple[Tensor, Tensor, Tensor | None]] = {}
        for owner in (self.attention, self.layer.mlp):
            for name, module in owner.named_children():
                if name in (*LINEARS, *FUSED):
                    self._take(name, module, spec)
        types = getattr(self.config, "layer_types", None)
        self.kind = types[n - 1] if types else "full_attention"
        self.turns = bool((getattr(self.config, "no_rope_layers", None) or [1] * n)[n - 1])
        self.dim: int = self.attention.head_dim
        self.scale: float = self.attention.scaling

    def _take(self, name: str, module: Any, spec: QuantSpec) -> None:
        names = {"qkv_proj": LINEARS[:3], "gate_up_proj": LINEARS[4:6]}.get(name, (name,))
        parts = split(self.config, name, module.weight)
        for part, weight in zip(names, parts, strict=True):
            self.weights[part] = weight, quantize(weight, spec).dense(), module.bias

    @property
    def window(self) -> int | None:
        """Positions that a row reads, its own too."""
        if self.config.model_type in ("mistral", "ministral3", "phi3"):
            return self.config.sliding_window
        return getattr(self.attention, "sliding_window", None)

    def linear(self, part: str, x: Tensor, twin: bool) -> Tensor:
        own, coded, bias = self.weights[part]
        return (coded if twin else own) @ x + (0.0 if bias is None else bias)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        found = getattr(self.layer, name, None)
        return x if found is None else found(x)

    def before(self, half: str, h: Tensor) -> Tensor:
        if half == "attention":
            return self._norm("input_layernorm", h)
        gemma = hasattr(self.layer, "pre_feedforward_layernorm")
        if self.config.model_type == "olmo2":
            return h
        return self._norm("pre_feedforward_layernorm" if gemma else "post_attention_layernorm", h)

    def after(self, half: str, out: Tensor) -> Tensor:
        if self.config.model_type not in ("gemma3_text", "olmo2"):
            return out
        name = "post_attention_layernorm" if half == "attention" else "post_feedforward_layernorm"
        return self._norm(name, out)

    def heads(self, part: str, x: Tensor, twin: bool) -> Tensor:
        """q, k or v of one row, [heads, D], after the family's norm of it."""
        flat = self.linear(f"{part}_proj", x, twin)
        norm = getattr(self.attention, f"{part}_norm", None)
        if norm is None:
            return flat.view(-1, self.dim)
        spans = norm.weight.shape[0] > self.dim
        return norm(flat).view(-1, self.dim) if spans else norm(flat.view(-1, self.dim))

    def turn(self, x: Tensor, at: int, query: bool = False) -> Tensor:
        """RoPE of heads [n, D] at one position; a partial one leaves the last values alone."""
        if not self.turns:
            return x
        which = {"layer_type": self.kind} if self.config.model_type == "gemma3_text" else {}
        cos, sin = (t[0, 0] for t in self.rotary(x[None], torch.tensor([[at]]), **which))
        part, half = x[:, : len(cos)], len(cos) // 2
        turned = part * cos + torch.cat([-part[:, half:], part[:, :half]], 1) * sin
        whole = torch.cat([turned, x[:, len(cos) :]], 1)
        parameters = self.config.rope_parameters
        if query and parameters.get("llama_4_scaling_beta"):
            steps = at // parameters["original_max_position_embeddings"]
            whole = whole * (1 + parameters["llama_4_scaling_beta"] * math.log(1 + steps))
        return whole

    def gate(self, x: Tensor) -> Tensor:
        mlp = self.layer.mlp
        act = mlp.act_fn if hasattr(mlp, "act_fn") else mlp.activation_fn
        return act(x)
