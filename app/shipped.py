"""The recorded runs that come with the page: how each is made, and their views.

`python -m app.shipped` decodes them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import river_core
from river_core.records import RunRecord

from .recorded import read, saved, view
from .views.policies import policy_name
from .views.wording import ASSETS, prompts, say

RUNS = ASSETS / "runs"
MODEL = "smollm2-135m-packaged"
ROUNDS = 5  # of which the fastest is kept: other work on a machine only slows


@dataclass(frozen=True)
class Recipe:
    """How a shipped file is made: an example prompt by its number, and its lanes' settings."""

    prompt: int
    upper: Mapping[str, Any]
    lower: Mapping[str, Any]
    tokens: int = 90


RIVER, BACKBONE = {"policy": "river"}, {"policy": "backbone"}
ONLY_THE_CACHE = {"threshold": 0.97, "head": "river", "prefill": "full"}  # the rest is the same
SHIPPED = {
    "1-rain": Recipe(0, RIVER, BACKBONE),
    "2-sky": Recipe(1, RIVER, BACKBONE),
    "3-lighthouse": Recipe(2, RIVER, BACKBONE),
    "4-holes": Recipe(0, RIVER | ONLY_THE_CACHE, {"policy": "kv-mask"} | ONLY_THE_CACHE, tokens=48),
}


def shipped() -> list[dict[str, Any]]:
    """The views of the runs in `assets/runs`, in order of their names."""
    views = []
    for path in sorted(RUNS.glob("*.jsonl")):
        records, recipe = read(path), SHIPPED.get(path.stem)
        prompt = None if recipe is None else prompts()[recipe.prompt]
        views.append(view(records, path.stem, _title(path.stem, records), prompt))
    return views


def shipped_lines() -> list[str]:
    """The texts of their files, in the same order."""
    return [path.read_text(encoding="utf-8") for path in sorted(RUNS.glob("*.jsonl"))]


def _title(name: str, records: list[RunRecord]) -> str:
    """A shipped file's prompt, and its policies where they are not the usual two."""
    recipe = SHIPPED.get(name)
    if recipe is None:
        return ""
    prompt = prompts()[recipe.prompt]
    if (recipe.upper, recipe.lower) == (RIVER, BACKBONE):
        return prompt
    upper, lower = (policy_name(str(record.header.settings["policy"])) for record in records)
    return say("recorded.title", prompt=prompt, upper=upper, lower=lower)


def make(folder: Path = RUNS) -> None:
    """Decode the shipped runs with the packaged model and write them to `folder`."""
    model = river_core.load(MODEL, device="cpu")
    for name, recipe in SHIPPED.items():
        lanes: tuple[list[RunRecord], list[RunRecord]] = ([], [])
        for _ in range(ROUNDS):
            for found, settings in zip(lanes, (recipe.upper, recipe.lower), strict=True):
                asked = {**settings, "max_new_tokens": recipe.tokens, "full_trace": True}
                found.append(river_core.generate(model, prompts()[recipe.prompt], **asked))
        text = saved([max(found, key=_rate) for found in lanes])
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8", newline="\n")


def _rate(record: RunRecord) -> float:
    return record.summary.tokens_per_second or 0.0


if __name__ == "__main__":
    make()
