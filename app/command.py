"""The command line that decodes a recorded lane again, quoted so that a shell runs nothing else.

A record keeps the prompt as tokens. Where the typed text is not known, it is read back from them,
which works for raw text and for the chat template of the packaged model.
"""

from __future__ import annotations

import json
import shlex
import unicodedata
from dataclasses import fields

from river_core.errors import RiverError
from river_core.policies import find_policy
from river_core.records import PromptRecord, RunRecord
from river_core.settings import DecodeSettings, QuantSpec

from .views.wording import say

USER, END = "<|im_start|>user\n", "<|im_end|>"
OPTIONS = ("policy", "threshold", "exit", "head", "prefill", "max_new_tokens", "temperature")
MORE = ("top_p", "seed")
DEVICES = ("cpu", "cuda", "mps")
UNSEEN = ("Cc", "Cf", "Zl", "Zp")  # a terminal may act on these when they are pasted


def command(record: RunRecord, prompt: str | None) -> tuple[str, str]:
    """(the command, "") or ("", one sentence that says why there is none)."""
    reason = _reason(record, prompt)
    if reason:
        return "", say(f"export.command.{reason}")
    try:
        settings = known_settings(record)
    except (RiverError, TypeError):
        return "", say("export.command.settings")
    model = _option("model", record.header.model)
    arguments = [*model, *_options(settings), *_flags(record, settings)]
    words = ["python", "-m", "river_core", "generate", *arguments, "--", str(prompt)]
    line = " ".join(map(quote, words))
    return (f"printf %s - | {line}" if prompt == "-" else line), ""


def known_settings(record: RunRecord) -> DecodeSettings:
    """What has to be asked for to get the record's settings: its policy's own values left out.

    Raises RiverError or TypeError where they are not a run's.
    """
    names = {field.name for field in fields(DecodeSettings)}
    given = {k: v for k, v in record.header.settings.items() if k in names}
    row = find_policy(given.get("policy", ""))
    for name, own in (("exit", row.exits), ("head", row.heads), ("prefill", row.prefills)):
        if given.get(name) == own[0]:
            given[name] = None
    return DecodeSettings.from_keywords(given)


def typed_prompt(prompt: PromptRecord) -> str | None:
    """What was typed, where the tokens' texts still show it."""
    text = "".join(prompt.texts)
    if not prompt.chat:
        return None
    head, found, rest = text.partition(USER)
    typed, closed, _ = rest.partition(END)
    whole = found and closed and typed.strip() and USER not in rest and "assistant\n" not in head
    return typed if whole else None


def quote(word: str) -> str:
    """A word for a POSIX shell; control and invisible characters as escapes (bash and zsh)."""
    if not any(unicodedata.category(c) in UNSEEN and c != "\n" for c in word):
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(c: str) -> str:
    if c in "\\'!":
        return f"\\x{ord(c):02x}"
    if unicodedata.category(c) not in UNSEEN:
        return c
    if ord(c) < 0x80:
        return f"\\x{ord(c):02x}"
    return f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}"


def _reason(record: RunRecord, prompt: str | None) -> str:
    thresholds = {token.threshold for token in record.tokens}
    if record.header.forced_tokens:
        return "forced"
    if not prompt or "\0" in prompt:
        return "prompt"
    return "moved" if len(thresholds) > 1 else ""


def _options(settings: DecodeSettings) -> list[str]:
    usual, words = DecodeSettings(), []
    for name in (*OPTIONS, *MORE):
        value = getattr(settings, name)
        if value is not None and (name in OPTIONS or value != getattr(usual, name)):
            words += _option(name, value)
    return words


def _option(name: str, value: object) -> list[str]:
    """Two words, or one where the value would read as an option itself."""
    option, text = "--" + name.replace("_", "-"), str(value)
    return [f"{option}={text}"] if text.startswith("-") else [option, text]


def _flags(record: RunRecord, settings: DecodeSettings) -> list[str]:
    words = [word for text in settings.stop for word in _option("stop", text)]
    if settings.options:
        words += ["--options", json.dumps(settings.options)]
    if not settings.chat:
        words.append("--raw")
    forced = [token.exit_layer for token in record.tokens if token.forced]
    if forced:
        words += ["--resident", str(max(forced))]
    device = record.header.device.partition(":")[0]
    if device in DEVICES:
        words += ["--device", device]
    return [*words, *_river(record.header.quantisation)]


def _river(label: str) -> list[str]:
    """The river's back end, where the command line can name it."""
    try:
        QuantSpec.parse(label)
    except RiverError:
        return []
    return _option("river", label)
