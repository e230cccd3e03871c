"""Which tokens a snapshot carries: the newest, with an overlap; now and then all of them.

A browser may join several updates into one and so miss a snapshot. The overlap makes good for a
few, the whole lane every couple of seconds for any number, and the last snapshot is always whole.
Sending whole lanes each time would cost the browser a core at a few hundred tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

OVERLAP = 4  # snapshots
WHOLE_EVERY = 16  # snapshots: about two seconds


class Window:
    """One page's view of one run; ask it once per snapshot."""

    def __init__(self) -> None:
        self._counts: deque[Mapping[str, int]] = deque(maxlen=OVERLAP)
        self._sent = 0

    def starts(self, counts: Mapping[str, int], *, whole: bool = False) -> dict[str, int]:
        """Lane -> index of the first token to send, where `counts` tokens are there to send."""
        oldest = self._counts[0] if len(self._counts) == OVERLAP else {}
        everything = whole or self._sent % WHOLE_EVERY == 0
        self._counts.append(dict(counts))
        self._sent += 1
        return {lane: 0 if everything else oldest.get(lane, 0) for lane in counts}
