"""One press on Run while the worker is at it, and where a stream's records go."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from river_core.records import CacheUpdate, PromptRecord, RunRecord, RunSummary, TokenRecord

from .asked import Ask
from .views.english import told
from .views.packing import pack_trace
from .views.run import Lane, ModelCard, Run
from .views.snapshot import append


@dataclass(eq=False)
class Job:
    """One press on Run: what it shows, what it was asked, and how to stop it."""

    run: Run
    ask: Ask
    stopped: threading.Event = field(default_factory=threading.Event)
    control: Any = None
    since: float = field(default_factory=time.monotonic)
    future: Future[None] = field(default_factory=Future)
    turned: threading.Event = field(default_factory=threading.Event)  # a new phase to be shown

    def enter(self, phase: str) -> None:
        """Note a new phase and when it began."""
        self.run.phase, self.since = phase, time.monotonic()
        self.turned.set()

    def begin(self, engine: Any) -> Any:
        """A Control for the next lane."""
        self.control = engine.Control()
        if self.stopped.is_set():
            self.control.cancel()
        return self.control

    def stop(self) -> None:
        """Stop within one step; before its turn has come, at once."""
        self.stopped.set()
        self.future.cancel()
        if self.control is not None:
            self.control.cancel()


def gave_up(job: Job) -> None:
    """It was stopped before its turn came."""
    job.enter("stopped")
    for lane in job.run.lanes:
        lane.phase = "stopped"


def take(job: Job, name: str, event: object) -> None:
    """Put one event of `decoding.decode` where the views look for it."""
    if isinstance(event, ModelCard):
        job.run.notes, job.run.entry_layer = event.notes, event.entry_layer
        for lane in job.run.lanes:
            lane.num_layers = event.num_layers
        return
    lane = next(lane for lane in job.run.lanes if lane.name == name)
    if isinstance(event, RunRecord):
        lane.trace = [pack_trace(values) for values in event.full_trace or ()]
    elif isinstance(event, str):
        if event != "tracing":
            lane.phase = event
        if event in ("prompt", "tracing"):
            job.enter(event)
    else:
        _record(job, lane, event)


def _record(job: Job, lane: Lane, record: object) -> None:
    if isinstance(record, PromptRecord):
        lane.prompt = record
    elif isinstance(record, TokenRecord):
        append(lane, record)
        if lane.phase != "decoding":
            lane.phase = "decoding"
            job.enter("decoding")
    elif isinstance(record, CacheUpdate):
        lane.updates.append(record)
    elif isinstance(record, RunSummary):
        lane.summary = record


def fail(job: Job, reason: object) -> None:
    """The run and the lanes that have not ended have failed.

    `reason` is an error, or one sentence in the page's language.
    """
    job.run.error = reason if isinstance(reason, str) else told(reason)
    job.enter("failed")
    for lane in job.run.lanes:
        if lane.phase not in ("done", "stopped"):
            lane.phase = "failed"
