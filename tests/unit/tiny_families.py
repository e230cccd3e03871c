"""A tiny random model of every GGUF architecture but llama, with what its file states.

Tensor names in the file are those of gguf's own map, so they share nothing with ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.unit.tiny_gguf import (
    FFN,
    HEADS,
    HIDDEN,
    KV_HEADS,
    TOKENS,
    Value,
    permute,
    write_gguf,
)

LONG, SHORT = [1.0, 1.5, 2.0, 4.0, 8.0, 16.0], [1.0, 1.0, 1.25, 1.5, 2.0, 2.5]


@dataclass(frozen=True)
class TinyFamily:
    """`hub` are settings as the hub's config.json has them, `stated` what the file has of them."""

    arch: str
    model_type: str
    hub: Mapping[str, Any] = field(default_factory=dict)
    stated: Mapping[str, Value] = field(default_factory=dict)
    layers: int = 2
    pre: str = "qwen2"
    permuted: bool = False
    offset: float = 0.0

    def model(self, tied: bool) -> PreTrainedModel:
        """Random weights, all of them exact in fp16, that matter to the logits."""
        torch.manual_seed(2)
        settings: dict[str, Any] = {
            "hidden_size": HIDDEN,
            "intermediate_size": FFN,
            "num_hidden_layers": self.layers,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "vocab_size": len(TOKENS),
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
            "tie_word_embeddings": tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
        }
        config = AutoConfig.for_model(self.model_type, **settings | dict(self.hub))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for name, weight in model.named_parameters():
            with torch.no_grad():
                if name.endswith("norm.weight"):
                    weight.uniform_(0.5 - self.offset, 1.5 - self.offset)
                elif weight.ndim == 1:
                    weight.normal_(0, 0.5)
                else:
                    weight.normal_(0, 1.5 / weight.shape[1] ** 0.5 if "embed" not in name else 1.0)
                weight.copy_(weight.mul(2048).round().div(2048).half().float())
        return model

    def tensors(self, model: PreTrainedModel) -> dict[str, np.ndarray]:
        """The model's tensors as the file stores them."""
        arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == self.arch)
        names = gguf.get_tensor_name_map(arch, self.layers)
        found = {}
        for hub, value in model.state_dict().items():
            if hub == "lm_head.weight" and model.config.tie_word_embeddings:
                continue
            base, suffix = hub.rsplit(".", 1)
            data = value.numpy()
            if self.permuted and "q_proj" in hub:
                data = permute(data, HEADS)
            elif self.permuted and "k_proj" in hub:
                data = permute(data, KV_HEADS)
            elif hub.endswith("norm.weight"):
                data = data + np.float32(self.offset)
            found[f"{names.get_name(base)}.{suffix}"] = data
        if self.arch == "phi3":
            found["rope_factors_long.weight"] = np.array(LONG, dtype=np.float32)
            found["rope_factors_short.weight"] = np.array(SHORT, dtype=np.float32)
        return found

    def write(
        self,
        path: Path,
        tensors: dict[str, np.ndarray],
        changes: Mapping[str, Value] | None = None,
        tokenizer: Mapping[str, Value] | None = None,
    ) -> Path:
        """The GGUF file of these tensors.

        `changes` are keys under the architecture's name; `tokenizer` replaces the byte-level one.
        """
        stated = {**self.stated, **(changes or {})}
        keys = {f"{self.arch}.{key}": value for key, value in stated.items()} | dict(
            tokenizer or {}
        )
        return write_gguf(
            path, tensors, arch=self.arch, pre=self.pre, extra=keys, layers=self.layers
        )


_HEAD_24 = {"attention.key_length": 24, "attention.value_length": 24}
_YARN = {"rope_type": "yarn", "rope_theta": 50000.0, "original_max_position_embeddings": 16}
_YARN_STATED = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
}
_ALL = (
    TinyFamily("qwen2", "qwen2"),
    TinyFamily(
        "qwen3",
        "qwen3",
        {"head_dim": 24, "rope_parameters": _YARN | {"factor": 4.0}},
        _HEAD_24 | _YARN_STATED,
    ),
    TinyFamily(
        "gemma3",
        "gemma3_text",
        {
            "head_dim": 24,
            "query_pre_attn_scalar": 24,
            "sliding_window": 8,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        _HEAD_24
        | {
            "attention.sliding_window": 8,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
        layers=6,
        offset=1.0,
    ),
    TinyFamily(
        "phi3",
        "phi3",
        {
            "original_max_position_embeddings": 16,
            "sliding_window": 12,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 50000.0,
                "partial_rotary_factor": 0.75,
                "long_factor": LONG,
                "short_factor": SHORT,
                "original_max_position_embeddings": 16,
            },
        },
        {
            "rope.dimension_count": 12,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(32) / math.log(16)),
            "attention.sliding_window": 12,
        },
        pre="gpt-4o",
    ),
    TinyFamily("smollm3", "smollm3", layers=4, pre="smaug-bpe", permuted=True),
    TinyFamily("olmo2", "olmo2", pre="dbrx"),
    TinyFamily(
        "mistral3",
        "ministral3",
        {
            "head_dim": 24,
            "rope_parameters": _YARN
            | {"factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0}
            | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
        },
        _HEAD_24
        | _YARN_STATED
        | {
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.1,
        },
        pre="tekken",
        permuted=True,
    ),
)
FAMILIES = {family.arch: family for family in _ALL} | {
    "mistral": TinyFamily(
        "mistral3",
        "mistral",
        {"head_dim": 24, "sliding_window": None},
        _HEAD_24,
        pre="tekken",
        permuted=True,
    )
}
