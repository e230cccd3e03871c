"""The GGUF architectures that become folders: where each tensor goes and how it is stored there.

Names and storage are those of llama.cpp's converter, hub names those of each family's checkpoint.
Knows nothing of files, values or our engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import UnsupportedModel

# A tensor's place: its hub name and its shape, one letter per axis (rows first). d is hidden,
# f ffn, v vocab, h head_dim, q query heads x h, k key heads x h, a = q + 2k, g = 2f (both fused).
Place = tuple[str, str]

_ENDS: Mapping[str, Place] = {
    "token_embd.weight": ("model.embed_tokens.weight", "vd"),
    "output_norm.weight": ("model.norm.weight", "d"),
}
_HEAD: Mapping[str, Place] = {"output.weight": ("lm_head.weight", "vd")}
_ATTENTION: Mapping[str, Place] = {
    "attn_q.weight": ("self_attn.q_proj.weight", "qd"),
    "attn_k.weight": ("self_attn.k_proj.weight", "kd"),
    "attn_v.weight": ("self_attn.v_proj.weight", "kd"),
    "attn_output.weight": ("self_attn.o_proj.weight", "dq"),
}
_MLP: Mapping[str, Place] = {
    "ffn_gate.weight": ("mlp.gate_proj.weight", "fd"),
    "ffn_up.weight": ("mlp.up_proj.weight", "fd"),
    "ffn_down.weight": ("mlp.down_proj.weight", "df"),
}
_PRE_NORMS: Mapping[str, Place] = {
    "attn_norm.weight": ("input_layernorm.weight", "d"),
    "ffn_norm.weight": ("post_attention_layernorm.weight", "d"),
}
_HEAD_NORMS: Mapping[str, Place] = {
    "attn_q_norm.weight": ("self_attn.q_norm.weight", "h"),
    "attn_k_norm.weight": ("self_attn.k_norm.weight", "h"),
}
_LLAMA = {**_PRE_NORMS, **_ATTENTION, **_MLP}
_QWEN2 = {
    **_LLAMA,
    "attn_q.bias": ("self_attn.q_proj.bias", "q"),
    "attn_k.bias": ("self_attn.k_proj.bias", "k"),
    "attn_v.bias": ("self_attn.v_proj.bias", "k"),
}
_GEMMA3 = {
    **_ATTENTION,
    **_HEAD_NORMS,
    **_MLP,
    "attn_norm.weight": ("input_layernorm.weight", "d"),
    "post_attention_norm.weight": ("post_attention_layernorm.weight", "d"),
    "ffn_norm.weight": ("pre_feedforward_layernorm.weight", "d"),
    "post_ffw_norm.weight": ("post_feedforward_layernorm.weight", "d"),
}
_PHI3 = {
    **_PRE_NORMS,
    "attn_qkv.weight": ("self_attn.qkv_proj.weight", "ad"),
    "attn_output.weight": ("self_attn.o_proj.weight", "dq"),
    "ffn_up.weight": ("mlp.gate_up_proj.weight", "gd"),
    "ffn_down.weight": ("mlp.down_proj.weight", "df"),
}
_OLMO2 = {
    **_ATTENTION,
    **_MLP,
    "attn_q_norm.weight": ("self_attn.q_norm.weight", "q"),
    "attn_k_norm.weight": ("self_attn.k_norm.weight", "k"),
    "post_attention_norm.weight": ("post_attention_layernorm.weight", "d"),
    "post_ffw_norm.weight": ("post_feedforward_layernorm.weight", "d"),
}


@dataclass(frozen=True)
class GgufArchitecture:
    """One architecture of GGUF files and the model that transformers makes of it.

    `layer` gives the place of every tensor ``blk.N.<name>``, all of them required. `rope` names the
    tensors that hold RoPE divisors, which go into the configuration. With `permuted` the rows of q
    and k alternate between the halves that RoPE pairs; `norm_offset` is what the file adds to every
    norm weight. `dtype` is what the configuration advises to run in: Gemma's residual stream leaves
    the range of float16, in which the weights are written all the same.
    """

    name: str
    model_type: str
    model_class: str
    layer: Mapping[str, Place]
    rope: tuple[str, ...] = ()
    permuted: bool = False
    norm_offset: float = 0.0
    dtype: str = "float16"

    def places(self, layers: int) -> dict[str, Place]:
        """Place of each tensor that a model with so many layers must have, by the file's name."""
        found = dict(_ENDS)
        for layer in range(layers):
            for name, (hub, shape) in self.layer.items():
                found[f"blk.{layer}.{name}"] = (f"model.layers.{layer}.{hub}", shape)
        return found

    @property
    def optional(self) -> Mapping[str, Place]:
        """Places of tensors that a file may leave out: the head, where it is the embedding."""
        return _HEAD


_FREQS = ("rope_freqs.weight",)
_LONG_SHORT = ("rope_factors_long.weight", "rope_factors_short.weight")
_ALL = (
    GgufArchitecture("llama", "llama", "LlamaForCausalLM", _LLAMA, _FREQS, permuted=True),
    GgufArchitecture("qwen2", "qwen2", "Qwen2ForCausalLM", _QWEN2),
    GgufArchitecture("qwen3", "qwen3", "Qwen3ForCausalLM", {**_LLAMA, **_HEAD_NORMS}),
    GgufArchitecture(
        "gemma3", "gemma3_text", "Gemma3ForCausalLM", _GEMMA3, norm_offset=1.0, dtype="bfloat16"
    ),
    GgufArchitecture("phi3", "phi3", "Phi3ForCausalLM", _PHI3, _LONG_SHORT),
    GgufArchitecture("smollm3", "smollm3", "SmolLM3ForCausalLM", _LLAMA, permuted=True),
    GgufArchitecture("olmo2", "olmo2", "Olmo2ForCausalLM", _OLMO2),
    GgufArchitecture("mistral3", "ministral3", "Ministral3ForCausalLM", _LLAMA, permuted=True),
)
ARCHITECTURES = {architecture.name: architecture for architecture in _ALL}
# mistral3 without Ministral's attention temperature: Mistral Small 3, whose text part is a Mistral
_MISTRAL = GgufArchitecture("mistral3", "mistral", "MistralForCausalLM", _LLAMA, permuted=True)


def architecture_of(metadata: Mapping[str, Any], file: str) -> GgufArchitecture:
    """The architecture that a file's metadata names; `file` is how the refusal calls the file.

    Raises UnsupportedModel for any other, with the list of those that are supported.
    """
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UnsupportedModel(
            f"the GGUF file {file} holds a model of architecture {name!r}, but only "
            f"{', '.join(ARCHITECTURES)} are supported; choose another file."
        )
    if name == "mistral3" and "mistral3.attention.temperature_scale" not in metadata:
        return _MISTRAL
    return ARCHITECTURES[name]
