"""Tiny random models of every family that can show a fault, through transformers as the oracle.

Default initialisation hides faults (norms of 1, small weights); these are drawn so that a wrong
RoPE base, norm or mask moves the logits (design.md, Properties).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

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


TINY = [
    TinyConfig("mha-tied", heads=4, kv_heads=4),
    TinyConfig("gqa-untied", heads=4, kv_heads=2, tied=False, seed=2),
    TinyConfig("mqa-wide-heads", heads=4, kv_heads=1, head_dim=32, seed=3, rope_theta=100000.0),
    TinyConfig("nine-over-three", heads=9, kv_heads=3, hidden=576, head_dim=64, ffn=192, seed=4),
    TinyConfig("deep-untied", heads=4, kv_heads=2, layers=8, tied=False, seed=5, eps=1e-6),
    TinyConfig("qwen2", tied=False, seed=6, family="qwen2"),
    TinyConfig("qwen3", head_dim=32, seed=7, family="qwen3"),
    TinyConfig("mistral", tied=False, seed=8, family="mistral", window=9),
]


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
        rope_theta=config.rope_theta,
        rms_norm_eps=config.eps,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        sliding_window=config.window,
    )
    model = AutoModelForCausalLM.from_config(hf_config).float().eval()
    generator = torch.Generator().manual_seed(config.seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.5, generator=generator)
            elif parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
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
