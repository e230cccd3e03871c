"""The only app file that loads and decodes: one model, one worker thread, one run at a time.

A page's run is a job for the worker; the page's generator only looks at it a few times a second.
Jobs wait in order, so River and the backbone, and two people's runs, never compute together.
`lock` guards what worker and generators share. River and backbone lanes of a job follow one
another.
"""

from __future__ import annotations

import threading
import time
import traceback
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import river_core
from river_core.errors import RiverError
from river_core.records import RunRecord
from river_core.settings import DecodeSettings, QuantSpec, check_threshold

from .asked import Ask, ask
from .card import model_card
from .job import Job, fail, take
from .recorded import saved
from .views.packing import pack_trace
from .views.record import record_json
from .views.run import LANES, Lane, ModelCard, Run
from .views.snapshot import card_view, snapshot
from .views.window import Window
from .views.wording import say

INTERVAL = 0.11  # seconds between snapshots: 8 to 10 a second with what Gradio adds
KEPT_RUNS = 16


class Runner:
    """Loads `name` in the background and serves runs; `engine` is river_core or a test's stub."""

    def __init__(
        self,
        name: str,
        device: str = "auto",
        river: QuantSpec | None = None,
        engine: Any = river_core,
    ) -> None:
        self._engine, self._name = engine, name
        self._settings = {"device": device, "river": river}
        self._model: Any = None
        self._card = ModelCard("loading", say("model.loading"), name)
        self._worker = ThreadPoolExecutor(1, "river")
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._records: OrderedDict[tuple[str, str], RunRecord] = OrderedDict()
        self._closing = False

    def start(self) -> None:
        """Begin loading; returns at once."""
        self._worker.submit(self._load).add_done_callback(self._loaded)

    def close(self) -> None:
        """Give up whatever runs, so that the process can end."""
        self._closing = True
        for job in list(self._jobs.values()):
            job.stop()
        self._worker.shutdown(wait=False, cancel_futures=True)

    @property
    def card(self) -> ModelCard:
        """What is known of the model now."""
        return self._card

    def cards(self) -> Iterator[dict[str, Any]]:
        """The top bar, again at each change, until the model is ready or has failed."""
        shown = None
        while True:
            card = self._card
            if card is not shown:
                shown = card
                yield card_view(card)
            if card.state != "loading":
                return
            time.sleep(INTERVAL)

    def run(self, values: Mapping[str, Any], session: str) -> Iterator[dict[str, Any]]:
        """Snapshots of both lanes until the run has ended; closing the iterator stops the run.

        `values` by the names of `asked.DEFAULTS`.
        """
        job = Job(Run(uuid.uuid4().hex), Ask(""))
        try:
            job.ask = ask(values)
            for lane in job.run.lanes:
                lane.policy = job.ask.policy(lane.name)
        except RiverError as error:
            fail(job, error)
            yield self._view(job, Window())
            return
        with self._lock:
            self._jobs[session] = job
        job.future = self._worker.submit(self._work, job)
        try:
            yield from self._watch(job)
        finally:
            job.stop()
            with self._lock:
                if self._jobs.get(session) is job:
                    del self._jobs[session]

    def stop(self, session: str) -> None:
        """Stop the session's run, if it has one."""
        with self._lock:
            job = self._jobs.get(session)
        if job is not None:
            job.stop()

    def set_threshold(self, value: Any, session: str) -> None:
        """Of the session's run, if it has one, from the next token on. Raises SettingsError."""
        threshold = check_threshold(value)
        with self._lock:
            job = self._jobs.get(session)
            if job is not None:
                for settings in job.ask.lanes.values():
                    settings["threshold"] = threshold  # of lanes that have not begun
                if job.control is not None:
                    job.control.threshold = threshold

    def generate(self, prompt: str, **settings: Any) -> dict[str, Any]:
        """One whole run as a JSON object. Raises RiverError for anything the caller got wrong."""
        checked = _checked(**settings)
        return self._worker.submit(self._generate, prompt, checked).result()

    def set_resident(self, layers: int | str) -> None:
        """Keep that many backbone layers, or "auto"; waits for its turn behind the runs asked for.

        Raises RiverError where that is not possible; the model then is as it was.
        """
        self._worker.submit(self._set_resident, layers).result()

    def record(self, run_id: str, lane: str) -> dict[str, Any]:
        """The record of a kept page run. Raises RiverError when there is none."""
        if lane not in LANES:
            raise RiverError(say("error.lane", lane=lane))
        with self._lock:
            record = self._records.get((run_id, lane))
        if record is None:
            raise RiverError(say("error.no_record", kept=KEPT_RUNS))
        return record_json(record)

    def lines(self, run_id: str) -> str:
        """The records of a kept page run as JSON Lines. Raises RiverError when there are none."""
        with self._lock:
            found = [self._records.get((run_id, lane)) for lane in LANES]
        records = [record for record in found if record is not None]
        if not records:
            raise RiverError(say("error.no_record", kept=KEPT_RUNS))
        return saved(records)

    def _watch(self, job: Job) -> Iterator[dict[str, Any]]:
        window = Window()
        while True:
            done = job.future.done()
            yield self._view(job, window, whole=done)
            if done:
                break
            wait([job.future], timeout=INTERVAL)
        if (fault := job.future.exception()) is not None:
            traceback.print_exception(fault)
            fail(job, say("error.unexpected"))
            yield self._view(job, window, whole=True)

    def _view(self, job: Job, window: Window, *, whole: bool = False) -> dict[str, Any]:
        with self._lock:
            job.run.waited = time.monotonic() - job.since
            starts = window.starts(job.run.counts, whole=whole)
            return snapshot(job.run, self._card, starts)

    def _load(self) -> None:
        """Load the model that was asked for, else the default one, which the page then tells.

        Where that fails too, the page says so, and the next run tries again.
        """
        from river_core.sources import DEFAULT  # it brings torch, which the page does not wait for

        reason = ""
        for name in dict.fromkeys((self._name, DEFAULT)):
            self._card = ModelCard("loading", say("model.loading"), name)
            try:
                model = self._engine.load(name, progress=self._progress, **self._settings)
            except RiverError as error:
                reason = reason or str(error)
                continue
            self._model = model
            self._card = model_card(model, say("model.instead", reason=reason) if reason else "")
            return
        self._card = ModelCard("failed", say("model.failed", reason=reason), self._name)

    def _loaded(self, future: Future[None]) -> None:
        """Tell the page of a fault that `_load` did not foresee."""
        if not future.cancelled() and (fault := future.exception()) is not None:
            traceback.print_exception(fault)
            self._card = ModelCard("failed", say("error.unexpected"), self._name)

    def _progress(self, step: str, fraction: float | None) -> None:
        if self._closing:
            raise SystemExit
        share = "" if fraction is None else f", {fraction:.0%}".replace("%", " %")
        message = say("model.loading_step", step=step + share)
        if message != self._card.message:
            self._card = ModelCard("loading", message, self._card.name)

    def _ready_model(self) -> Any:
        if self._model is None:
            self._load()
        if self._model is None:
            raise RiverError(self._card.message)
        return self._model

    def _set_resident(self, layers: int | str) -> None:
        model = self._ready_model()
        model.set_resident(layers)
        with self._lock:
            self._card = model_card(model)

    def _generate(self, prompt: str, settings: dict[str, Any]) -> dict[str, Any]:
        model = self._ready_model()
        return record_json(self._engine.generate(model, prompt, **settings))

    def _work(self, job: Job) -> None:
        """Both lanes of a job, one after the other, on the worker thread."""
        try:
            job.enter("loading")
            model = self._ready_model()
            job.run.notes, job.run.entry_layer = tuple(model.info.notes), model.info.entry_layer
            for lane in job.run.lanes:
                lane.num_layers = model.num_layers
            streams = {}
            for lane in job.run.lanes:
                if job.stopped.is_set():
                    lane.phase = "stopped"
                else:
                    streams[lane.name] = self._decode(job, lane, model)
            for lane in job.run.lanes:
                if lane.name in streams:
                    self._keep(job, lane, streams[lane.name])
        except RiverError as error:
            fail(job, error)
        else:
            job.enter("stopped" if job.stopped.is_set() else "done")

    def _decode(self, job: Job, lane: Lane, model: Any) -> Any:
        job.enter("prompt")
        lane.phase = "prompt"
        job.control = self._engine.Control()
        if job.stopped.is_set():
            job.control.cancel()
        settings = job.ask.lanes[lane.name]
        stream = self._engine.stream(model, job.ask.prompt, control=job.control, **settings)
        for record in stream:
            with self._lock:
                take(job, lane, record)
        lane.phase = "stopped" if job.stopped.is_set() else "done"
        return stream

    def _keep(self, job: Job, lane: Lane, stream: Any) -> None:
        """Keep the lane's record; the upper one's with all layers' similarities, unless stopped."""
        whole = lane.name == LANES[0] and lane.exits and not job.stopped.is_set()
        if whole:
            job.enter("tracing")
        record: RunRecord = stream.record(full_trace=whole)
        with self._lock:
            lane.trace = [pack_trace(values) for values in record.full_trace or ()]
            self._records[job.run.id, lane.name] = record
            while len(self._records) > 2 * KEPT_RUNS:
                self._records.popitem(last=False)


def _checked(**settings: Any) -> dict[str, Any]:
    """The settings, once DecodeSettings has found nothing wrong with them."""
    DecodeSettings.from_keywords(settings)
    return settings
