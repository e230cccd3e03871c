"""A run's live controls and its clock: what reaches into the loop from outside, and what it shows.

Knows nothing of passes or records.
"""

from __future__ import annotations

import time

from .errors import RiverError
from .settings import check_threshold


class Control:
    """A run's live controls, safe to use from another thread."""

    def __init__(self) -> None:
        self._threshold: float | None = None
        self._cancelled = False

    @property
    def threshold(self) -> float | None:
        """Threshold from the next pass on; None leaves the run's own."""
        return self._threshold

    @threshold.setter
    def threshold(self, value: float) -> None:
        self._threshold = check_threshold(value)

    def cancel(self) -> None:
        """Stop the run within one step."""
        self._cancelled = True

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled


def refuse_stopped(control: Control | None, what: str) -> None:
    """Raises RiverError once `control` was cancelled: a run under it may have ended early."""
    if control is not None and control.cancelled:
        raise RiverError(f"{what} was stopped.")


class Clock:
    """Seconds of the run's own work: the time its consumer holds a record does not count."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        """Seconds since the start, without what was skipped."""
        return time.perf_counter() - self._start

    def skip(self, seconds: float) -> None:
        """Leave out `seconds` that were not the run's."""
        self._start += seconds
