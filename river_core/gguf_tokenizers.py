"""What a GGUF file's metadata says of the tokenizer, beyond what transformers reads.

Works on the object that families.py returns; knows nothing of tensors, folders or our engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import UnsupportedModel

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer
    from transformers import PreTrainedTokenizerBase

_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
_CASED = (f"{_START}{_UPPER}*{_LOWER}+", f"{_START}{_UPPER}+{_LOWER}*")
_REST_SLASH = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_THREES = _LETTERS + r"\p{N}{1,3}" + _REST
_ONES = _LETTERS + r"\p{N}" + _REST


@dataclass(frozen=True)
class _Split:
    """How a byte-level vocabulary splits text before it merges; no pattern: GPT-2's words.

    `digits` come apart first; `whole` takes a word that is a token as it is; `bos` is whether a
    file that does not say begins with BOS, as llama.cpp reads it; `nfc` composes characters first.
    """

    pattern: str | None = None
    digits: bool = False
    whole: bool = False
    bos: bool = False
    nfc: bool = False


_TEKKEN = _Split("|".join(_CASED) + r"|\p{N}" + _REST_SLASH, whole=True, bos=True)
_LLAMA3 = _Split(_THREES, whole=True, bos=True)
# `tokenizer.ggml.pre` -> its split
_SPLITS: Mapping[object, _Split] = {
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), _Split(digits=True)),
    **dict.fromkeys(("codeshell", "exaone", "minerva-7b"), _Split(digits=True)),
    **dict.fromkeys(("gpt-2", "olmo", "mpt"), _Split()),
    **dict.fromkeys(("llama-bpe", "llama-v3", "llama3", "falcon3"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _Split(_THREES)),
    "qwen2": _Split(_ONES, nfc=True),
    "deepseek-r1-qwen": _Split(_ONES),
    "tekken": _TEKKEN,
    "gpt-4o": _Split("|".join(c + _SHORT for c in _CASED) + r"|\p{N}{1,3}" + _REST_SLASH),
}
_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
# control tokens that end a turn; a file states one end id, chat templates may close with another
_TURN_ENDS = ("<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|end|>")
# how this one file was read, or repeated by name elsewhere in the settings
_UNWANTED = (
    *("is_local", "local_files_only", "add_prefix_space", "clean_up_tokenization_spaces"),
    *("bos_token_id", "eos_token_id", "unk_token_id", "pad_token_id"),
)


def complete_tokenizer(
    tokenizer: PreTrainedTokenizerBase, metadata: Mapping[str, Any], max_length: int
) -> None:
    """Set in place how text is split before merging, special tokens, BOS and the longest input.

    Raises UnsupportedModel for a byte-level tokenizer of a kind that is not known here.
    """
    split = _split(metadata)
    if split is not None:
        _make_byte_level(tokenizer, split)
    for name, key in _SPECIAL_TOKENS.items():
        number = metadata.get(f"tokenizer.ggml.{key}")
        if number is not None:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(number))
    bos_unless_stated = split is None or split.bos
    tokenizer.add_bos_token = metadata.get("tokenizer.ggml.add_bos_token", bos_unless_stated)
    tokenizer.model_max_length = max_length
    for name in _UNWANTED:
        tokenizer.init_kwargs.pop(name, None)


def end_ids(tokenizer: PreTrainedTokenizerBase, metadata: Mapping[str, Any]) -> list[int]:
    """Ids that end an answer: the file's own, then what its chat template closes a turn with."""
    keys = ("eos_token_id", "eot_token_id")
    found = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    template = tokenizer.chat_template
    special = tokenizer.get_added_vocab()
    if isinstance(template, str):
        found += [special.get(token) for token in _TURN_ENDS if token in template]
    return list(dict.fromkeys(number for number in found if isinstance(number, int)))


def _make_byte_level(tokenizer: PreTrainedTokenizerBase, split: _Split) -> None:
    """The same byte-level BPE whatever the transformers version made of the file."""
    from tokenizers import decoders, normalizers

    backend = tokenizer.backend_tokenizer
    backend.normalizer = normalizers.NFC() if split.nfc else normalizers.Sequence([])
    backend.pre_tokenizer = _pre_tokenizer(split)
    backend.decoder = decoders.ByteLevel()
    backend.model.byte_fallback = False
    backend.model.fuse_unk = False
    backend.model.ignore_merges = split.whole
    tokenizer.clean_up_tokenization_spaces = False


def _split(metadata: Mapping[str, Any]) -> _Split | None:
    """The split that a byte-level vocabulary was made with; None for sentencepiece."""
    model, name = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model == "llama":
        return None
    if model != "gpt2" or name not in _SPLITS:
        raise UnsupportedModel(
            f"this GGUF file has a tokenizer of kind {name!r} ({model!r}) that cannot be rebuilt "
            "exactly; choose the Hugging Face version of this model."
        )
    return _SPLITS[name]


def _pre_tokenizer(split: _Split) -> PreTokenizer:
    from tokenizers import Regex, pre_tokenizers

    if split.pattern is not None:
        parts = pre_tokenizers.Split(Regex(split.pattern), behavior="isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([parts, plain])
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if not split.digits:
        return words
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
