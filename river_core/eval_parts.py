"""One part of an evaluation's file: a task under one setting, run or gone on with.

Knows what a part is called and what its answers depend on; the harness asks, the loop answers.
harness.py is imported when a part is run, since its library is an extra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import SettingsError
from .evaluate import Order, Scorer, describe
from .model import RiverModel
from .paper_table4 import NONE
from .resumable import Lines
from .sandbox import network_off
from .thresholds import Threshold, resolved

Say = Callable[[str, float | None], None]


@dataclass(frozen=True)
class Part:
    """A task under DecodeSettings' fields, scored one way.

    `back_end` is the river's label where several are compared, NONE for rows that use no river, and
    None elsewhere; `auto` what a threshold "auto" came to.
    """

    setting: Mapping[str, Any]
    task: str
    scoring: str = "sequence"
    back_end: str | None = None
    auto: Threshold | None = None

    def name(self, scoring: str | None = None) -> str:
        """What the file calls it; under another scoring where one is given."""
        scoring = self.scoring if scoring is None else scoring
        words = [self.task, self.setting["policy"]]
        given = (name for name in ("threshold", "prefill") if name in self.setting)
        words += [f"{name} {self.setting[name]}" for name in given]
        words += [] if self.back_end is None else [f"back end {self.back_end}"]
        return ", ".join([*words, *([f"scoring {scoring}"] if scoring != "sequence" else [])])


def in_force(
    model: RiverModel, setting: Mapping[str, Any], target_match: float
) -> tuple[dict[str, Any], Threshold | None]:
    """The setting with its threshold as a number, and for "auto" where that came from.

    One that names no threshold stays as it is; None is the model's own. Raises SettingsError for
    "auto" where nothing is stored or the policy reads no similarity.
    """
    if "threshold" not in setting:
        return dict(setting), None
    found = resolved(model, **setting, target_match=target_match)
    return {**setting, "threshold": found.value}, found if found.origin else None


def run_part(file: Lines, model: RiverModel, part: Part, order: Order, say: Say) -> None:
    """Its header, the items that the file lacks, its result; what cannot be scored is noted.

    Raises SettingsError where the policy refuses the setting, the task cannot be run, or the file
    holds the part under another header.
    """
    from .harness import RiverLM, evaluate_task

    name = part.name()
    if part.scoring != "sequence":
        usual = file.of(part.name("sequence"), "item")
        if any("text" in answer for item in usual for answer in item["answers"]):
            return  # text has token-level exits whatever the scoring
    if file.of(name, "skipped"):
        return
    try:
        scorer = Scorer(model, part.setting, part.scoring)
    except SettingsError as error:
        if part.scoring == "sequence":
            raise
        file.append({"part": name, "type": "skipped", "reason": str(error)})
        return
    file.begin(name, _header(scorer, order, part))
    _note_auto(file, part)
    if file.of(name, "result"):
        return
    network = network_off() if order.allow_code else ""
    result = evaluate_task(RiverLM(scorer, file, name, order.seed, say), order)
    file.append({"part": name, "type": "result", "task": part.task, **result, "network": network})


def _note_auto(file: Lines, part: Part) -> None:
    """Write where the threshold is from, once."""
    if part.auto is None:
        return
    line = {"origin": part.auto.origin, "notes": list(part.auto.notes)}
    line = {"part": part.name(), "type": "auto", **line}
    if line not in file.of(part.name(), "auto"):
        file.append(line)


def _header(scorer: Scorer, order: Order, part: Part) -> dict[str, Any]:
    """What the part's answers depend on; leave to run code is none of it."""
    from .harness import HARNESS_VERSION

    names = ("task", "limit", "shots", "seed", "chat")
    asked: dict[str, Any] = {name: getattr(order, name) for name in names}
    head = {**describe(scorer), "harness": f"lm-eval {HARNESS_VERSION}", **asked}
    if part.back_end is None:
        return head
    if part.back_end == NONE:  # whichever river was loaded beside it
        dense = {k: v for k, v in head["kernels"].items() if not k.endswith(" int4")}
        head |= {"quantisation": NONE, "kernels": dense}
    return head | {"back_end": part.back_end}
