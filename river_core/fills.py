"""What becomes of the layers that a token skips, as data; and which layers a token skips inside.

A Fill names the KV source that later tokens find and what runs to make it so; the loop turns it
into work. A Skip leaves halves of layers out without leaving the stack. Both know nothing of exits
or of the loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from .exits import Moment

KV_SOURCE = {"b": "b", "r": "r", "p": "p", "f": "b", "a": "n", "s": "n"}  # of a path letter
ATTENTION, FEED_FORWARD = "attention", "feed_forward"
SKIPPED = {(): "b", (ATTENTION,): "a", (FEED_FORWARD,): "f", (ATTENTION, FEED_FORWARD): "s"}


@dataclass(frozen=True)
class Fill:
    """`kv` is the KV source of a skipped layer's slot, `path` its letter where no tail runs."""

    kv: str
    path: str = "s"


FILLS: dict[str, Fill] = {
    "river": Fill("r", "r"),  # the layer's 4-bit twin writes the same slot (paper 4.1)
    "propagate": Fill("p", "p"),  # keys and values from the exit state, nothing else (CALM)
    "mask": Fill("m"),  # nothing: later tokens do not see this one there (D-LLM)
    "defer": Fill("d"),  # the exit state waits and is carried along later (EE-LLM)
    "none": Fill("n"),  # nothing, because no later token will look there
}


class Skip(ABC):
    """Says which halves of a backbone layer are left out, and what replaces them."""

    def watches(self, at: Moment) -> bool:
        """Whether `saw` is to be told of the halves that run now."""
        return False

    @abstractmethod
    def factor(self, at: Moment, half: str) -> float | None:
        """None: run this half of layer `at.layer`. Else multiply the hidden state by this."""

    @abstractmethod
    def saw(self, at: Moment, half: str, similarity: Sequence[float], ratio: float) -> None:
        """Told after a half ran: the rows' similarities, and the ratio of norms, out over in."""


class FeedForwardSkip(Skip):
    """Leave out the feed-forward half where attention hardly changed a single row (DiffSkip)."""

    def __init__(self) -> None:
        self._similarity = -1.0

    def watches(self, at: Moment) -> bool:
        """In decode passes."""
        return at.index > 0

    def factor(self, at: Moment, half: str) -> float | None:
        """1 for a feed-forward half after an attention half above the threshold."""
        skips = half == FEED_FORWARD and at.index > 0 and self._similarity > at.threshold
        return 1.0 if skips else None

    def saw(self, at: Moment, half: str, similarity: Sequence[float], ratio: float) -> None:
        """Keep the attention half's similarity."""
        if half == ATTENTION:
            self._similarity = min(similarity)


class AdaSkip(Skip):
    """Leave out the halves that changed the prompt least, scaled by their ratio of norms.

    `count` halves are chosen after the prompt pass; after `observed` decode passes, every further
    feed-forward half whose mean similarity in them is above the threshold as well (AdaSkip 3).
    """

    def __init__(self, count: int, observed: int) -> None:
        self._count, self._observed = count, observed
        self._seen: dict[tuple[int, str], list[tuple[float, float]]] = {}
        self._factors: dict[tuple[int, str], float] | None = None
        self._chosen_again = False

    def watches(self, at: Moment) -> bool:
        """Until the last choice."""
        return not self._chosen_again

    def factor(self, at: Moment, half: str) -> float | None:
        """The ratio of norms of a chosen half."""
        if at.index == 0:
            return None
        if self._factors is None:
            means = self._means()
            order = sorted(means, key=lambda key: -means[key][0])
            self._factors = {key: means[key][1] for key in order[: self._count]}
            self._seen = {}
        if at.index > self._observed and not self._chosen_again:
            self._chosen_again = True
            for key, (similarity, ratio) in self._means().items():
                if key[1] == FEED_FORWARD and similarity > at.threshold:
                    self._factors.setdefault(key, ratio)
        return self._factors.get((at.layer, half))

    def saw(self, at: Moment, half: str, similarity: Sequence[float], ratio: float) -> None:
        """Collect the mean over the rows."""
        self._seen.setdefault((at.layer, half), []).append((fmean(similarity), ratio))

    def _means(self) -> dict[tuple[int, str], tuple[float, float]]:
        seen = self._seen.items()
        return {k: (fmean(s for s, _ in v), fmean(r for _, r in v)) for k, v in seen}
