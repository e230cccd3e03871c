"""A stand-in for the page's measurements: records of the made-up runs, quick made-up results."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from app.studies import Study, records_of
from app.views.ledger import ledger
from app.views.packing import unpack_trace
from app.views.run import LANES, Run
from river_core.errors import SettingsError
from river_core.footprint import Layout
from river_core.records import RunHeader, RunRecord
from river_core.settings import DEFAULT_RIVER
from river_core.shapes import SHAPES

STEPS = 8
ABOUT = {"model": "made", "device": "cpu", "threshold": "0.98", "prompt": "p", "tokens": 24}
KV = [
    {"policy": policy, "layer": layer, "key": 1 - error * layer, "value": 0.9, "count": 23}
    for policy, error in (("river", 0.001), ("state-propagation", 0.02))
    for layer in range(1, 31)
]
POINT = {"head": "river", "point": "threshold 0.97", "mean_exit_layer": 12.5}
QUALITY = [{**POINT, "policy": "river", "match": 0.9}, {**POINT, "policy": "kv-mask", "match": 0.4}]
SPEED = [
    {**POINT, "policy": policy, "head": head, "tokens_per_second": 30.0}
    | {"slowest": 28.0, "fastest": 33.0}
    for policy, head in (("river", None), ("kv-mask", "lens"))
]
RESULTS: dict[str, dict[str, Any]] = {
    "kv": {"rows": KV},
    "sweep": {"quality": QUALITY, "speed": SPEED},
}


class StubStudies:
    """Answers as the runner does; a prompt "refuse" is refused, "slow" takes long."""

    def __init__(self) -> None:
        self.made: dict[str, dict[str, RunRecord | None]] = {}
        self.stopped = threading.Event()
        self.begun = threading.Event()  # cleared: the model is still loading
        self.begun.set()

    def keep(self, run: Run) -> None:
        """The records of a made-up run that has ended."""
        for lane in run.lanes:
            if lane.prompt and lane.summary:
                settings = {"policy": lane.policy}
                header = RunHeader("made", "o", None, lane.num_layers, 2, "q", "cpu", settings, 0)
                trace = tuple(tuple(unpack_trace(line)) for line in lane.trace) or None
                record = RunRecord(header, lane.prompt, tuple(lane.tokens), (), lane.summary, trace)
                self.made.setdefault(run.id, dict.fromkeys(LANES))[lane.name] = record

    def records(self, run_id: str) -> list[RunRecord]:
        """As the real one: kept, or shipped."""
        return records_of(run_id, self.made.get(run_id, {}))

    def ledger(self) -> dict[str, Any]:
        """SmolLM2's."""
        self.begun.wait(60)
        name = "smollm2-135m-packaged"
        return ledger(SHAPES["smollm2-135m"], Layout(DEFAULT_RIVER), name, 4096)

    def study(self, name: str, values: Mapping[str, Any], session: str) -> Iterator[dict[str, Any]]:
        """A few steps, then RESULTS."""
        self.stopped.clear()
        study = Study("", phase="working")
        for step in range(1200 if values["prompt"] == "slow" else STEPS):
            study.tell(f"step {step}", step / STEPS)
            yield study.view()
            time.sleep(0.05)
            if self.stopped.is_set():
                study.phase = "stopped"
                yield study.view()
                return
        if values["prompt"] == "refuse":
            study.fail(str(SettingsError("prompt is empty; type at least one word.")))
        else:
            study.phase, study.result = "done", {**RESULTS[name], "about": {**ABOUT, "rounds": 2}}
        yield study.view()
