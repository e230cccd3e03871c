"""Where long work can be given up: a function that it calls again and again raises Cancelled.

Knows nothing of runs; `Control` is what they look at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .errors import Cancelled


class Cancellable(Protocol):
    """What can be told to stop, from another thread."""

    @property
    def cancelled(self) -> bool:
        """Whether it was told to."""


def looking_at(control: Cancellable | None) -> Callable[[], None]:
    """A function that raises Cancelled once the control was cancelled; for None, never."""

    def look() -> None:
        if control is not None and control.cancelled:
            raise Cancelled

    return look


go_on = looking_at(None)
