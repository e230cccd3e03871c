"""From a GGUF file's metadata to the settings of the model's configuration.

Every value comes from the file; what llama.cpp's code fixes for an architecture and no file states
is written here by name. What cannot be rebuilt exactly is refused. Knows nothing of tokenizers,
folders or what the tensors hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .errors import UnsupportedModel
from .families import rope_tables

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from .gguf_reader import GgufFile

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA3_FACTORS = (8.0, 32.0)  # Llama 3.1, 3.2
_GEMMA3_PATTERN = 6  # every sixth layer sees everything; files seldom say so
_GEMMA3_LOCAL_BASE = 10000.0
_GEMMA3_27B_LAYERS = 62  # the one size that scales attention by hidden / heads
_SMOLLM3_NOPE_STEP = 4  # every fourth layer has no RoPE
# keys that change what a model computes: those of every architecture, and who else may state which
_FOREIGN = {
    "attention.sliding_window": ("gemma3", "phi3"),
    "attention.temperature_scale": ("mistral3",),
    "final_logit_softcapping": ("gemma3",),
    **dict.fromkeys(("attention.scale", "attention.output_scale", "attention.clamp_kqv"), ()),
    **dict.fromkeys(("attn_logit_softcapping", "expert_count", "pooling_type"), ()),
    **dict.fromkeys(("logit_scale", "residual_scale", "embedding_scale"), ()),
    **dict.fromkeys(("rope.scale_linear", "rope.dimension_sections"), ()),
}


@dataclass(frozen=True)
class RopeFactors:
    """Divisors of the RoPE frequencies that a file stores as tensors, each [rotated values / 2]."""

    freqs: list[float] | None = None
    long: list[float] | None = None
    short: list[float] | None = None


@dataclass(frozen=True)
class _Facts:
    """The file's metadata under one architecture, and what every architecture derives from it."""

    source: GgufFile
    head_dim: int
    rope: dict[str, Any]
    factors: RopeFactors

    def get(self, key: str, default: Any = None) -> Any:
        name = self.source.architecture.name
        return self.source.metadata.get(f"{name}.{key}", default)


def model_settings(
    source: GgufFile, vocab_size: int, tied: bool, factors: RopeFactors
) -> dict[str, Any]:
    """Keyword arguments of the configuration class of the file's `model_type`.

    `vocab_size` counts the rows of the embedding, `tied` says that it is the head too. fp32 numbers
    get their shortest decimal form (1e-05). Raises UnsupportedModel for a key that the architecture
    does not know or a RoPE scaling that cannot be rebuilt exactly.
    """
    facts = _facts(source, factors)
    heads = source.number("attention.head_count")
    settings: dict[str, Any] = {
        "architectures": [source.architecture.model_class],
        "dtype": source.architecture.dtype,
        "vocab_size": vocab_size,
        "tie_word_embeddings": tied,
        "max_position_embeddings": source.number("context_length"),
        "hidden_size": source.number("embedding_length"),
        "intermediate_size": source.number("feed_forward_length"),
        "num_hidden_layers": source.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": facts.get("attention.head_count_kv", heads),
        "head_dim": facts.head_dim,
        "rms_norm_eps": _decimal(facts.get("attention.layer_norm_rms_epsilon", 1e-5)),
        "rope_parameters": facts.rope,
    }
    for name, key in _TOKEN_IDS.items():
        settings[name] = source.metadata.get(f"tokenizer.ggml.{key}")
    more = _MORE.get(source.architecture.model_type)
    return settings | (more(facts) if more else {})


_TOKEN_IDS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "padding_token_id",
}


def _facts(source: GgufFile, factors: RopeFactors) -> _Facts:
    """What every architecture needs, once the keys that none understands are ruled out."""
    name = source.architecture.name
    plain = _Facts(source, 0, {}, factors)
    for key, known in _FOREIGN.items():
        if plain.get(key) and name not in known:
            raise _unknown(f"{name}.{key}")
    if plain.get("attention.causal", True) is False:
        raise _unknown(f"{name}.attention.causal")
    width, heads = source.number("embedding_length"), source.number("attention.head_count")
    head_dim = int(plain.get("attention.key_length", width // heads))
    if plain.get("attention.value_length", head_dim) != head_dim:
        raise _unknown(f"{name}.attention.value_length")
    turned = plain.get("rope.dimension_count", head_dim)
    if turned != head_dim and name != "phi3":
        raise _unknown(f"{name}.rope.dimension_count")
    return _Facts(source, head_dim, _rope(plain), factors)


def _unknown(key: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"this GGUF file sets {key}, which cannot be rebuilt exactly; choose the Hugging Face "
        "version of this model."
    )


def _unknown_rope() -> UnsupportedModel:
    return UnsupportedModel(
        "this GGUF file scales RoPE in a way that cannot be rebuilt exactly; choose the Hugging "
        "Face version of this model."
    )


def _decimal(value: float) -> float:
    return float(str(np.float32(value)))


def _rope(facts: _Facts) -> dict[str, Any]:
    """RoPE parameters of the layers that see everything: base, and linear or YaRN scaling."""
    rope = {"rope_type": "default", "rope_theta": _decimal(facts.get("rope.freq_base", 10000.0))}
    scaling = facts.get("rope.scaling.type", "none")
    if scaling == "none" or (scaling == "longrope" and facts.factors.long):
        return rope
    factor = facts.get("rope.scaling.factor")
    if scaling not in ("linear", "yarn") or not isinstance(factor, float) or factor <= 0:
        raise _unknown_rope()
    rope |= {"rope_type": scaling, "factor": _decimal(factor)}
    return rope if scaling == "linear" else rope | _yarn(facts)


def _yarn(facts: _Facts) -> dict[str, Any]:
    """YaRN's other numbers; UnsupportedModel for those that transformers has no place for."""
    original = facts.get("rope.scaling.original_context_length")
    stated = [facts.get(f"rope.scaling.{key}", 1.0) for key in ("yarn_ext_factor", "attn_factor")]
    if not isinstance(original, int) or stated != [1.0, 1.0]:
        raise _unknown_rope()
    rope: dict[str, Any] = {"original_max_position_embeddings": original}
    names = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
    for key, name in (names | {"yarn_attn_factor": "attention_factor"}).items():
        value = facts.get(f"rope.scaling.{key}")
        if value is not None:
            rope[name] = _decimal(value)
    return rope


def _gemma3(facts: _Facts) -> dict[str, Any]:
    """Window, layer pattern, the second RoPE base, and the scale of the attention scores."""
    layers = facts.source.number("block_count")
    window = facts.get("attention.sliding_window", 0)
    pattern = facts.get("attention.sliding_window_pattern", _GEMMA3_PATTERN if window else 1)
    if isinstance(pattern, int):
        pattern = [pattern > 0 and (layer + 1) % pattern != 0 for layer in range(layers)]
    if len(pattern) != layers or (any(pattern) and not window):
        raise _unknown("gemma3.attention.sliding_window_pattern")
    local = _decimal(facts.get("rope.freq_base_swa", _GEMMA3_LOCAL_BASE))
    heads = facts.source.number("attention.head_count")
    by_width = layers == _GEMMA3_27B_LAYERS
    softcap = facts.get("final_logit_softcapping") or None
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": window or None,
        "layer_types": ["sliding_attention" if near else "full_attention" for near in pattern],
        "rope_parameters": {
            "full_attention": facts.rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
        "query_pre_attn_scalar": (
            facts.source.number("embedding_length") // heads if by_width else facts.head_dim
        ),
        "final_logit_softcapping": softcap and _decimal(softcap),
    }


def _phi3(facts: _Facts) -> dict[str, Any]:
    """Window, the share of a head that turns, and the two sets of LongRoPE divisors."""
    length = facts.source.number("context_length")
    original = facts.get("rope.scaling.original_context_length", length)
    share = facts.get("rope.dimension_count", facts.head_dim) / facts.head_dim
    rope = facts.rope | {"partial_rotary_factor": share}
    long, short = facts.factors.long, facts.factors.short
    if rope["rope_type"] != "default" or (long is None) != (short is None):
        raise _unknown_rope()
    if long is not None and short is not None:
        rope |= {
            "rope_type": "longrope",
            "long_factor": [_decimal(value) for value in long],
            "short_factor": [_decimal(value) for value in short],
            "original_max_position_embeddings": original,
        }
        grown = math.log(max(1.0, length / original)) / math.log(original)
        stated = facts.get("rope.scaling.attn_factor", 1.0)
        if not math.isclose(stated, math.sqrt(1 + grown), rel_tol=1e-5):
            rope["attention_factor"] = _decimal(stated)
    return {
        "rope_parameters": rope,
        "original_max_position_embeddings": original,
        "sliding_window": facts.get("attention.sliding_window") or None,
    }


def _smollm3(facts: _Facts) -> dict[str, Any]:
    """The layers without RoPE, as llama.cpp's code has them."""
    layers = range(facts.source.number("block_count"))
    return {"no_rope_layers": [int((layer + 1) % _SMOLLM3_NOPE_STEP != 0) for layer in layers]}


def _ministral3(facts: _Facts) -> dict[str, Any]:
    """YaRN without a change of the scores' scale, and Llama 4's attention temperature."""
    if facts.rope["rope_type"] != "yarn":
        raise _unknown_rope()
    scale = _decimal(facts.get("rope.scaling.yarn_log_multiplier", 1.0))
    more = {"mscale": scale, "mscale_all_dim": scale}
    more["llama_4_scaling_beta"] = _decimal(facts.get("attention.temperature_scale"))
    return {"rope_parameters": facts.rope | more}


_MORE: Mapping[str, Callable[[_Facts], dict[str, Any]]] = {
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "smollm3": _smollm3,
    "ministral3": _ministral3,
    "mistral": lambda facts: {"sliding_window": None},
}


def apply_llama3_rope(config: PretrainedConfig, factors: Sequence[float]) -> None:
    """Set in place the published Llama 3 scaling that has these frequency divisors, to 1e-3.

    `factors` divide the head_dim / 2 RoPE frequencies. Raises UnsupportedModel where none has.
    """
    plain = config.rope_parameters
    wanted = _frequencies(config)[: len(factors)] / torch.tensor(factors)
    for factor in _LLAMA3_FACTORS:
        config.rope_parameters = plain | _LLAMA3_ROPE | {"factor": factor}
        found = _frequencies(config)
        if found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-3, atol=1e-9):
            return
    raise _unknown_rope()


def _frequencies(config: PretrainedConfig) -> torch.Tensor:
    """Angle per position of each rotated pair, fp32 [head_dim / 2]: what position 1 turns by."""
    (table,) = rope_tables(config, 2)
    return torch.atan2(table.sin[1], table.cos[1])[: config.head_dim // 2]
