"""Which job of which session is at the one worker: put there, found, stopped, taken away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from .job import Job
from .task import Task


class Desk:
    """One worker thread; a session has one job, and a new one ends the one before it."""

    def __init__(self) -> None:
        self.worker = ThreadPoolExecutor(1, "river")
        self._lock = threading.Lock()
        self._jobs: dict[str, Job | Task] = {}

    def job(self, session: str) -> Job | Task | None:
        """The session's job, if it has one."""
        with self._lock:
            return self._jobs.get(session)

    @contextmanager
    def at_work(self, job: Any, session: str, work: Callable[[Any], None]) -> Iterator[None]:
        """Give the worker a job; whoever leaves the block stops it."""
        with self._lock:
            before = self._jobs.pop(session, None)
            self._jobs[session] = job  # the last in the order of the queue
        if before is not None:
            before.stop()
        job.future = self.worker.submit(work, job)
        try:
            yield
        finally:
            job.stop()
            with self._lock:
                if self._jobs.get(session) is job:
                    del self._jobs[session]

    def ahead(self, job: Job | Task) -> int:
        """Jobs of other sessions that come first, in the queue or at work."""
        with self._lock:
            jobs = list(self._jobs.values())
        earlier = jobs[: jobs.index(job)] if job in jobs else []
        return sum(not other.future.done() for other in earlier)

    def close(self) -> None:
        """Stop everything, so that the process can end."""
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            job.stop()
        self.worker.shutdown(wait=False, cancel_futures=True)
