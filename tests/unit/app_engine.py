"""A stub of the engine for the runner's tests: a few lines instead of a model, with a pause."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from app.runner import Runner
from river_core.compare import Comparison, compare
from river_core.errors import CacheFull, SettingsError
from river_core.records import RunHeader, RunRecord
from river_core.settings import QuantSpec
from tests.ui.synthetic import LAYERS, TAU, prompt_record, summary, token


class Control:
    def __init__(self) -> None:
        self.cancelled = False

    threshold: float | None = None

    def cancel(self) -> None:
        self.cancelled = True


class Stream:
    """Yields `max_new_tokens` records, or stops when the control says so."""

    def __init__(self, engine: Engine, control: Control, settings: dict[str, Any]) -> None:
        self.engine, self.control, self.settings = engine, control, settings
        self.got: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        with self.engine.alone():
            for record in self._records():
                self.got.append(record)
                yield record

    def _records(self) -> Iterator[Any]:
        time.sleep(self.engine.pause)
        yield prompt_record(5)
        for i in range(self.settings["max_new_tokens"]):
            if self.control.cancelled:
                break
            time.sleep(self.engine.pause)
            made = token(i, f" t{i}", "", 14, 11, random.Random(i))
            yield replace(made, threshold=self.control.threshold or self.settings["threshold"])
        yield summary(14.0, 30.0, "cancelled" if self.control.cancelled else "length")

    def record(
        self, *, full_trace: bool | None = None, control: Control | None = None
    ) -> RunRecord:
        header = RunHeader("m", "o", None, LAYERS, 2, "q", "cpu", self.settings, 0)
        trace = tuple((0.5,) * LAYERS for _ in self.got[1:-1]) if full_trace else None
        return RunRecord(header, self.got[0], tuple(self.got[1:-1]), (), self.got[-1], trace)


class Engine:
    """What the runner needs of river_core."""

    Control = Control
    model: Any = None

    def __init__(self, pause: float = 0.002) -> None:
        self.pause = pause
        self.device = "cuda"
        self.failures: list[Exception] = []
        self.loads = 0
        self.progress: Any = None  # a loaded model goes on to use it
        self.asked: list[dict[str, Any]] = []
        self.busy = threading.Lock()

    def alone(self) -> threading.Lock:
        assert not self.busy.locked(), "two lanes ran at the same time"
        return self.busy

    def load(self, name: str, *, progress: Any, **settings: Any) -> Any:
        self.loads += 1
        self.progress = progress
        progress("quantising layer 1 of 30", 0.5)
        if self.failures:
            raise self.failures.pop(0)
        self.model = SimpleNamespace(
            set_resident=self.set_resident,
            info=SimpleNamespace(
                name=name,
                default_threshold=TAU,
                calibration=None,
                notes=("no compiler",),
                quant=QuantSpec(method="gptq"),
                entry_layer=2,
            ),
            resident=LAYERS,
            origin="packaged",
            device=self.device,
            num_layers=LAYERS,
            capacity=4096,
            endless=lambda: self.model,
        )
        return self.model

    def earliest_safe_exits(
        self, model: Any, record: RunRecord, *, progress: Any, control: Control
    ) -> Any:
        with self.alone():
            passes = len(record.tokens) - 1
            for done in range(0, passes, 4):
                progress(done, passes)
                time.sleep(self.pause)
            exits = (LAYERS, *(3 for _ in range(passes)))
            return SimpleNamespace(exits=exits, stable=exits, mean=3.0, sequence_maximum=3)

    def set_resident(self, layers: int) -> None:
        with self.alone():
            if not 1 <= layers <= LAYERS:
                raise SettingsError(f"resident_layers is {layers}.")
            self.model.resident = layers

    def stream(self, model: Any, prompt: str, *, control: Control, **settings: Any) -> Stream:
        if not prompt:
            raise SettingsError("prompt is empty; type something.")
        if settings["max_new_tokens"] > 4096:
            raise CacheFull("11 + 5000 tokens do not fit in 4096.")
        if prompt == "fault":
            raise ZeroDivisionError("a fault of ours")
        self.asked.append(settings)
        return Stream(self, control, settings)

    def compare(self, reference: RunRecord, other: RunRecord) -> Comparison:
        return compare(reference, other)


def run(
    runner: Runner, prompt: str, threshold: Any, tokens: Any, session: str, **more: Any
) -> Iterator[dict[str, Any]]:
    values = {"prompt": prompt, "threshold": threshold, "max_new_tokens": tokens, **more}
    return runner.run(values, session)


def last(views: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return list(views)[-1]
