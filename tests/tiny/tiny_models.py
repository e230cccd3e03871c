"""Tiny random models of every family that can show a fault, through transformers as the oracle.

Default initialisation hides faults (norms of 1, small weights); these are drawn so that a wrong
RoPE base, norm or mask moves the logits (design.md, Properties).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel


@dataclass(frozen=True)
class TinyConfig:
    """One combination of options; every column count is a multiple of 64."""

    name: str
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    hidden: int = 64
    ffn: int = 128
    layers: int = 5
    vocab: int = 97
    tied: bool = True
    rope_theta: float = 10000.0
    eps: float = 1e-5
    seed: int = 1
    family: str = "llama"
    window: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # what else the configuration has

    def __hash__(self) -> int:
        return hash(self.name)


YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.5,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 2.0, 3.0, 5.0, 8.0, 12.0],
    "original_max_position_embeddings": 256,
}
GEMMA = {
    "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 2.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "query_pre_attn_scalar": 24,
}
TINY = [
    TinyConfig("mha-tied", heads=4, kv_heads=4),
    TinyConfig("gqa-untied", heads=4, kv_heads=2, tied=False, seed=2),
    TinyConfig("mqa-wide-heads", heads=4, kv_heads=1, head_dim=32, seed=3, rope_theta=100000.0),
    TinyConfig("nine-over-three", heads=9, kv_heads=3, hidden=576, head_dim=64, ffn=192, seed=4),
    TinyConfig("deep-untied", heads=4, kv_heads=2, layers=8, tied=False, seed=5, eps=1e-6),
    TinyConfig("qwen2", tied=False, seed=6, family="qwen2"),
    TinyConfig(
        "qwen2-windows",
        tied=False,
        seed=14,
        family="qwen2",
        window=9,
        options={"use_sliding_window": True, "max_window_layers": 2},
    ),
    TinyConfig("qwen3", head_dim=32, seed=7, family="qwen3"),
    TinyConfig("mistral", tied=False, seed=8, family="mistral", window=9),
    TinyConfig("ministral3", seed=9, family="ministral3", options={"rope_parameters": YARN}),
    TinyConfig(
        "phi3",
        seed=10,
        family="phi3",
        window=11,
        options={"rope_parameters": LONGROPE, "original_max_position_embeddings": 256},
    ),
    TinyConfig("gemma3", seed=11, family="gemma3_text", window=9, options=GEMMA),
    TinyConfig(
        "smollm3",
        seed=12,
        family="smollm3",
        window=9,
        options={"no_rope_layer_interval": 2, "use_sliding_window": True},
    ),
    TinyConfig("olmo2", tied=False, seed=13, family="olmo2"),
]


# what the blocks can be, in five: plain, odd sizes, biases and windows, Gemma's and OLMo 2's norms
FEW = ("gqa-untied", "nine-over-three", "qwen2-windows", "gemma3", "olmo2")


def build(config: TinyConfig) -> PreTrainedModel:
    """A model in fp32: weights ~ N(0, 1.5 / sqrt(K)), norms U(0.5, 1.5), biases N(0, 0.5)."""
    hf_config = AutoConfig.for_model(
        config.family,
        hidden_size=config.hidden,
        intermediate_size=config.ffn,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab,
        tie_word_embeddings=config.tied,
        max_position_embeddings=512,
        rms_norm_eps=config.eps,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        sliding_window=config.window,
        **{"rope_theta": config.rope_theta, **config.options},
    )
    return draw(AutoModelForCausalLM.from_config(hf_config), config)


def draw(model: PreTrainedModel, config: TinyConfig) -> PreTrainedModel:
    """The same model in fp32 with random parameters, as `build` says."""
    model = model.float().eval()
    generator = torch.Generator().manual_seed(config.seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.5, generator=generator)
            elif parameter.dim() == 1:
                low = -0.5 if "gemma" in config.family else 0.5  # Gemma's norms add 1
                parameter.uniform_(low, low + 1, generator=generator)
            else:
                parameter.normal_(0, 1.5 / math.sqrt(parameter.shape[1]), generator=generator)
    return model


def save(config: TinyConfig, folder: Path) -> PreTrainedModel:
    """Build and save in hub layout without a tokenizer; prompts are token ids."""
    model = build(config)
    model.save_pretrained(folder)
    return model


def prompt(config: TinyConfig, length: int = 7) -> list[int]:
    """A fixed prompt of `length` token ids."""
    generator = torch.Generator().manual_seed(1000 + config.seed)
    return torch.randint(0, config.vocab, (length,), generator=generator).tolist()
