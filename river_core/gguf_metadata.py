"""What a GGUF file's metadata says of configuration and tokenizer, beyond what transformers reads.

Works on the two objects that families.py returns; knows nothing of tensors, folders or our engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .errors import UnsupportedModel
from .families import rope_tables

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA3_FACTORS = (8.0, 32.0)  # Llama 3.1, 3.2
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# `tokenizer.ggml.pre` -> how a byte-level vocabulary splits text before it merges
_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
_PLAIN = ("gpt-2", "olmo", "mpt")
_LLAMA3 = ("llama-bpe", "llama-v3", "llama3", "falcon3")
_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
# how this one file was read, or repeated by name elsewhere in the settings
_UNWANTED = (
    *("is_local", "local_files_only", "add_prefix_space", "clean_up_tokenization_spaces"),
    *("bos_token_id", "eos_token_id", "unk_token_id", "pad_token_id"),
)


def complete_config(
    config: PretrainedConfig, metadata: Mapping[str, Any], rope_factors: Sequence[float] | None
) -> None:
    """Set in place the architecture, dtype float16, head_dim and RoPE of a Llama configuration.

    `metadata` holds the file's scalar fields, `rope_factors` its own divisors of the head_dim / 2
    RoPE frequencies. fp32 numbers get their shortest decimal form (1e-05). Raises UnsupportedModel
    for a RoPE scaling that cannot be rebuilt exactly.
    """
    config.rms_norm_eps = _decimal(config.rms_norm_eps)
    base = _decimal(metadata.get("llama.rope.freq_base", 10000.0))
    config.rope_parameters = {"rope_type": "default", "rope_theta": base}
    config.head_dim = metadata.get(
        "llama.attention.key_length", config.hidden_size // config.num_attention_heads
    )
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = "float16"
    if hasattr(config, "_model_name_or_path"):
        del config._model_name_or_path
    if rope_factors is not None:
        _set_llama3_rope(config, rope_factors)
    elif metadata.get("llama.rope.scaling.type", "none") != "none":
        raise _unknown_rope()


def _decimal(value: float) -> float:
    return float(str(np.float32(value)))


def _unknown_rope() -> UnsupportedModel:
    return UnsupportedModel(
        "this GGUF file scales RoPE in a way that cannot be rebuilt exactly; choose the Hugging "
        "Face version of this model."
    )


def _set_llama3_rope(config: PretrainedConfig, factors: Sequence[float]) -> None:
    """Find the published Llama 3 scaling that has these frequency divisors, to 1e-3."""
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


def complete_tokenizer(
    tokenizer: PreTrainedTokenizerBase, metadata: Mapping[str, Any], max_length: int
) -> None:
    """Set in place how text is split before merging, special tokens, BOS and the longest input.

    Raises UnsupportedModel for a byte-level tokenizer of a kind that is not known here.
    """
    splitter = _splitter(metadata)
    kind = metadata.get("tokenizer.ggml.pre")
    if splitter is not None:
        _make_byte_level(tokenizer, splitter, ignore_merges=kind in _LLAMA3)
    for name, key in _SPECIAL_TOKENS.items():
        number = metadata.get(f"tokenizer.ggml.{key}")
        if number is not None:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(number))
    bos_unless_stated = splitter is None or kind in _LLAMA3  # as llama.cpp reads these files
    tokenizer.add_bos_token = metadata.get("tokenizer.ggml.add_bos_token", bos_unless_stated)
    tokenizer.model_max_length = max_length
    for name in _UNWANTED:
        tokenizer.init_kwargs.pop(name, None)


def _make_byte_level(
    tokenizer: PreTrainedTokenizerBase, splitter: PreTokenizer, ignore_merges: bool
) -> None:
    """The same byte-level BPE whatever the transformers version made of the file."""
    from tokenizers import decoders, normalizers

    backend = tokenizer.backend_tokenizer
    backend.normalizer = normalizers.Sequence([])
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    backend.model.byte_fallback = False
    backend.model.fuse_unk = False
    backend.model.ignore_merges = ignore_merges
    tokenizer.clean_up_tokenization_spaces = False


def _splitter(metadata: Mapping[str, Any]) -> PreTokenizer | None:
    """The pre-tokenizer that a byte-level vocabulary was made with; None for sentencepiece."""
    from tokenizers import Regex, pre_tokenizers

    model, name = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model == "llama":
        return None
    if model != "gpt2" or name not in _DIGITS + _PLAIN + _LLAMA3:
        raise UnsupportedModel(
            f"this GGUF file has a tokenizer of kind {name!r} ({model!r}) that cannot be rebuilt "
            "exactly; choose the Hugging Face version of this model."
        )
    if name in _LLAMA3:
        split = pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), behavior="isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, plain])
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in _PLAIN:
        return words
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
