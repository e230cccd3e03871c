"""The tokenizer of a GGUF file, rebuilt from its vocabulary and metadata.

Byte-level and Gemma's vocabularies are rebuilt here, the same whatever the version of transformers;
of other sentencepiece ones transformers' reading is completed. Knows nothing of tensors or folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import UnsupportedModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer
    from transformers import PreTrainedTokenizerBase

    from .gguf_reader import GgufFile

_CONTROL, _USER_DEFINED = 3, 4  # kinds of tokens in `tokenizer.ggml.token_type`
_BLANK = "\u2581"  # sentencepiece's space
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


def build_backend(source: GgufFile) -> Tokenizer | None:
    """The file's tokenizer without names for its special tokens; None where transformers reads it.

    Raises UnsupportedModel for a byte-level vocabulary of a kind that is not known here.
    """
    split = _split(source.metadata)
    if split is None and source.architecture.name != "gemma3":
        return None
    tokens = source.array("tokenizer.ggml.tokens") or []
    backend = _gemma(source, tokens) if split is None else _byte_level(source, tokens, split)
    _add_special(backend, tokens, source.array("tokenizer.ggml.token_type") or [])
    return backend


def _byte_level(source: GgufFile, tokens: list[str], split: _Split) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    merges = [merge.split(" ") for merge in source.array("tokenizer.ggml.merges") or []]
    model = models.BPE(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=[(left, right) for left, right in merges],
        ignore_merges=split.whole,
        continuing_subword_prefix="",
        end_of_word_suffix="",
    )
    backend = Tokenizer(model)
    backend.normalizer = normalizers.NFC() if split.nfc else normalizers.Sequence([])
    backend.pre_tokenizer = _pre_tokenizer(split)
    backend.decoder = decoders.ByteLevel()
    return backend


def _gemma(source: GgufFile, tokens: list[str]) -> Tokenizer:
    """Gemma's sentencepiece BPE: no space before the first word, bytes for what has no token.

    The file stores tokens of several spaces as spaces. It has no merges: any two tokens that make
    a third one merge, the earliest made first.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokens[:] = [_BLANK * len(t) if len(t) > 1 and not t.strip(" ") else t for t in tokens]
    vocab = {token: number for number, token in enumerate(tokens)}
    halves = ((t[:cut], t[cut:]) for t in tokens for cut in range(len(t) - 1, 0, -1))
    merges = [(left, right) for left, right in halves if left in vocab and right in vocab]
    unknown = source.metadata.get("tokenizer.ggml.unknown_token_id")
    model = models.BPE(
        vocab=vocab,
        merges=merges,
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Replace(" ", _BLANK)
    backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend


def _add_special(backend: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Mark the tokens that are found whole in the text: control tokens and the user's own."""
    from tokenizers import AddedToken

    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        found = [token for token, k in zip(tokens, kinds, strict=False) if k == kind]
        added = [AddedToken(token, normalized=False, special=special) for token in found]
        (backend.add_special_tokens if special else backend.add_tokens)(added)


def complete_tokenizer(
    tokenizer: PreTrainedTokenizerBase, metadata: Mapping[str, Any], max_length: int
) -> None:
    """Set in place special tokens, chat template, BOS and the longest input."""
    for name, key in _SPECIAL_TOKENS.items():
        number = metadata.get(f"tokenizer.ggml.{key}")
        if number is not None:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(number))
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        tokenizer.chat_template = template
    split = _split(metadata)
    bos_unless_stated = split is None or split.bos
    tokenizer.add_bos_token = metadata.get("tokenizer.ggml.add_bos_token", bos_unless_stated)
    tokenizer.model_max_length = max_length
    if split is not None:
        tokenizer.clean_up_tokenization_spaces = False
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
