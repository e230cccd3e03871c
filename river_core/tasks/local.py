"""What the task definitions beside this file call: our items as data sets, and tests that run.

Loaded by the harness by path. Knows nothing of models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from river_core.sandbox import run_code

HERE = Path(__file__).parent


class Items(list[dict[str, Any]]):
    """Items as the harness reads a data set: a list that knows its columns."""

    @property
    def features(self) -> dict[str, str]:
        """Column names, each with the Python type of its first value."""
        return {name: type(value).__name__ for name, value in self[0].items()}


def read_items(name: str) -> Items:
    """The items of `name`.jsonl beside this file, in its order."""
    text = (HERE / f"{name}.jsonl").read_text(encoding="utf-8")
    return Items(json.loads(line) for line in text.splitlines())


def math(**_: object) -> dict[str, Items]:
    """river_math: the problems (`test`) and five worked ones (`shots`)."""
    return {"test": read_items("river_math"), "shots": read_items("river_math_shots")}


def choice(**_: object) -> dict[str, Items]:
    """river_choice."""
    return {"test": read_items("river_choice")}


def code(**_: object) -> dict[str, Items]:
    """river_code."""
    return {"test": read_items("river_code")}


def program(item: Mapping[str, Any], completion: str) -> str:
    """The whole program of an item: its prompt, a completion, its tests and the call of them."""
    return f"{item['prompt']}{completion}\n{item['test']}\ncheck({item['entry_point']})\n"


def passes(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """HumanEval's pass@1 of one completion: 1 where its tests run to the end in the sandbox.

    Raises SettingsError on a system where the sandbox cannot limit the process.
    """
    return {"pass_at_1": float(run_code(program(doc, results[0])).passed)}
