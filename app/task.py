"""Work on a run that was kept, on the same worker as runs: its turn, its progress, its end.

A task is stopped like a run: by Stop, by a new run, by closing the page.
"""

from __future__ import annotations

import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from river_core.errors import RiverError
from river_core.records import RunRecord
from river_core.settings import DecodeSettings

from .views.english import Refused, told
from .views.run import LANES
from .views.wording import say

Records = Mapping[str, RunRecord | None]  # by lane
QUIET = {"full_trace": False, "profile": False, "prompt_trace": False, "stop": ()}


class Stopped(Exception):
    """Raised inside a task when it was told to stop."""


def refusal(kind: str, run: str, reason: str) -> dict[str, Any]:
    """The view of a task that does not begin; `reason` is one sentence."""
    return {
        "kind": kind,
        "run": run,
        "phase": "failed",
        "said": say("task.failed"),
        "share": 0.0,
        "error": reason,
        "result": {},
    }


@dataclass(eq=False)
class Task(ABC):
    """One press on a button that works on the run `run`; `result` is what the page then shows."""

    run: str
    kind: ClassVar[str] = ""
    phase: str = "waiting"
    said: str = ""
    share: float = 0.0  # done, 0..1
    error: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)
    control: Any = None
    future: Future[None] = field(default_factory=Future)

    def stop(self) -> None:
        """Stop within one step; before its turn has come, at once."""
        self.stopped.set()
        self.future.cancel()
        if self.control is not None:
            self.control.cancel()

    def go_on(self) -> None:
        """Raises Stopped once the task was stopped."""
        if self.stopped.is_set():
            raise Stopped

    @contextmanager
    def stoppable(self, engine: Any) -> Iterator[Any]:
        """A control that Stop cancels; what the engine says of that is Stopped here."""
        self.control = engine.Control()
        self.go_on()
        try:
            yield self.control
        except RiverError:
            self.go_on()
            raise

    def fail(self, reason: str) -> None:
        """It has failed; `reason` is one sentence."""
        self.phase, self.said, self.error = "failed", "", reason

    def view(self) -> dict[str, Any]:
        """What the page shows of it now."""
        return {
            "kind": self.kind,
            "run": self.run,
            "phase": self.phase,
            "said": self.said or say(f"task.{self.phase}"),
            "share": round(self.share, 3),
            "error": self.error,
            "result": self.result if self.phase == "done" else {},
        }

    def begin(self, engine: Any, ready: Callable[[], Any], records: Records) -> None:
        """On the worker: all of it, with what went wrong as one sentence."""
        try:
            self.go_on()
            self.phase = "working"
            self.result = self.work(engine, ready(), records)
            self.phase, self.said = "done", ""
        except Stopped:
            self.phase, self.said = "stopped", ""
        except RiverError as error:
            self.fail(told(error))

    @abstractmethod
    def work(self, engine: Any, model: Any, records: Records) -> dict[str, Any]:
        """The result. Raises RiverError, or Stopped."""

    def watch(self, interval: float) -> Iterator[dict[str, Any]]:
        """Views until it has ended."""
        while True:
            done = self.future.done()
            yield self.view()
            if done:
                break
            wait([self.future], timeout=interval)
        if self.future.cancelled():
            self.phase = "stopped"
            yield self.view()
        elif (fault := self.future.exception()) is not None:
            traceback.print_exception(fault)
            self.fail(say("error.unexpected"))
            yield self.view()


def kept(records: Records, *lanes: str) -> list[RunRecord]:
    """The records of the lanes asked for (both where none is named). Raises RiverError."""
    found = [records.get(lane) for lane in lanes or LANES]
    whole = [record for record in found if record is not None]
    if len(whole) < len(found):
        raise Refused(say("task.no_record"))
    return whole


def settings_of(record: RunRecord) -> dict[str, Any]:
    """The keywords that decode as the record was decoded, at the threshold it ended with."""
    known = DecodeSettings.__dataclass_fields__
    own = {name: value for name, value in record.header.settings.items() if name in known} | QUIET
    if own.get("exit") == "never":
        del own["exit"]
    if record.tokens and own.get("threshold") is not None:
        own["threshold"] = record.tokens[-1].threshold
    return own
