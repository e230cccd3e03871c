"""One press on Run while the worker is at it, and where a stream's records go."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from river_core.records import CacheUpdate, PromptRecord, RunSummary, TokenRecord

from .asked import Ask
from .views.run import Lane, Run
from .views.snapshot import append


@dataclass
class Job:
    """One press on Run: what it shows, what it was asked, and how to stop it."""

    run: Run
    ask: Ask
    stopped: threading.Event = field(default_factory=threading.Event)
    control: Any = None
    since: float = field(default_factory=time.monotonic)
    future: Future[None] = field(default_factory=Future)

    def enter(self, phase: str) -> None:
        """Note a new phase and when it began."""
        self.run.phase, self.since = phase, time.monotonic()

    def stop(self) -> None:
        """Stop within one step; before its turn has come, at its turn."""
        self.stopped.set()
        if self.control is not None:
            self.control.cancel()


def take(job: Job, lane: Lane, record: object) -> None:
    """Put one record of the stream where the views look for it."""
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
    """The run and the lanes that have not ended have failed; `reason` is one sentence."""
    job.run.error = str(reason)
    job.enter("failed")
    for lane in job.run.lanes:
        if lane.phase not in ("done", "stopped"):
            lane.phase = "failed"
