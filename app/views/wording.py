"""All words a person reads come from one dictionary, `assets/text/en.json`, so a translation is a
file. Placeholders are `{name}`; a missing key or value is an error, not an empty string.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

ASSETS = Path(__file__).resolve().parents[2] / "assets"


@lru_cache(maxsize=1)
def dictionary() -> dict[str, str]:
    """Key -> sentence with `{placeholders}`; the page receives the same dictionary."""
    text: dict[str, str] = json.loads((ASSETS / "text" / "en.json").read_text(encoding="utf-8"))
    return text


@lru_cache(maxsize=1)
def prompts() -> tuple[str, ...]:
    """The example prompts."""
    return tuple(json.loads((ASSETS / "prompts.json").read_text(encoding="utf-8")))


def say(key: str, **values: object) -> str:
    """The sentence named `key` with its placeholders filled; KeyError when either is missing."""
    return dictionary()[key].format_map(values)
