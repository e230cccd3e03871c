"""What transformers must tell: configuration, block options, RoPE tables, tokenizer, stop ids.

With loading.py and peers.py the only files that import transformers, always inside functions, so
importing this one stays cheap. Knows nothing of where a folder came from or of our engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .block import BlockShape
from .errors import ModelUnavailable, UnsupportedModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Family:
    """What the blocks of a `model_type` always have, and whether its window is for all layers."""

    qkv_bias: bool = False
    qk_norm: bool = False
    windowed: bool = False


_FAMILIES = {
    "llama": Family(),
    "mistral": Family(windowed=True),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True),
}
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # tables that do not depend on the length


def supported() -> tuple[str, ...]:
    """Names of the model families (`model_type`) that River runs."""
    return tuple(_FAMILIES)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' advice and progress bars inside the block, then restore both."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelUnavailable(
            f"the folder {path.parent} has no {path.name}; give a folder in Hugging Face layout."
        ) from None
    except (OSError, ValueError) as error:
        raise ModelUnavailable(
            f"{path} cannot be read ({type(error).__name__}); download the model again."
        ) from error
    if not isinstance(content, dict):
        raise ModelUnavailable(f"{path} is not a JSON object; download the model again.")
    return content


def check_family(model_type: object, has_code: bool) -> None:
    """Raise UnsupportedModel for a `model_type` that River does not run, or for remote code."""
    if model_type not in _FAMILIES:
        raise UnsupportedModel(
            f"models of type {model_type!r} are not supported; choose one of type "
            f"{', '.join(_FAMILIES)}."
        )
    if has_code:
        raise UnsupportedModel(
            "this model brings its own code (auto_map), which River never runs; choose a model "
            "without it."
        )


def read_config(folder: Path) -> PretrainedConfig:
    """Read `folder/config.json` of a supported family.

    Raises ModelUnavailable (missing or damaged file) and UnsupportedModel (family, remote code).
    """
    raw = _read_json(folder / "config.json")
    check_family(raw.get("model_type"), bool(raw.get("auto_map")))
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        with _quiet():
            config: PretrainedConfig = AutoConfig.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
    except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
        raise ModelUnavailable(
            f"{folder / 'config.json'} holds values that cannot be used ({_short(error)}); "
            "download the model again."
        ) from error
    return config


def _short(error: BaseException) -> str:
    """The first line of an error's text, at most 120 characters, without a final full stop."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:120].rstrip(".: ")


def block_shape(config: PretrainedConfig) -> BlockShape:
    """Sizes and options of the decoder blocks of a configuration.

    Raises UnsupportedModel that names the option which River's block does not have.
    """
    check_family(config.model_type, bool(getattr(config, "auto_map", None)))
    family = _FAMILIES[config.model_type]
    _check_options(config, family)
    heads, kv_heads, head_dim = _heads(config)
    return BlockShape(
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=config.intermediate_size,
        eps=float(config.rms_norm_eps),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        window=getattr(config, "sliding_window", None) if family.windowed else None,
    )


def _check_options(config: PretrainedConfig, family: Family) -> None:
    """Raise UnsupportedModel for an option that River's block does not have."""
    refused = ["attention_bias", "mlp_bias", "use_sliding_window"]
    if not family.windowed:
        refused.append("sliding_window")
    for name in refused:
        if getattr(config, name, None):
            raise UnsupportedModel(f"models with {name} are not supported; choose one without it.")
    for kind in getattr(config, "layer_types", None) or ():
        if kind != "full_attention":
            raise UnsupportedModel(
                f"layers of type {kind!r} (layer_types) are not supported; choose a model whose "
                "layers are all of type 'full_attention'."
            )
    if getattr(config, "quantization_config", None) is not None:
        raise UnsupportedModel(
            "this model's weights are already quantised (quantization_config); choose the 16-bit "
            "version of it."
        )
    if config.hidden_act != "silu":
        raise UnsupportedModel(
            f"the activation {config.hidden_act!r} is not supported; choose a model with silu."
        )
    _rope_type(config)


def _heads(config: PretrainedConfig) -> tuple[int, int, int]:
    """Query heads, key heads and values per head; UnsupportedModel where they do not divide."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    if heads % kv_heads or head_dim % 2:
        raise UnsupportedModel(
            f"{heads} query heads over {kv_heads} key heads of {head_dim} values do not divide "
            "evenly; choose a model whose do."
        )
    return heads, kv_heads, head_dim


def _rope_type(config: PretrainedConfig) -> str:
    parameters = getattr(config, "rope_parameters", None) or {}
    rope_type = str(parameters.get("rope_type", "default"))
    if rope_type not in _ROPE_TYPES:
        raise UnsupportedModel(
            f"RoPE scaling {rope_type!r} is not supported; choose a model with one of "
            f"{', '.join(_ROPE_TYPES)}."
        )
    return rope_type


def rope_tables(config: PretrainedConfig, capacity: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines for positions 0..capacity-1, each fp32 [capacity, head_dim].

    Computed by transformers' own rotary module, its scaling included; the second half of each row
    repeats the first. Raises UnsupportedModel for scalings that change with the length.
    """
    _rope_type(config)
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(config)  # type: ignore[arg-type]
    with torch.no_grad():
        positions = torch.arange(capacity).unsqueeze(0)
        cos, sin = rotary(torch.zeros(1, dtype=torch.float32), positions)
    return cos[0].contiguous(), sin[0].contiguous()


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Read the tokenizer of a folder in hub layout.

    Raises ModelUnavailable (files missing or damaged) and UnsupportedModel (own code).
    """
    settings = folder / "tokenizer_config.json"
    if settings.is_file() and _read_json(settings).get("auto_map"):
        raise UnsupportedModel(
            "this model's tokenizer brings its own code (auto_map), which River never runs; choose "
            "a model without it."
        )
    from transformers import AutoTokenizer

    try:
        with _quiet():
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
    except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
        raise ModelUnavailable(
            f"the folder {folder} has no tokenizer that can be read ({_short(error)}); add its "
            "tokenizer.json or download the model again."
        ) from error
    return tokenizer


def eos_ids(
    folder: Path, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[int, ...]:
    """Every token id that ends an answer, without repeats.

    From generation_config.json, the configuration and the tokenizer, in this order; each may name
    none, one or several.
    """
    sources: list[object] = []
    generation = folder / "generation_config.json"
    if generation.is_file():
        sources.append(_read_json(generation).get("eos_token_id"))
    sources += [getattr(config, "eos_token_id", None), getattr(tokenizer, "eos_token_id", None)]
    found: dict[int, None] = {}
    for source in sources:
        for item in source if isinstance(source, list | tuple) else [source]:
            if isinstance(item, int) and not isinstance(item, bool) and item >= 0:
                found[item] = None
    return tuple(found)


def gguf_config_and_tokenizer(
    path: Path, model_type: str, settings: dict[str, Any], backend: Tokenizer | None
) -> tuple[PretrainedConfig, PreTrainedTokenizerBase]:
    """The configuration of a `model_type` with these settings, and a GGUF file's tokenizer.

    `backend` is the tokenizer's inner part; without one transformers builds it from the file's
    metadata. Raises UnsupportedModel for metadata that cannot be turned into either.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, PreTrainedTokenizerFast

    failures = (OSError, ValueError, TypeError, LookupError, ImportError, StrictDataclassError)

    where: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    try:
        with _quiet():
            config = AutoConfig.for_model(model_type, **settings)
            tokenizer = (
                PreTrainedTokenizerFast.from_pretrained(str(path.parent), **where)
                if backend is None
                else PreTrainedTokenizerFast(tokenizer_object=backend)
            )
    except failures as error:
        raise UnsupportedModel(
            f"the GGUF file {path.name} describes a model or tokenizer that cannot be rebuilt "
            f"({_short(error)}); choose the Hugging Face version of this model."
        ) from error
    return config, tokenizer
