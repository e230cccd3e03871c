"""Configuration, tokenizer and stop ids of a folder in hub layout or a GGUF file, as transformers
reads them.

Each failure becomes one sentence. What a configuration means is families.py's; nothing here knows
where a folder came from or our engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ModelUnavailable, UnsupportedModel
from .families import check_family, check_storage

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


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


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ModelUnavailable where there is none that can be read."""
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


def read_config(folder: Path) -> PretrainedConfig:
    """Read `folder/config.json` of a supported family: the text model's part, where it is wrapped.

    Raises ModelUnavailable (missing or damaged file) and UnsupportedModel (family, quantised
    weights).
    """
    raw = read_json(folder / "config.json")
    check_family(raw)
    check_storage(raw.get("quantization_config"))
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
    text = config.get_text_config()
    if text is not config:
        text.tie_word_embeddings = config.tie_word_embeddings
    return text


def _short(error: BaseException) -> str:
    """The first line of an error's text, at most 120 characters, without a final full stop."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:120].rstrip(".: ")


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder in hub layout has a tokenizer; it may still be refused."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Read the tokenizer of a folder in hub layout.

    Raises ModelUnavailable (files missing or damaged) and UnsupportedModel (own code).
    """
    settings = folder / "tokenizer_config.json"
    if settings.is_file() and read_json(settings).get("auto_map"):
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
        sources.append(read_json(generation).get("eos_token_id"))
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
