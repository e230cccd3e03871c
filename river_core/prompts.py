"""What a caller passes as a prompt, to token ids: text, chat messages, or ids as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import SettingsError
from .model import RiverModel
from .text import chat_ids, raw_ids

Prompt = str | Sequence[Mapping[str, str]] | Sequence[int]


def encode(model: RiverModel, prompt: Prompt, chat: bool) -> tuple[tuple[int, ...], bool]:
    """Token ids of `prompt`, and whether the chat template was applied.

    A string becomes a user message where the tokenizer has a template and `chat` is True, else raw
    text with at most one beginning-of-sequence token. Raises SettingsError for anything empty, out
    of range, or of another form.
    """
    if isinstance(prompt, str):
        if not prompt.strip():
            raise SettingsError("the prompt is empty; type a question or some text.")
        tokenizer = _tokenizer(model)
        if chat and tokenizer.chat_template:
            return chat_ids(tokenizer, [{"role": "user", "content": prompt}]), True
        return raw_ids(tokenizer, prompt), False
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes) and len(prompt):
        if all(isinstance(item, Mapping) for item in prompt):
            return _messages(model, prompt), True  # type: ignore[arg-type]
        if all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
            return check_ids(model, prompt), False  # type: ignore[arg-type]
    if isinstance(prompt, Sequence) and not len(prompt):
        raise SettingsError("the prompt is empty; type a question or some text.")
    raise SettingsError(
        "the prompt must be a string, a list of role/content messages, or a list of token ids, "
        f"not {type(prompt).__name__}."
    )


def check_ids(model: RiverModel, ids: Sequence[int]) -> tuple[int, ...]:
    """The ids as a tuple; raises SettingsError naming the first outside the vocabulary."""
    for i in ids:
        if not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < model.vocab:
            raise SettingsError(
                f"token id {i!r} is outside the vocabulary; use 0 to {model.vocab - 1}."
            )
    return tuple(ids)


def _tokenizer(model: RiverModel) -> Any:
    if model.tokenizer is None:
        raise SettingsError("this model has no tokenizer; give the prompt as a list of token ids.")
    return model.tokenizer


def _messages(model: RiverModel, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
    for message in messages:
        fine = set(message) >= {"role", "content"}
        if not fine or not all(isinstance(message[key], str) for key in ("role", "content")):
            raise SettingsError(
                f"a message needs 'role' and 'content' strings, but one is {dict(message)!r}."
            )
    tokenizer = _tokenizer(model)
    if not tokenizer.chat_template:
        raise SettingsError("this model has no chat template; give the prompt as a string.")
    return chat_ids(tokenizer, [dict(message) for message in messages])
