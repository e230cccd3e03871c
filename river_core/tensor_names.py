"""Where hub checkpoints keep each tensor, by family; wrappers around text models have a prefix."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class TensorNames:
    """Where a hub checkpoint keeps each tensor; layer names take ``.format(layer=0..L-1)``.

    Linear weights are [rows out, columns in]; embed and head [vocab, hidden]; norms [hidden], those
    of q and k [head_dim], or [heads * head_dim] where they span all heads; biases [rows out]. A
    family that stores q, k and v, or gate and up, as one matrix names that one.
    """

    embed: str = "model.embed_tokens.weight"
    final_norm: str = "model.norm.weight"
    head: str = "lm_head.weight"
    q: str = "model.layers.{layer}.self_attn.q_proj.weight"
    k: str = "model.layers.{layer}.self_attn.k_proj.weight"
    v: str = "model.layers.{layer}.self_attn.v_proj.weight"
    o: str = "model.layers.{layer}.self_attn.o_proj.weight"
    gate: str = "model.layers.{layer}.mlp.gate_proj.weight"
    up: str = "model.layers.{layer}.mlp.up_proj.weight"
    down: str = "model.layers.{layer}.mlp.down_proj.weight"
    attn_norm: str = "model.layers.{layer}.input_layernorm.weight"
    ffn_norm: str = "model.layers.{layer}.post_attention_layernorm.weight"
    attn_post_norm: str = "model.layers.{layer}.post_attention_layernorm.weight"
    ffn_post_norm: str = "model.layers.{layer}.post_feedforward_layernorm.weight"
    q_bias: str = "model.layers.{layer}.self_attn.q_proj.bias"
    k_bias: str = "model.layers.{layer}.self_attn.k_proj.bias"
    v_bias: str = "model.layers.{layer}.self_attn.v_proj.bias"
    q_norm: str = "model.layers.{layer}.self_attn.q_norm.weight"
    k_norm: str = "model.layers.{layer}.self_attn.k_norm.weight"
    qkv: str | None = None
    gate_up: str | None = None

    def under(self, body: str, head: str) -> TensorNames:
        """The same with "model." replaced by `body`, and `head` before the LM head's name."""
        names = {f.name: getattr(self, f.name) for f in fields(self)}
        moved = {
            name: body + value.removeprefix("model.")
            for name, value in names.items()
            if value is not None and value.startswith("model.")
        }
        return replace(self, **moved, head=head + self.head)

    def found_in(self, stored: Collection[str]) -> TensorNames:
        """The names under the prefix that the `stored` tensors have, else these."""
        for body, head in WRAPPED:
            names = self.under(body, head)
            if names.embed in stored:
                return names
        return self


# How a vision-language checkpoint wraps its text model: as on the hub, as transformers 5 has it.
WRAPPED = (("language_model.model.", "language_model."), ("model.language_model.", ""))
# What such a checkpoint holds besides, which a text model does not need.
OTHER_PARTS = (
    *("vision_tower.", "multi_modal_projector."),
    *("model.vision_tower.", "model.multi_modal_projector."),
)
TENSOR_NAMES = TensorNames()
FUSED = TensorNames(
    qkv="model.layers.{layer}.self_attn.qkv_proj.weight",
    gate_up="model.layers.{layer}.mlp.gate_up_proj.weight",
)
FOUR_NORMS = TensorNames(ffn_norm="model.layers.{layer}.pre_feedforward_layernorm.weight")
