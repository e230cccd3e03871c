"""Layers saved next to time saved, as numbers. No torch: from the records and the memory ledger.

Decoding at batch 1 reads every weight that a token uses once, so bytes bound the time (method.md
2.6). Skipped backbone layers still run in the river, and the head is read in full: that is why half
the layers is not twice the speed. What is measured beyond the bytes is left over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from .metrics import decisions_per_token, part_bytes
from .records import RunSummary, TokenRecord

WHOLE = frozenset("brs")  # path letters of layers that were read whole or not at all


@dataclass(frozen=True)
class ReadShare:
    """Bytes of weights that a token read, by part, as shares of what the full backbone reads."""

    backbone: float
    river: float
    head: float

    @property
    def total(self) -> float:
        """Of all parts: the least time per token that the bytes allow, the backbone's being 1."""
        return self.backbone + self.river + self.head


@dataclass(frozen=True)
class Saving:
    """One run's time per token, as shares of the full backbone's; None where it is not known.

    `layers`: share of the backbone's layers that were not run. `bytes`: what was read. `measured`:
    time per token. `decisions`: the part of it spent deciding. `rest`: what neither the bytes nor
    the decisions account for (cache, attention, launches); negative: faster than the bytes allow.
    """

    layers: float | None
    bytes: ReadShare | None
    measured: float | None
    decisions: float | None
    rest: float | None


@dataclass(frozen=True)
class Spread:
    """Repeats of one rate: the median, the slowest and the fastest."""

    median: float
    slowest: float
    fastest: float


def spread(rates: Sequence[float]) -> Spread:
    """Of at least one rate."""
    return Spread(median(rates), min(rates), max(rates))


def read_share(
    tokens: Sequence[TokenRecord], summary: RunSummary, entry_layer: int
) -> ReadShare | None:
    """Mean over the decode passes (i >= 1), from their paths.

    None without such passes or a memory ledger, and where bytes per pass are not known from it:
    passes that ran parts of layers, and runs that carried rows along or verified drafts.
    """
    passes = tokens[1:]
    layers = len(passes[0].path) if passes else 0
    layer, twin, head = part_bytes(summary.memory, layers, entry_layer) if layers else (0, 0, 0)
    extra = any(summary.counters.get(name, 0) for name in ("extra_rows", "drafted"))
    if not layer or extra or any(set(t.path) - WHOLE for t in passes):
        return None
    full = layers * layer + head
    backbone, river = (fmean(t.path.count(letter) for t in passes) for letter in "br")
    return ReadShare(backbone * layer / full, river * twin / full, head / full)


def saving(
    tokens: Sequence[TokenRecord],
    summary: RunSummary,
    entry_layer: int,
    backbone_rate: float | None,
) -> Saving:
    """Of one run; `backbone_rate` is the full backbone's tokens per second, None: not measured."""
    read = read_share(tokens, summary, entry_layer)
    rate = summary.tokens_per_second
    measured = backbone_rate / rate if backbone_rate and rate else None
    decisions = _decisions(tokens, summary, entry_layer)
    spent = None if decisions is None or not backbone_rate else decisions * backbone_rate
    rest = None if measured is None or read is None else measured - read.total - (spent or 0.0)
    return Saving(summary.layers_saved, read, measured, spent, rest)


def _decisions(
    tokens: Sequence[TokenRecord], summary: RunSummary, entry_layer: int
) -> float | None:
    """Seconds per token spent deciding, from the median decision."""
    each = summary.decision_microseconds
    if each is None or len(tokens) < 2:
        return None
    return decisions_per_token(tokens[1:], entry_layer, len(tokens[1].path)) * each * 1e-6
