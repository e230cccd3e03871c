"""The lesson's words: every step has them all, and every number in them comes from a record."""

from __future__ import annotations

import re

import pytest

from app.shipped import shipped
from app.views.wording import ASSETS, dictionary

STEPS = range(1, 8)
CODE = (ASSETS / "js" / "syllabus.js").read_text(encoding="utf-8")
ALWAYS = ("title", "plain", "term", "fact", "time", "say", "wrong")
QUESTIONS = tuple(f"{letter}{i}" for i in (1, 2, 3) for letter in "qa")
RECORDED = {"layers", "upper", "lower", "title", "label", "settings", "bits"}


def blocks() -> list[str]:
    """The table of steps, one text each."""
    table = CODE.partition("const SYLLABUS = [")[2].partition("\n];")[0]
    return re.findall(r"^  \{\n(.*?)^  \},", table, re.DOTALL | re.MULTILINE)


def tasks(block: str) -> list[str]:
    listed = block.partition("tasks: {")[2].partition("facts:")[0]
    return re.findall(r"(\w+): \(\) =>", listed)


def test_there_are_seven_steps() -> None:
    assert len(blocks()) == len(STEPS)
    numbered = {int(n) for n in re.findall(r"lesson\.(\d+)\.", " ".join(dictionary()))}
    assert numbered == set(STEPS)


@pytest.mark.parametrize("step", STEPS)
def test_every_step_has_its_words(step: int) -> None:
    block = blocks()[step - 1]
    keys = [*ALWAYS, *QUESTIONS, *(f"task.{name}" for name in tasks(block))]
    if "guess:" in block:
        keys.append("ask")
    found = {key.removeprefix(f"lesson.{step}."): text for key, text in dictionary().items()
             if key.startswith(f"lesson.{step}.")}  # fmt: skip
    assert sorted(found) == sorted(keys)
    assert all(text.strip() for text in found.values())
    assert found["plain"].count(".") == 1 and found["time"].endswith("minutes.")


def test_the_times_leave_room_in_a_class_of_45_minutes() -> None:
    minutes = [int(dictionary()[f"lesson.{step}.time"].split()[0]) for step in STEPS]
    assert sum(minutes) <= 45


@pytest.mark.parametrize("step", STEPS)
def test_every_placeholder_is_a_fact_of_the_script(step: int) -> None:
    known = RECORDED | set(re.findall(r"(\w+)[:,]", CODE))
    for key, text in dictionary().items():
        if key.startswith(f"lesson.{step}."):
            assert set(re.findall(r"\{(\w+)\}", text)) <= known, key


def test_no_measured_number_stands_in_a_text() -> None:
    allowed = {"16", "1", "2"}  # 16-bit, similarity 1, "not twice"
    for key, text in dictionary().items():
        if re.match(r"lesson\.\d+\.", key) and not key.endswith(".time"):
            assert set(re.findall(r"\d+(?:\.\d+)?", text)) <= allowed, key


def test_the_shipped_runs_have_what_the_lesson_needs() -> None:
    pairs = {
        tuple(run["lanes"][lane]["policy"] for lane in ("upper", "lower")): run
        for run in shipped()
        if run["difference"]
    }
    holes = pairs["river", "kv-mask"]
    assert pairs["river", "backbone"]["preview"]
    assert holes["recorded"]["settings"].count("head “river”, prompt pass “full”") == 2
    assert holes["recorded"]["bits"] == "4"
    assert re.search(r'"b\d+m\d+"', holes["lanes"]["lower"]["tokens"])
