"""A tokenizer of a kind for tiny models, and a short text in place of the bundled one."""

from __future__ import annotations

from typing import Any

TEXT = [
    ("the river runs past", "the old mill and the green hills " * 4),
    ("one two", "three " * 20),
]


class Words:
    """A tokenizer of a kind: a word is a number below the vocabulary's size."""

    def __init__(self, vocab: int, chat_template: str | None = None) -> None:
        self.vocab, self.chat_template = vocab, chat_template

    bos_token_id = None

    def __call__(
        self, text: str, add_special_tokens: bool = True, **_: Any
    ) -> dict[str, list[int]]:
        return {"input_ids": [sum(map(ord, word)) % self.vocab for word in text.split()]}

    def apply_chat_template(self, messages: Any, tokenize: bool, **_: Any) -> str:
        return "user " + messages[0]["content"] + " assistant"
