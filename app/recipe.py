"""A link's recipe: what the page was asked, as a query string, and back into the page's controls.

A recipe never runs by itself. It may come from anyone: each value is checked alone, a wrong one is
told in one sentence and left out, and the others are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from river_core.errors import RiverError
from river_core.policies import POLICIES
from river_core.records import RunRecord
from river_core.settings import HEADS, PREFILLS, DecodeSettings

from .asked import DEFAULTS, ask
from .command import known_settings
from .views.english import told
from .views.policies import ON_PAGE
from .views.run import LANES
from .views.wording import say

MODEL = "model"
LONGEST_PROMPT = 4000  # characters of a link's prompt; addresses longer than that get lost
LONGEST_QUOTED = 60  # characters of a wrong value that a sentence repeats
SHARED = ("threshold", "max_new_tokens", "temperature", "seed")
SPECIAL = ("exit", "head", "prefill")


@dataclass(frozen=True)
class Recipe:
    """The values that can be used, by the names of `asked.DEFAULTS`, and what to tell."""

    values: dict[str, Any] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()


def read_recipe(query: Mapping[str, str], model: str) -> Recipe:
    """From a page's query; empty without a recipe. `model` is the name of the page's own."""
    given = {name: text for name, text in query.items() if not name.startswith("_")}
    if not set(given) & set(DEFAULTS):
        return Recipe()
    values, wrong = {}, []
    for name, text in given.items():
        if name == MODEL:
            continue
        try:
            values[name] = _READERS[name](name, text)
        except KeyError:
            wrong.append(say("share.unknown", name=_short(name)))
        except (RiverError, ValueError):
            wrong.append(say("share.wrong", name=_short(name), value=_short(text)))
    made_with = given.get(MODEL, model)
    if made_with != model:
        wrong.append(say("share.model", theirs=_short(made_with), ours=model))
    wrong += _together(values)
    return Recipe(values, (say("share.press_run"), *wrong) if values else tuple(wrong))


def recipe_of(records: Sequence[RunRecord], prompt: str | None) -> dict[str, str] | None:
    """The query of a recorded run; None where the page's controls cannot ask for the same."""
    if not prompt or len(prompt) > LONGEST_PROMPT or len(records) != len(LANES):
        return None
    try:
        asked = [known_settings(record) for record in records]
        values = _values(asked, prompt)
        again = ask(values).lanes
    except (RiverError, TypeError):
        return None
    for lane, wanted in zip(LANES, asked, strict=True):
        if not _same(DecodeSettings(**again[lane]), wanted):
            return None
    query = {k: str(v) for k, v in values.items() if v not in (None, "")}
    return query | {MODEL: records[0].header.model}


def _values(asked: Sequence[DecodeSettings], prompt: str) -> dict[str, Any]:
    values = {"prompt": prompt, **dict(zip(LANES, (a.policy for a in asked), strict=True))}
    values |= {name: getattr(asked[0], name) for name in SHARED}
    for one in asked:
        values |= {name: getattr(one, name) for name in SPECIAL if getattr(one, name)}
        values |= {k: v for k, v in one.options.items() if k == "exit_layer"}
    return values


def _same(one: DecodeSettings, other: DecodeSettings) -> bool:
    names = ("policy", *SHARED, *SPECIAL, "options", "top_p", "chat", "stop")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _together(values: Mapping[str, Any]) -> list[str]:
    """What Run would refuse of them."""
    try:
        ask(values)
    except RiverError as error:
        return [told(error)]
    return []


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_QUOTED else text[: LONGEST_QUOTED - 1] + "…"


def _prompt(name: str, text: str) -> str:
    if not text.strip() or len(text) > LONGEST_PROMPT:
        raise ValueError(name)
    return text


def _one_of(allowed: Sequence[str]) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text not in allowed:
            raise ValueError(name)
        return text

    return read


def _whole(name: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,15}", text):
        raise ValueError(name)
    if name != "exit_layer":
        DecodeSettings.from_keywords({name: int(text)})
    return int(text)


def _number(name: str, text: str) -> float:
    if not re.fullmatch(r"-?[0-9]{0,9}(\.[0-9]{1,12})?(e-[0-9]{1,2})?", text):
        raise ValueError(name)
    DecodeSettings.from_keywords({name: float(text)})
    return float(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(name)
    return text.lower() == "true"


_READERS: dict[str, Callable[[str, str], Any]] = {
    "prompt": _prompt,
    "threshold": _number,
    "max_new_tokens": _whole,
    "upper": _one_of(tuple(POLICIES)),
    "lower": _one_of(tuple(POLICIES)),
    "exit": _one_of(ON_PAGE),
    "exit_layer": _whole,
    "head": _one_of(HEADS),
    "prefill": _one_of(PREFILLS),
    "temperature": _number,
    "seed": _whole,
    "profile": _flag,
}
