"""The shipped task sets: every answer is checked by program, every item has its form."""

from __future__ import annotations

import ast
import operator
import os
import re
from collections import Counter

import pytest

from river_core.sandbox import run_code
from river_core.tasks import local

MATH = local.read_items("river_math")
SHOTS = local.read_items("river_math_shots")
CHOICE = local.read_items("river_choice")
CODE = local.read_items("river_code")
EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
WORKS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
IN_WORDS = {2: ("half", "twice"), 3: ("third", "three"), 4: ("quarter",), 12: ("dozen",)}


def test_sizes_and_columns() -> None:
    assert min(len(MATH), len(CHOICE), len(CODE)) >= 40
    assert len(SHOTS) == 5
    for items in (MATH, CHOICE, CODE):
        assert all(list(item) == list(items.features) for item in items)
    assert local.math()["test"] == MATH
    assert local.choice()["test"] == CHOICE
    assert local.code()["test"] == CODE


@pytest.mark.parametrize("item", [*MATH, *SHOTS], ids=lambda item: item["question"][:40])
def test_math_answers_follow_from_their_questions(item: dict[str, str]) -> None:
    """Every equation holds, takes only numbers that are known by then, and the last is the answer.

    Known are the question's numbers, in digits or words, and the results so far.
    """
    steps, answer = item["answer"].split("\n#### ")
    known = {int(n) for n in re.findall(r"\d+", item["question"])}
    words = item["question"].lower()
    known |= {n for n, names in IN_WORDS.items() if any(name in words for name in names)}
    results = []
    for step in steps.split("\n"):
        (equation,) = EQUATION.findall(step)
        left, sign, right, result = equation
        assert WORKS[sign](int(left), int(right)) == int(result), step
        assert {int(left), int(right)} <= known, step
        known.add(int(result))
        results.append(result)
    assert results[-1] == answer
    assert len(results) >= 2


def test_math_checker_sees_a_wrong_answer() -> None:
    bad = {"question": "2 and 3?", "answer": "2 + 3 = 6.\n6 + 2 = 8.\n#### 8"}
    with pytest.raises(AssertionError):
        test_math_answers_follow_from_their_questions(bad)


def test_no_question_twice() -> None:
    for items, name in ((MATH + SHOTS, "question"), (CHOICE, "question"), (CODE, "entry_point")):
        assert max(Counter(item[name] for item in items).values()) == 1


def test_choices_have_one_gold_each_balanced() -> None:
    for item in CHOICE:
        options = item["choices"]
        assert len(options) == len({option.lower() for option in options}) == 4
        assert options.count(item["right"]) == 1
        assert options[item["gold"]] == item["right"]
    counts = Counter(item["gold"] for item in CHOICE)
    assert set(counts.values()) == {len(CHOICE) // 4}


def test_gold_is_not_given_away_by_length() -> None:
    longest = sum(max(x["choices"], key=len) == x["right"] for x in CHOICE)
    assert longest < len(CHOICE) / 2


@pytest.mark.parametrize("item", CODE, ids=lambda item: item["entry_point"])
@pytest.mark.skipif(os.name != "posix", reason="the sandbox needs resource limits")
def test_code_solutions_pass_and_nothing_else_does(item: dict[str, str]) -> None:
    assert item["prompt"].startswith(f"def {item['entry_point']}(")
    ast.parse(item["prompt"])
    found = run_code(local.program(item, item["canonical_solution"]))
    assert found.passed, found
    assert not run_code(local.program(item, "    return None\n")).passed


def test_passes_is_the_metric() -> None:
    item = CODE[0]
    assert local.passes(item, [item["canonical_solution"]]) == {"pass_at_1": 1.0}
    assert local.passes(item, ["    return -1"]) == {"pass_at_1": 0.0}
