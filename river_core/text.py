"""Token ids to shown text, byte-correct while streaming, and from text and messages to ids.

Works on any tokenizer object with `decode`, `convert_ids_to_tokens`; imports none. What is shown
is always a prefix of the final decode: bytes of an incomplete character and the possible start of
a stop string are held back until they are decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from .errors import SettingsError

REPLACEMENT = "\ufffd"


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Text of `ids`, special tokens included; without a tokenizer '<id>' for each."""
    if tokenizer is None:
        return "".join(f"<{i}>" for i in ids)
    return str(
        tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    )


def chat_ids(tokenizer: Any, messages: list[dict[str, str]]) -> tuple[int, ...]:
    """Ids of messages in the model's chat template, up to where the answer begins.

    Raises SettingsError where the template refuses them.
    """
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise SettingsError(
            f"the model's chat template refuses these messages: {error}."
        ) from error
    return tuple(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def raw_ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Ids of plain text with at most one beginning-of-sequence token."""
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]  # ours to say what is too long
    bos = tokenizer.bos_token_id
    while len(ids) > 1 and bos is not None and ids[0] == bos and ids[1] == bos:
        ids = ids[1:]
    return tuple(ids)


class TextStream:
    """Feeds ids one by one and returns the text each makes visible; joined they are the answer."""

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self._start = 0  # decoding restarts here: some tokenizers drop a leading space
        self._read = 0  # ids before this one have been turned into text
        self._held = ""  # whole characters that may be the start of a stop string
        self.stopped = False

    def push(self, token_id: int, *, last: bool = False) -> str:
        """Text that `token_id` makes visible; `last` also releases what was held back."""
        self._ids.append(token_id)
        return self._release(self._held + self._decoded(last), last)

    def flush(self) -> str:
        """Release what was held back when the run ends without another token."""
        return self._release(self._held + self._decoded(True), True)

    def _decoded(self, last: bool) -> str:
        before = decode(self._tokenizer, self._ids[self._start : self._read])
        after = decode(self._tokenizer, self._ids[self._start :])
        if after.endswith(REPLACEMENT) and not last:
            return ""
        self._start, self._read = self._read, len(self._ids)
        return after[len(before) :]

    def _release(self, text: str, last: bool) -> str:
        for at in range(len(text)):
            for stop in self._stop:
                if text.startswith(stop, at):
                    self.stopped, self._held = True, ""
                    return text[:at]
        keep = 0 if last else self._stop_prefix(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _stop_prefix(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = max((len(s) - 1 for s in self._stop), default=0)
        for size in range(min(longest, len(text)), 0, -1):
            if any(s.startswith(text[-size:]) for s in self._stop):
                return size
        return 0


def split(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """One text per id, which joined are the decode of all; a partial character's text is ''."""
    stream = TextStream(tokenizer)
    return tuple(stream.push(i, last=n == len(ids) - 1) for n, i in enumerate(ids))


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """Characters that byte-level tokenizers write for bytes (GPT-2's printable alphabet)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    table = {chr(b): b for b in plain}
    return table | {chr(256 + n): b for n, b in enumerate(rest)}


def partial_bytes(tokenizer: Any, token_id: int) -> str:
    """Hex of a token's bytes where they are not whole characters, else ''."""
    if tokenizer is None or REPLACEMENT not in decode(tokenizer, [token_id]):
        return ""
    token = tokenizer.convert_ids_to_tokens(token_id)
    if token.startswith("<0x") and token.endswith(">"):
        return str(token[3:-1]).lower()
    alphabet = _byte_alphabet()
    if not all(c in alphabet for c in token):
        return ""
    data = bytes(alphabet[c] for c in token)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return data.hex()
    return ""
