"""Where hub checkpoints keep each tensor; the families that load share one layout."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorNames:
    """Where a hub checkpoint keeps each matrix; layer names take ``.format(layer=0..L-1)``.

    Linear weights are [rows out, columns in]; embed and head [vocab, hidden]; norms [hidden], those
    of q and k [head_dim]; biases [rows out].
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
    q_bias: str = "model.layers.{layer}.self_attn.q_proj.bias"
    k_bias: str = "model.layers.{layer}.self_attn.k_proj.bias"
    v_bias: str = "model.layers.{layer}.self_attn.v_proj.bias"
    q_norm: str = "model.layers.{layer}.self_attn.q_norm.weight"
    k_norm: str = "model.layers.{layer}.self_attn.k_norm.weight"


TENSOR_NAMES = TensorNames()
