"""Measurements beside the runs: in turn, stoppable, refused in a sentence; and app.py's options."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import app.studies as studies
from app.runner import Runner
from river_core.errors import RiverError, SettingsError
from river_core.footprint import Layout, footprint
from river_core.random_model import random_model
from river_core.settings import QuantSpec
from river_core.shapes import SHAPES
from tests.unit.app_engine import Engine, last, run
from tests.unit.made_folders import fill

VALUES = {"prompt": "why?", "threshold": 0.9, "lowest": 0.5}


def measure_by(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    monkeypatch.setitem(studies.MEASURES, "kv", function)


def test_progress_then_the_result(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(model: Any, values: Any, tell: studies.Say, _: Any) -> dict[str, Any]:
        tell("half", 0.5)
        time.sleep(0.6)
        return {"rows": [values["prompt"]]}

    measure_by(monkeypatch, measure)
    views = list(runner.study("kv", VALUES, "s"))
    assert ("working", "50 %: half") in [(view["phase"], view["said"]) for view in views]
    assert views[-1]["phase"] == "done"
    assert views[-1]["result"]["rows"] == ["why?"]
    assert views[-1]["result"]["about"]["threshold"] == "0.9"


def test_stop_ends_it_at_the_next_step(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []

    def measure(model: Any, values: Any, tell: studies.Say, _: Any) -> dict[str, Any]:
        for n in range(1000):
            steps.append(n)
            tell("step", n / 1000)
            time.sleep(0.02)
        return {}

    measure_by(monkeypatch, measure)
    runner.stop("s")  # of nothing
    watched = runner.study("kv", VALUES, "s")
    next(watched)
    runner.stop("other")
    runner.stop("s")
    *_, view = watched
    assert view["phase"] == "stopped" and view["result"] == {}
    assert len(steps) < 100
    closed = runner.study("kv", VALUES, "s")
    next(closed)
    closed.close()
    before = len(steps)
    time.sleep(0.3)
    assert len(steps) - before < 5, "a page that is closed stops its measurement"


def test_a_new_run_stops_it_and_it_does_not_stop_a_run(
    runner: Runner, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(model: Any, values: Any, tell: studies.Say, _: Any) -> dict[str, Any]:
        while True:
            tell("step", None)
            time.sleep(0.02)

    measure_by(monkeypatch, measure)
    watched = runner.study("kv", VALUES, "s")
    next(watched)
    assert last(run(runner, "hello", 0.9, 3, "s"))["phase"] == "done"
    assert list(watched)[-1]["phase"] == "stopped"
    engine.pause = 0.02
    views = run(runner, "hello", 0.9, 40, "s")
    next(views)
    (refused,) = runner.study("kv", VALUES, "s")
    assert refused["phase"] == "failed" and "still running" in refused["error"]
    assert last(views)["phase"] == "done"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (SettingsError("prompt is empty; type."), "prompt is empty; type."),
        (ZeroDivisionError(), "log"),
    ],
)
def test_what_goes_wrong_is_one_sentence(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, fault: Exception, words: str
) -> None:
    def measure(*_: Any) -> dict[str, Any]:
        raise fault

    measure_by(monkeypatch, measure)
    *_, view = runner.study("kv", VALUES, "s")
    assert words in view["error"] and view["result"] == {}
    *_, view = runner.study("kv", {**VALUES, "threshold": "high"}, "s")
    assert "threshold is 'high'" in view["error"]


def test_measurements_wait_for_the_worker(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = threading.Lock()

    def measure(*_: Any) -> dict[str, Any]:
        assert busy.acquire(blocking=False)
        time.sleep(0.2)
        busy.release()
        return {}

    measure_by(monkeypatch, measure)
    first, second = (runner.study("kv", VALUES, name) for name in "ab")
    next(first)
    assert next(second)["phase"] == "waiting"
    assert [list(first)[-1]["phase"], list(second)[-1]["phase"]] == ["done", "done"]


def test_records_of_shipped_and_kept_runs_only() -> None:
    engine = Engine()
    runner = Runner("m", engine=engine)
    view = last(run(runner, "hello", 0.9, 5, "s"))
    kept = runner.records(view["run"])
    assert len(kept) == 2 and len(kept[0].tokens) == 5
    shipped = runner.records("recorded 1-rain")
    assert [r.header.settings["policy"] for r in shipped] == ["river", "backbone"]
    for unknown in ("nothing", "recorded ../../x", "recorded", "recorded 9"):
        with pytest.raises(RiverError, match="not kept"):
            runner.records(unknown)
    with pytest.raises(RiverError, match="No finished run"):
        runner.records("")
    runner.close()


def test_both_measurements_on_a_random_model() -> None:
    model = random_model("tiny", dtype="float32")
    values = {"prompt": [3, 1, 4, 1, 5], "threshold": 0.9, "lowest": 0.5}
    told: list[tuple[str, float | None]] = []
    rows = studies.kv_errors(model, values, lambda *step: told.append(step))["rows"]
    assert list(dict.fromkeys(row["policy"] for row in rows)) == list(studies.KV_POLICIES)
    assert {row["layer"] for row in rows} == set(range(1, 9))
    assert all(-1 <= row["key"] <= 1 for row in rows)
    found = studies.sweep(model, values, lambda *step: told.append(step))
    policies = list(dict.fromkeys(row["policy"] for row in found["quality"]))
    assert policies == list(studies.TAILS)
    assert {row["head"] for row in found["quality"]} == {"river"}
    assert found["speed"][0]["policy"] == "backbone"
    assert {(r["policy"], r["head"]) for r in found["speed"][1:]} == {
        (p, None if p == "river" else "lens") for p in studies.TAILS
    }
    assert {r["point"] for r in found["quality"]} == {
        f"threshold {t:g}" for t in (0.7, 0.9)
    }  # 0.5 + 0.8 of the way is 0.9 again
    shares = [share for _, share in told if share is not None]
    assert min(shares) >= 0 and max(shares) <= 1


@pytest.mark.parametrize("name", list(studies.MEASURES))
@pytest.mark.parametrize("moment", [1, 7, 40])
def test_stop_reaches_into_a_step(name: str, moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop at the n-th pass, in the middle of a run of 20: no other pass is begun."""
    import river_core
    from river_core.passes import Passes

    model = random_model("tiny", dtype="float32")
    values = {"prompt": [3, 1, 4, 1, 5], "threshold": 0.9, "lowest": 0.5}
    task, begun, run = studies.Study("", name=name, values=values), [0], Passes.run

    def counted(self: Passes, *what: Any, **how: Any) -> None:
        begun[0] += 1
        if begun[0] == moment:
            task.stop()
        run(self, *what, **how)

    monkeypatch.setattr(Passes, "run", counted)
    monkeypatch.setattr(studies, "_short", str)  # a random model has no tokenizer: ids for a text
    task.begin(river_core, lambda: model, {})
    assert (task.phase, task.result, task.error) == ("stopped", {}, "")
    assert begun[0] == moment


def test_options_reach_the_loading() -> None:
    class Noting(Engine):
        def load(self, name: str, *, progress: Any, **settings: Any) -> Any:
            self.asked.append(settings)
            return super().load(name, progress=progress, **settings)

    engine = Noting()
    runner = Runner("m", "cpu", engine=engine, how={"entry_layer": 3, "resident_layers": 7})
    runner.start()
    list(runner.cards())
    expected = {"device": "cpu", "river": None, "entry_layer": 3, "resident_layers": 7}
    assert engine.asked == [expected]
    runner.close()


@pytest.mark.parametrize(
    ("given", "entry_layer", "resident"),
    [
        ([], 2, None),
        (["--resident", "7"], 2, 7),
        (["--entry-layer", "3", "--resident", "auto"], 3, "auto"),
    ],
)
def test_command_line(given: list[str], entry_layer: int, resident: int | str | None) -> None:
    found = command_line().options(given)
    assert (found.entry_layer, found.resident) == (entry_layer, resident)


@pytest.mark.parametrize("value", ["0", "-2", "some", "1.5"])
def test_an_impossible_number_of_resident_layers_is_refused(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command_line().options([f"--resident={value}"])
    assert "use a number of backbone layers from 1 on, or 'auto'" in capsys.readouterr().err


def command_line() -> Any:
    """The file app.py, whose name the package app has too."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("app_file", Path(__file__).parents[2] / "app.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_loaded_models_table_is_of_its_configuration(tmp_path: Path) -> None:
    info = SimpleNamespace(name="mine", quant=QuantSpec(8, 32), entry_layer=3)
    model = SimpleNamespace(path=fill(tmp_path / "m"), info=info, capacity=256)
    found = studies.memory_table(model)
    assert (found["name"], found["layers"], found["tokens"][-1]) == ("mine", 30, 256)
    spec = SHAPES["smollm2-135m"]
    assert found["marks"]["all"][-1] == footprint(spec, Layout(info.quant, 3), tokens=256).total
