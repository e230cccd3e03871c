"""How early each token of the lane above could have left: the engine's answer for a kept run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from .task import Records, Task, kept
from .views.english import Refused
from .views.wording import say

LONGEST = 30.0  # seconds


@dataclass
class Safe(Task):
    """Replays the run, then tries every exit layer of every pass."""

    kind = "safe"
    since: float = 0.0

    def work(self, engine: Any, model: Any, records: Records) -> dict[str, Any]:
        """`exits` and `stable`, one per token; their mean."""
        record = kept(records, "upper")[0]
        if record.summary.decode_seconds > LONGEST / 2:
            raise Refused(say("safe.long", seconds=round(LONGEST)))
        self.said, self.since = say("safe.replay"), time.monotonic()
        with self.stoppable(engine) as control:
            found = engine.earliest_safe_exits(model, record, progress=self.told, control=control)
        return {
            "exits": list(found.exits),
            "stable": list(found.stable),
            "said": say(
                "safe.mean",
                mean=f"{found.mean:.1f}" if found.mean is not None else "-",
                layers=record.header.num_layers,
                most=found.sequence_maximum,
            ),
        }

    def told(self, done: int, passes: int) -> None:
        """After the replay and after each batch of passes: stop, or refuse what would take long."""
        self.go_on()
        if not done:
            self.since = time.monotonic()
            return
        spent = time.monotonic() - self.since
        if spent / done * passes > LONGEST:
            raise Refused(say("safe.long", seconds=round(LONGEST)))
        self.share, self.said = done / passes, say("safe.passes", done=done, passes=passes)
