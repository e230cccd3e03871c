"""Made-up work on a made-up run: a measurement and the earliest safe exits, in a few views."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from app.measuring import Measuring
from app.safe import Safe
from app.task import refusal
from app.views.measured import Rounds, measured
from app.views.wording import say
from river_core.records import RunHeader, RunRecord

STEPS = 6
RATES = {"upper": [33.0, 35.5, 34.2, 30.9, 34.0], "lower": [27.5, 27.0, 26.1, 27.2, 28.0]}


def play_task(source: Any, kind: str, run_id: str) -> Iterator[dict[str, Any]]:
    """Views of a task on the run that `source` made last."""
    source.stopped.clear()
    if source.shown is None or source.shown.id != run_id:
        yield refusal(kind, run_id, say("task.no_record"))
        return
    task = {"measure": Measuring, "safe": Safe}[kind](run_id)
    for step in range(STEPS):
        task.phase, task.share = "working", step / STEPS
        task.said = say("measure.round", round=step, rounds=5, policy="River")
        yield task.view()
        time.sleep(source.pause)
        if source.stopped.is_set():
            task.phase, task.said = "stopped", say("task.stopped")
            yield task.view()
            return
    task.phase, task.said = "done", ""
    task.result = _measured(source.shown) if kind == "measure" else _safe(source.shown)
    yield task.view()


def _measured(run: Any) -> dict[str, Any]:
    return measured([_record(lane) for lane in run.lanes], RATES, Rounds(5, 64, 2))


def _record(lane: Any) -> RunRecord:
    settings = {"policy": lane.policy}
    header = RunHeader("m", "o", None, lane.num_layers, 2, "q", "cpu", settings, 0)
    return RunRecord(header, lane.prompt, tuple(lane.tokens), (), lane.summary)


def _safe(run: Any) -> dict[str, Any]:
    exits = [run.upper.num_layers, *(2 + i % 3 for i in range(len(run.upper.tokens) - 1))]
    stable = [exit_layer + i % 2 for i, exit_layer in enumerate(exits)]
    words = {"mean": "3.0", "layers": run.upper.num_layers, "most": max(exits[1:])}
    return {"exits": exits, "stable": stable, "said": say("safe.mean", **words)}
