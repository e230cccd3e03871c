"""What a run on the page is asked with: two policies, their settings, a threshold that moves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.runner import Runner
from app.views.snapshot import FIELDS
from river_core.errors import SettingsError
from tests.unit.app_engine import Engine, last, run


def test_any_two_policies_take_the_settings_that_they_can_use(
    runner: Runner, engine: Engine
) -> None:
    more = {"upper": "kv-mask", "lower": "river", "head": "lens", "temperature": 0.5, "seed": 3}
    view = last(run(runner, "hello", 0.9, 3, "s", **more))
    assert [view["lanes"][lane]["title"] for lane in ("upper", "lower")] == ["KV mask", "River"]
    first, second = engine.asked
    assert (first["head"], first["temperature"], first["seed"]) == ("lens", 0.5, 3)
    assert "head" not in second and second["seed"] == 3


@pytest.mark.parametrize(
    "more, words",
    [
        ({"lower": "river", "head": "lens"}, "head “an untrained head at the exit” can be used"),
        ({"upper": "full-quant", "exit": "gap"}, "can be used by neither lane"),
        ({"upper": "nothing"}, "unknown policy 'nothing'"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": None}, "seed is None"),
        ({"profile": "yes"}, "profile is 'yes'"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
    ],
)
def test_settings_that_no_lane_can_use_are_refused(
    runner: Runner, engine: Engine, more: dict[str, Any], words: str
) -> None:
    view = last(run(runner, "hello", 0.9, 3, "s", **more))
    assert view["phase"] == "failed" and words in view["error"]
    assert engine.asked == []


def test_an_exit_layer_reaches_the_rule_that_wants_one(runner: Runner, engine: Engine) -> None:
    last(run(runner, "hello", 0.9, 2, "s", exit="fixed", exit_layer=4, lower="fixed-exit"))
    assert [asked["options"] for asked in engine.asked] == [{"exit_layer": 4}, {"exit_layer": 4}]
    assert engine.asked[0]["exit"] == engine.asked[1]["exit"] == "fixed"


def test_a_threshold_moved_during_a_run_acts_from_the_next_token_on(
    runner: Runner, engine: Engine
) -> None:
    engine.pause = 0.02
    thresholds: dict[str, list[float]] = {}
    for view in run(runner, "hello", 0.9, 20, "s"):
        for lane, shown in view["lanes"].items():
            lines = [json.loads(line) for line in shown["tokens"].splitlines()]
            thresholds[lane] = [line[FIELDS.index("threshold")] for line in lines]
        if len(thresholds["upper"]) >= 5 and view["phase"] == "decoding":
            runner.set_threshold(0.5, "s")
            with pytest.raises(SettingsError, match="threshold is None"):
                runner.set_threshold(None, "s")
    assert thresholds["upper"][:4] == [0.9] * 4 and thresholds["upper"][-1] == 0.5
    assert set(thresholds["lower"]) == {0.5}
    runner.set_threshold(None, "s")  # nothing runs: a field that is being typed in


def test_only_a_whole_run_brings_its_full_depth_trace(runner: Runner, engine: Engine) -> None:
    view = last(run(runner, "hello", 0.9, 4, "s"))
    assert view["preview"]["first"] == 1 and len(view["preview"]["trace"].splitlines()) == 4
    assert last(run(runner, "hello", 0.9, 4, "s", upper="fixed-exit"))["preview"] is None
    engine.pause = 0.02
    for view in run(runner, "hello", 0.9, 400, "s"):
        if view["lanes"]["upper"]["tokens"]:
            runner.stop("s")
    assert view["phase"] == "stopped" and view["preview"] is None
