"""The only app file that loads and decodes: one model, one worker thread, one run at a time.

A page's run is a job for the worker; the page's generator only looks at it a few times a second
and at each new phase.
Jobs wait in order, so River and the backbone, and two people's runs, never compute together.
`lock` guards what worker and generators share. The lanes of a job follow one another.
"""

from __future__ import annotations

import threading
import time
import traceback
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from types import MappingProxyType
from typing import Any

import river_core
from river_core.errors import RiverError
from river_core.records import RunRecord
from river_core.settings import DecodeSettings, QuantSpec, check_threshold

from .asked import Ask, ask
from .decoding import Event, decode, decode_lent, lent_seconds
from .desk import Desk
from .holder import Holder
from .job import Job, fail, gave_up, take
from .measuring import Measuring
from .pace import INTERVAL, between_views
from .recorded import saved
from .safe import Safe
from .space import lent
from .studies import Study, memory_table, records_of
from .task import Task, refusal
from .views.english import Refused
from .views.record import record_json
from .views.run import LANES, ModelCard, Run
from .views.snapshot import card_view, snapshot
from .views.window import Window
from .views.wording import say

KEPT_RUNS = 16
ERRORS = {"error": RiverError, "refused": Refused}  # by the event that carries the sentence
TASKS: dict[str, type[Task]] = {task.kind: task for task in (Measuring, Safe)}


class Runner:
    """Loads `name` in the background and serves runs; `engine` is river_core or a test's stub.

    `how`: more settings of `river_core.load`.
    """

    def __init__(
        self,
        name: str,
        device: str = "auto",
        river: QuantSpec | None = None,
        engine: Any = river_core,
        lend: bool = False,
        how: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._engine = engine
        self._holder = Holder(engine, name, {"device": device, "river": river, **how})
        self._desk = Desk()
        self._worker = self._desk.worker
        self._lock = threading.Lock()
        self._records: OrderedDict[tuple[str, str], RunRecord] = OrderedDict()
        self._lent = self._lend() if lend else None

    def start(self) -> None:
        """Begin loading; returns at once. Where a GPU is lent, each run loads for itself."""
        if self._lent is None:
            self._worker.submit(self._holder.load).add_done_callback(self._holder.loaded)
        else:
            self._holder.card = ModelCard("ready", say("model.lent"), self.card.name)

    def close(self) -> None:
        """Give up whatever runs, so that the process can end."""
        self._holder.closing = True
        self._desk.close()

    @property
    def card(self) -> ModelCard:
        """What is known of the model now."""
        return self._holder.card

    def cards(self) -> Iterator[dict[str, Any]]:
        """The top bar, again at each change, until the model is ready or has failed."""
        shown = None
        while True:
            card = self.card
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
        with self._desk.at_work(job, session, self._work):
            yield from self._watch(job)

    def task(self, kind: str, run_id: str, session: str) -> Iterator[dict[str, Any]]:
        """Views of work on a kept run, by the names of `TASKS`, until it has ended (task.py)."""
        if kind in TASKS:
            yield from self._follow(TASKS[kind](run_id), session)
        else:
            yield refusal(kind, run_id, say("task.unknown"))

    def study(self, name: str, values: Mapping[str, Any], session: str) -> Iterator[dict[str, Any]]:
        """Views of a measurement, by the names of `studies.MEASURES`, until it has ended."""
        yield from self._follow(Study("", name=name, values=values), session)

    def records(self, run_id: str) -> list[RunRecord]:
        """The records of a kept or recorded run, upper lane first. Raises RiverError."""
        return records_of(run_id, self._kept(run_id))

    def ledger(self) -> dict[str, Any]:
        """The memory table of the model. Raises RiverError where there is none here."""
        return memory_table(self._here())

    def stop(self, session: str) -> None:
        """Stop the session's run, if it has one."""
        job = self._desk.job(session)
        if job is not None:
            job.stop()

    def set_threshold(self, value: Any, session: str) -> None:
        """Of the session's run, if it has one, from the next token on. Raises SettingsError."""
        job = self._desk.job(session)
        if isinstance(job, Job):
            threshold = check_threshold(value)
            with self._lock:
                for settings in job.ask.lanes.values():
                    settings["threshold"] = threshold  # of lanes that have not begun
                if job.control is not None:
                    job.control.threshold = threshold

    def generate(self, prompt: str, **settings: Any) -> dict[str, Any]:
        """One whole run as a JSON object. Raises RiverError for anything the caller got wrong."""
        asked = Ask(prompt, {LANES[0]: _checked(full_trace=True, **settings)})
        return record_json(self._worker.submit(self._decoded, asked).result()[LANES[0]])

    def compare(self, prompt: str, upper: str, lower: str, **settings: Any) -> dict[str, Any]:
        """Two policies, the same settings: both records and how far they agree. Raises RiverError.

        The lower lane is the reference.
        """
        policies = dict(zip(LANES, (upper, lower), strict=True))
        lanes = {lane: _checked(policy=policy, **settings) for lane, policy in policies.items()}
        records = self._worker.submit(self._decoded, Ask(prompt, lanes)).result()
        found = self._engine.compare(records["lower"], records["upper"])
        whole = {lane: record_json(record) for lane, record in records.items()}
        return whole | {"comparison": asdict(found)}

    def set_resident(self, layers: int | str) -> None:
        """Keep that many backbone layers, or "auto"; waits for its turn behind the runs asked for.

        Raises RiverError where that is not possible; the model then is as it was.
        """
        self._worker.submit(self._set_resident, layers).result()

    def record(self, run_id: str, lane: str) -> dict[str, Any]:
        """The record of a kept page run. Raises RiverError when there is none."""
        if lane not in LANES:
            raise Refused(say("error.lane", lane=lane))
        with self._lock:
            record = self._records.get((run_id, lane))
        if record is None:
            raise Refused(say("error.no_record", kept=KEPT_RUNS))
        return record_json(record)

    def lines(self, run_id: str) -> str:
        """The records of a kept page run as JSON Lines. Raises RiverError when there are none."""
        records = [record for record in self._kept(run_id).values() if record is not None]
        if not records:
            raise Refused(say("error.no_record", kept=KEPT_RUNS))
        return saved(records)

    def _lend(self) -> Callable[[Ask], Iterator[Event]]:
        def both_lanes(asked: Ask) -> Iterator[Event]:
            return decode_lent(self._engine, self._holder.ready, asked)

        return lent(both_lanes, lent_seconds)

    def _watch(self, job: Job) -> Iterator[dict[str, Any]]:
        window = Window()
        job.future.add_done_callback(lambda _: job.turned.set())
        while True:
            job.turned.clear()
            done = job.future.done()
            yield self._view(job, window, whole=done)
            if done:
                break
            job.turned.wait(between_views(self.card.device))
        if job.future.cancelled():
            gave_up(job)
            yield self._view(job, window, whole=True)
        elif (fault := job.future.exception()) is not None:
            traceback.print_exception(fault)
            fail(job, say("error.unexpected"))
            yield self._view(job, window, whole=True)

    def _view(self, job: Job, window: Window, *, whole: bool = False) -> dict[str, Any]:
        with self._lock:
            job.run.waited = time.monotonic() - job.since
            job.run.ahead = self._desk.ahead(job)
            starts = window.starts(job.run.counts, whole=whole)
            return snapshot(job.run, self.card, starts)

    def _decoded(self, asked: Ask) -> dict[str, RunRecord]:
        """The whole records by lane, on the worker thread."""
        job = Job(Run(""), asked)
        events = list(self._events(job))
        for lane, event in events:
            if lane in ERRORS:
                raise ERRORS[lane](str(event))
        return {lane: event for lane, event in events if isinstance(event, RunRecord)}

    def _work(self, job: Job) -> None:
        """Both lanes of a job, one after the other, on the worker thread."""
        try:
            job.enter("loading")
            for lane, event in self._events(job):
                with self._lock:
                    self._take(job, lane, event)
        except RiverError as error:
            fail(job, error)
        else:
            job.enter("stopped" if job.stopped.is_set() else "done")

    def _events(self, job: Job) -> Iterator[Event]:
        if self._lent is None:
            control, stopped = partial(job.begin, self._engine), job.stopped.is_set
            yield from decode(self._engine, self._holder.ready(), job.ask, control, stopped)
            return
        for event in self._lent(job.ask):
            if job.stopped.is_set():
                break
            yield event

    def _set_resident(self, layers: int | str) -> None:
        self._here()
        self._holder.set_resident(layers)

    def _follow(self, task: Task, session: str) -> Iterator[dict[str, Any]]:
        """The task in its turn; where the session has something at work, it does not begin."""
        if self._desk.job(session) is not None:
            yield refusal(task.kind, task.run, say("task.busy"))
            return
        with self._desk.at_work(task, session, self._on_kept):
            yield from task.watch(between_views(self.card.device))

    def _on_kept(self, task: Task) -> None:
        task.begin(self._engine, self._here, self._kept(task.run))

    def _kept(self, run_id: str) -> dict[str, RunRecord | None]:
        with self._lock:
            return {lane: self._records.get((run_id, lane)) for lane in LANES}

    def _here(self) -> Any:
        """The model in this process. Raises RiverError, also where it is only lent to runs."""
        if self._lent is not None:
            raise Refused(say("model.only_runs"))
        return self._holder.ready()

    def _take(self, job: Job, lane: str, event: object) -> None:
        """Put one event where the views look for it; a whole record is kept for a while."""
        if lane in ERRORS:
            raise ERRORS[lane](str(event))
        if isinstance(event, RunRecord):
            self._records[job.run.id, lane] = event
            while len(self._records) > 2 * KEPT_RUNS:
                self._records.popitem(last=False)
        if isinstance(event, ModelCard) and self._lent is not None:
            self._holder.card = event
        take(job, lane, event)


def _checked(**settings: Any) -> dict[str, Any]:
    """The settings, once DecodeSettings has found nothing wrong with them."""
    DecodeSettings.from_keywords(settings)
    return settings
