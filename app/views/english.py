"""The engine's words on a page in another language: translated where the dictionary knows them,
else left in English, introduced as such and marked.

The engine speaks English. Its fixed sentences stand in the dictionary under `engine.`: the English
entry is the pattern that recognises them. A stretch that stays English lies between two marks,
Unicode's own for "a piece of text apart", which are not seen; the page makes it an element with
`lang="en"`, so that a screen reader speaks it right. On an English page nothing changes.
"""

from __future__ import annotations

import html
import re
from functools import lru_cache

from river_core.errors import RecordError, RiverError

from .wording import language, read_dictionary, say, sentences

OPEN, CLOSE = "\u2068", "\u2069"
MARKED = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")
KNOWN = "engine."
RESTORE = re.compile(r"; restore \w+ with model\.set_resident\((\d+)\)\.$")
LONGEST = 500  # characters of a sentence that is looked up: it may come from a visitor's file


class Refused(RiverError):
    """An error in the page's own words, which are in the page's language already."""


class RefusedRecord(Refused, RecordError):
    """The same, about a run record."""


def marked(text: str) -> str:
    """`text`, which is English, as such on a page in another language."""
    if language() == "en":
        return text
    return OPEN + MARKED.sub(r"\1", text) + CLOSE


def told(error: object) -> str:
    """The sentence of an error; the engine's is introduced as English where the page is not.

    Its advice for evicted layers is a call in Python: here it is how the page does the same.
    """
    text = str(error)
    if isinstance(error, Refused):
        return text
    if found := RESTORE.search(text):
        return sentences((_introduced(f"{text[: found.start()]}."), _restore(found[1])))
    return _introduced(text)


def known(text: str) -> str:
    """One of the engine's fixed sentences in the page's language; any other, as `told` has it."""
    if language() == "en" or not text:
        return text
    return _translated(text) or _introduced(text)


def named(text: str) -> str:
    """A name that the engine gives, in the page's language where it is made of words."""
    return text if language() == "en" else _translated(text) or text


def with_elements(text: str) -> str:
    """For a Gradio component that shows Markdown: the marks as elements."""
    return MARKED.sub(lambda found: f'<span lang="en">{html.escape(found[1])}</span>', text)


@lru_cache(maxsize=1)
def patterns() -> dict[str, re.Pattern[str]]:
    """Key -> what recognises the engine's sentence, in the dictionary's order."""
    english = read_dictionary("en")
    return {key: _pattern(text) for key, text in english.items() if key.startswith(KNOWN)}


def _pattern(sentence: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", sentence)
    named = [f"(?P<{part}>.+?)" if i % 2 else re.escape(part) for i, part in enumerate(parts)]
    return re.compile("".join(named))


def _restore(layers: str) -> str:
    words = {"settings": "settings.title", "field": "settings.resident"}
    words |= {"button": "settings.resident.apply"}
    shown = {name: say(key) for name, key in words.items()}
    return say("settings.resident.back", layers=layers, **shown)


def _introduced(text: str) -> str:
    return say("english.says", sentence=marked(text))


def _translated(text: str) -> str | None:
    if len(text) > LONGEST:
        return None
    for key, pattern in patterns().items():
        if found := pattern.fullmatch(text):
            values = {name: _value(value) for name, value in found.groupdict().items()}
            return say(key, **values)
    return None


def _value(text: str) -> str:
    """A part of a known sentence: known itself, a name or a number, or words that stay English."""
    return _translated(text) or (marked(text) if " " in text else text)
