"""Work on kept runs over the runner's stub engine: measuring with repeats, earliest safe exits."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from app import measuring, safe
from app.measuring import ROUNDS, Measuring
from app.runner import Runner
from app.safe import Safe
from app.task import settings_of
from river_core.errors import RiverError, SettingsError
from river_core.settings import DecodeSettings
from tests.unit.app_engine import Engine, last, run
from tests.unit.made_records import run as made_run


def shown(runner: Runner, tokens: int = 6, **more: Any) -> str:
    """The id of a finished run of the session "s"."""
    return str(last(run(runner, "hello", 0.9, tokens, "s", **more))["run"])


def test_both_lanes_are_measured_in_turns(runner: Runner, engine: Engine) -> None:
    run_id = shown(runner)
    engine.asked.clear()
    views = list(runner.task("measure", run_id, "s"))
    view = views[-1]
    assert (view["phase"], view["error"], view["run"]) == ("done", "", run_id)
    order = [asked["policy"] for asked in engine.asked]
    assert len(order) == 2 * (1 + ROUNDS)
    assert order[:6] == ["river", "backbone", "river", "backbone", "backbone", "river"]
    assert {asked["max_new_tokens"] for asked in engine.asked} == {6}
    assert not any(asked["full_trace"] for asked in engine.asked)
    shares = [view["share"] for view in views]
    assert shares == sorted(shares) and shares[-1] == 1
    result = view["result"]
    assert result["badge"] == "measured: n = 5 interleaved"
    keys = [tile["key"] for tile in result["tiles"]]
    assert keys == ["upper_rate", "lower_rate", "mean_exit", "saved"]
    assert result["rows"][0][1:] == ["30.0 (30.0 to 30.0)"] * 2
    assert "time saved by round: 0 % to 0 %" in result["tiles"][3]["note"]
    assert "30.0 to 30.0" in result["tiles"][0]["note"]
    facts = dict(result["facts"])
    assert "n = 5" in facts["repeats"] and int(facts["threads"]) >= 1
    assert {"device", "versions", "kernel, execution"} <= set(facts)


def test_two_lanes_of_one_policy_are_kept_apart(runner: Runner) -> None:
    view = last(runner.task("measure", shown(runner, upper="backbone"), "s"))
    assert view["phase"] == "done" and view["result"]["saved"] is None


def test_a_long_answer_is_measured_by_its_beginning(runner: Runner, engine: Engine) -> None:
    engine.pause = 0.0
    run_id = shown(runner, 200)
    engine.asked.clear()
    assert last(runner.task("measure", run_id, "s"))["phase"] == "done"
    assert {asked["max_new_tokens"] for asked in engine.asked} == {16, 64}


@pytest.mark.parametrize("how", ["stop", "close"])
def test_a_measurement_ends_within_half_a_second(runner: Runner, engine: Engine, how: str) -> None:
    run_id = shown(runner, 40)
    engine.pause = 0.05
    views = runner.task("measure", run_id, "s")
    for view in views:
        if view["said"].startswith("Warming up"):
            break
    start = time.monotonic()
    if how == "stop":
        runner.stop("s")
        assert last(views)["phase"] == "stopped"
    else:
        views.close()  # type: ignore[attr-defined]
        with engine.busy:
            pass
    assert time.monotonic() - start < 0.5
    assert last(run(runner, "hello", 0.9, 2, "s"))["phase"] == "done"


def test_a_new_run_ends_the_measurement(runner: Runner, engine: Engine) -> None:
    run_id = shown(runner, 30)
    engine.pause = 0.02
    views = runner.task("measure", run_id, "s")
    next(views)
    found: list[dict[str, Any]] = []
    watcher = threading.Thread(target=lambda: found.extend(views))
    watcher.start()
    assert last(run(runner, "hello", 0.9, 2, "s"))["phase"] == "done"
    watcher.join()
    assert found[-1]["phase"] == "stopped"


def test_it_is_refused_while_the_page_is_busy(runner: Runner, engine: Engine) -> None:
    run_id = shown(runner)
    engine.pause = 0.02
    views = run(runner, "hello", 0.9, 20, "s")
    next(views)
    refused = list(runner.task("measure", run_id, "s"))
    assert len(refused) == 1 and "still running" in refused[0]["error"]
    assert last(views)["phase"] == "done"


@pytest.mark.parametrize(
    ("kind", "tokens", "words"),
    [("measure", 1, "at least two tokens"), ("dance", 4, "does not know")],
)
def test_what_cannot_be_done_is_one_sentence(
    runner: Runner, kind: str, tokens: int, words: str
) -> None:
    view = last(runner.task(kind, shown(runner, tokens), "s"))
    assert view["phase"] == "failed" and words in view["error"] and view["result"] == {}


def test_a_run_that_is_kept_no_longer(runner: Runner) -> None:
    for kind in ("measure", "safe"):
        view = last(runner.task(kind, "gone", "s"))
        assert view["phase"] == "failed" and "run it again" in view["error"]


def test_an_error_of_the_engine_and_a_fault_of_ours(
    runner: Runner, engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run_id = shown(runner)
    for error, words in ((SettingsError("no."), "no."), (ZeroDivisionError("x"), "not foresee")):

        def broken(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        monkeypatch.setattr(engine, "stream", broken)
        view = last(runner.task("measure", run_id, "s"))
        assert view["phase"] == "failed" and words in view["error"]
    assert "ZeroDivisionError" in capsys.readouterr().err
    monkeypatch.undo()
    assert last(runner.task("measure", run_id, "s"))["phase"] == "done"


def test_a_run_is_repeated_as_it_was_decoded() -> None:
    """At the threshold it ended with, without what would cost time, and as settings that are one's
    own."""
    record = made_run([1, 2, 3])
    own = {
        "policy": "backbone",
        "exit": "never",
        "threshold": 0.5,
        "threshold_from": "x",
        "seed": 3,
    }
    record = replace(record, header=replace(record.header, settings=own))
    settings = settings_of(record)
    assert settings["threshold"] == 0.9 and settings["seed"] == 3
    assert not {"exit", "threshold_from"} & set(settings)
    DecodeSettings.from_keywords(settings)


# Earliest safe exits


def test_safe_exits_of_the_lane_above(runner: Runner) -> None:
    view = last(runner.task("safe", shown(runner, 9), "s"))
    assert view["phase"] == "done"
    assert view["result"]["exits"] == [30, *[3] * 8] == view["result"]["stable"]
    assert "on average after 3.0 of 30 layers" in view["result"]["said"]


def test_safe_exits_are_stopped_between_batches(runner: Runner, engine: Engine) -> None:
    run_id = shown(runner, 40)
    engine.pause = 0.1
    views = runner.task("safe", run_id, "s")
    assert any(view["phase"] == "working" for view in views)
    views = runner.task("safe", run_id, "s")
    next(views)
    runner.stop("s")
    assert last(views)["phase"] == "stopped"


def test_safe_exits_that_would_take_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe, "LONGEST", 10.0)
    task = Safe("r")
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(safe, "time", clock)
    task.told(0, 320)
    clock.monotonic = lambda: 0.9
    task.told(32, 320)
    assert task.share == 0.1 and task.said == "32 of 320 tokens"
    clock.monotonic = lambda: 2.1
    with pytest.raises(RiverError, match="python -m river_core study"):
        task.told(64, 640)
    slow = made_run([1, 2])
    slow = replace(slow, summary=replace(slow.summary, decode_seconds=6.0))
    with pytest.raises(RiverError, match="more than 10 s"):
        Safe("r").work(None, None, {"upper": slow, "lower": None})


def test_importing_the_tasks_brings_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, app.measuring, app.safe; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert Measuring.kind == "measure" and measuring.MOST_TOKENS == 64
