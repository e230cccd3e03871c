"""The runner over a stub engine: order, stop, errors, the bounded store. No model, no page."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from app import runner as runner_module
from app.pace import BESIDE, INTERVAL
from app.recorded import parse
from app.runner import Runner
from river_core.errors import ModelUnavailable, RiverError, SettingsError
from tests.ui.synthetic import TAU
from tests.unit.app_engine import Engine, last, run


def test_a_run_shows_both_lanes_one_after_the_other(runner: Runner, engine: Engine) -> None:
    view = last(run(runner, "hello", 0.9, 20, "s"))
    assert view["phase"] == "done" and view["error"] == ""
    for lane in ("upper", "lower"):
        assert len(view["lanes"][lane]["tokens"].splitlines()) == 20
    assert [asked["policy"] for asked in engine.asked] == ["river", "backbone"]
    assert all(asked["threshold"] == 0.9 for asked in engine.asked)


@pytest.mark.parametrize(("beside", "most"), [(False, 10), (True, 2)])
def test_snapshots_come_a_few_times_a_second(
    engine: Engine, beside: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer where the browser takes its time from the decoding."""
    monkeypatch.setattr("app.runner.between_views", lambda device: BESIDE if beside else INTERVAL)
    engine.pause = 0.02
    runner = Runner("m", engine=engine)
    views = [(time.monotonic(), view) for view in run(runner, "hello", 0.9, 40, "s")]
    times = [at for at, _ in views]
    gaps = [b - a for a, b in pairwise(times)][:-1]
    assert median(gaps) < 2 / most
    turns = sum(a["phase"] != b["phase"] for (_, a), (_, b) in pairwise(views))
    assert len(times) < most * (times[-1] - times[0]) + turns + 3
    runner.close()


def test_a_new_phase_is_shown_at_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first token and the end of a short run do not wait for the next look."""
    monkeypatch.setattr("app.runner.between_views", lambda device: 60.0)
    engine.pause = 0.05
    runner = Runner("m", engine=engine)
    start = time.monotonic()
    views = list(run(runner, "hello", 0.9, 3, "s"))
    assert time.monotonic() - start < 10
    phases = [view["phase"] for view in views]
    assert phases[-1] == "done" and "decoding" in phases
    first = next(view for view in views if view["phase"] == "decoding")
    assert len(first["lanes"]["upper"]["tokens"].splitlines()) == 1
    runner.close()


def test_stop_keeps_the_tokens_and_the_next_run_works(runner: Runner, engine: Engine) -> None:
    engine.pause = 0.02
    view: dict[str, Any] = {}
    for view in run(runner, "hello", 0.9, 500, "s"):
        if len(view["lanes"]["upper"]["tokens"].splitlines()) >= 5:
            runner.stop("s")
    kept = len(view["lanes"]["upper"]["tokens"].splitlines())
    assert view["phase"] == "stopped" and 5 <= kept < 100
    assert view["lanes"]["lower"]["tokens"] == ""
    assert last(run(runner, "hello", 0.9, 3, "s"))["phase"] == "done"


def test_stop_of_one_session_leaves_another_alone(runner: Runner) -> None:
    views = run(runner, "hello", 0.9, 10, "mine")
    next(views)
    runner.stop("yours")
    assert last(views)["phase"] == "done"


def test_a_closed_page_stops_its_run(runner: Runner, engine: Engine) -> None:
    engine.pause = 0.02
    views = run(runner, "hello", 0.9, 4000, "s")
    next(views)
    next(views)
    views.close()
    start = time.monotonic()
    assert last(run(runner, "hello", 0.9, 2, "t"))["phase"] == "done"
    assert time.monotonic() - start < 5


def test_runs_wait_for_each_other(engine: Engine) -> None:
    engine.pause = 0.02
    runner = Runner("m", engine=engine)
    runner.start()
    last(runner.cards())
    first, second = run(runner, "one", 0.9, 10, "a"), run(runner, "two", 0.9, 2, "b")
    next(first)
    waiting = next(second)
    assert waiting["phase"] == "waiting" and "1 before this run" in waiting["status"]
    results = []
    threads = [
        threading.Thread(target=lambda v=v: results.append(last(v))) for v in (second, first)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [view["phase"] for view in results] == ["done", "done"]
    runner.close()


def test_a_run_stopped_before_its_turn_ends_at_once(runner: Runner, engine: Engine) -> None:
    last(runner.cards())
    engine.pause = 0.02
    first = run(runner, "one", 0.9, 4000, "a")
    next(first)
    waiting = [run(runner, "two", 0.9, 2, "b"), runner.study("kv", {}, "c")]
    for views, session in zip(waiting, "bc", strict=True):
        assert next(views)["phase"] == "waiting"
        runner.stop(session)
    view, task = (list(views)[-1] for views in waiting)
    assert view["phase"] == task["phase"] == "stopped"
    assert {lane["phase"] for lane in view["lanes"].values()} == {"stopped"}
    assert next(first)["phase"] != "done", "the one at work goes on"
    first.close()
    assert last(run(runner, "hello", 0.9, 2, "b"))["phase"] == "done"


@pytest.mark.parametrize(
    "prompt, threshold, tokens, words",
    [
        ("", 0.9, 4, "prompt is empty"),
        ("x", float("nan"), 4, "threshold"),
        ("x", 5, 4, "threshold"),
        ("x", 0.9, 0, "max_new_tokens"),
        ("x", 0.9, None, "max_new_tokens"),
        ("x", 0.9, 5000, "do not fit"),
    ],
)
def test_bad_input_is_one_sentence_and_the_next_run_works(
    runner: Runner, prompt: str, threshold: float, tokens: int | None, words: str
) -> None:
    view = last(run(runner, prompt, threshold, tokens, "s"))
    assert view["phase"] == "failed" and words in view["error"]
    with pytest.raises(RiverError, match=words):
        runner.generate(prompt, threshold=threshold, max_new_tokens=tokens)
    assert last(run(runner, "hello", 0.9, 2, "s"))["phase"] == "done"


def test_a_fault_of_ours_is_told_and_logged(
    runner: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    view = last(run(runner, "fault", 0.9, 2, "s"))
    assert view["phase"] == "failed" and "did not foresee" in view["error"]
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert last(run(runner, "hello", 0.9, 2, "s"))["phase"] == "done"


def test_a_failed_load_keeps_the_page_and_is_tried_again() -> None:
    engine = Engine()
    engine.failures = [
        ModelUnavailable(f"no network {n}.") for n in range(4)
    ]  # m, then its stand-in
    runner = Runner("m", engine=engine)
    runner.start()
    card = last(runner.cards())
    assert card["state"] == "failed" and "no network 0." in card["status"]
    view = last(run(runner, "hello", 0.9, 2, "s"))
    assert view["phase"] == "failed" and "no network 2." in view["error"]
    assert last(run(runner, "hello", 0.9, 2, "s"))["phase"] == "done"
    assert engine.loads == 5
    runner.close()


def test_the_card_shows_the_loading_and_then_the_model() -> None:
    engine = Engine()
    runner = Runner("m", engine=engine)
    views = runner.cards()
    assert next(views)["state"] == "loading"
    runner.start()
    rest = list(views)
    assert rest[-1]["state"] == "ready" and rest[-1]["origin"] == "packaged"
    assert "river: GPTQ, 4 bits, groups of 64" in [chip[0] for chip in rest[-1]["chips"]]
    assert runner.card.threshold == TAU
    runner.close()


def test_the_card_of_a_loaded_model_stays(engine: Engine) -> None:
    """Whatever the model builds later, and that it is not the one asked for."""
    engine.failures = [ModelUnavailable("no network")]
    runner = Runner("m", engine=engine)
    runner.start()
    card = last(runner.cards())
    assert card["state"] == "ready" and "no network" in card["origin"]
    engine.progress("building the river: layer 1 of 30", 0.0)
    assert last(runner.cards()) == card
    runner.set_resident(4)
    assert last(runner.cards()) == card | {"resident": 4}
    runner.close()


def test_records_are_kept_for_a_while(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "KEPT_RUNS", 2)
    ids = [last(run(runner, "hello", 0.9, 2, "s"))["run"] for _ in range(3)]
    assert len(runner.record(ids[2], "upper")["tokens"]) == 2
    assert runner.record(ids[1], "lower")["text"] == " t0 t1"
    upper, lower = parse(runner.lines(ids[2]), "kept")
    assert upper.full_trace and upper.tokens == lower.tokens and lower.text == " t0 t1"
    with pytest.raises(RiverError, match="No run"):
        runner.lines(ids[0])
    with pytest.raises(RiverError, match="No run"):
        runner.record(ids[0], "upper")
    with pytest.raises(RiverError, match="lane"):
        runner.record(ids[2], "prompt")


def test_generate_returns_the_record(runner: Runner) -> None:
    value = runner.generate("hello", policy="river", threshold=None, max_new_tokens=3, seed=1)
    assert len(value["tokens"]) == 3 and value["summary"]["stop_reason"] == "length"


def test_resident_layers_change_between_runs(runner: Runner, engine: Engine) -> None:
    """It waits for its turn: `alone` fails where a run is still going."""
    views = run(runner, "hello", 0.9, 40, "s")
    next(views)
    card = runner.card
    runner.set_resident(4)
    assert last(views)["lanes"]["upper"]["phase"] == "done"
    assert engine.model.resident == 4
    assert runner.card is not card and runner.card.state == "ready"
    with pytest.raises(SettingsError, match="resident_layers is 31"):
        runner.set_resident(31)
    assert engine.model.resident == 4
    assert last(run(runner, "hello", 0.9, 2, "s"))["lanes"]["upper"]["phase"] == "done"
