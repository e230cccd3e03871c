"""All words a person reads come from one dictionary, `assets/text/en.json`, so a translation is a
file. Placeholders are `{name}`; a missing key or value is an error, not an empty string.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

ASSETS = Path(__file__).resolve().parents[2] / "assets"
_chosen = ["en"]  # of the whole page, set once before it is built


def languages() -> list[str]:
    """Codes of the dictionaries that are there."""
    return sorted(path.stem for path in (ASSETS / "text").glob("*.json"))


def choose_language(code: str) -> None:
    """Take all words from that dictionary from now on. Raises ValueError for one that is not."""
    if code not in languages():
        raise ValueError(f"language is {code!r}; use one of {', '.join(languages())}.")
    _chosen[0] = code


def language() -> str:
    """The code of the language in use."""
    return _chosen[0]


def dictionary() -> dict[str, str]:
    """Key -> sentence with `{placeholders}`; the page receives the same dictionary."""
    return read_dictionary(_chosen[0])


@lru_cache
def read_dictionary(code: str) -> dict[str, str]:
    """That of one language."""
    path = ASSETS / "text" / f"{code}.json"
    text: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return text


@lru_cache(maxsize=1)
def prompts() -> tuple[str, ...]:
    """The example prompts."""
    return tuple(json.loads((ASSETS / "prompts.json").read_text(encoding="utf-8")))


def say(key: str, **values: object) -> str:
    """The sentence named `key` with its placeholders filled; KeyError when either is missing."""
    return dictionary()[key].format_map(values)


def listed(parts: Iterable[str]) -> str:
    """Words one after the other, as the language separates them: 'a, b'."""
    return say("list.comma").join(parts)


def listed_apart(parts: Iterable[str]) -> str:
    """The same for parts that hold commas themselves: 'a, b; c, d'."""
    return say("list.semicolon").join(parts)


def sentences(parts: Iterable[str]) -> str:
    """Whole sentences one after the other; empty ones are left out."""
    return say("list.sentence").join(filter(None, parts))
