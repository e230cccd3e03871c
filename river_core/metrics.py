"""Records to numbers. No torch: whatever the records alone can say is said here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from .errors import RecordError
from .records import RunRecord, TokenRecord


@dataclass(frozen=True)
class Agreement:
    """How far two runs over the same prompt choose the same tokens.

    `match` is 0..1 over `compared` passes; `top5_overlap` the mean share of common ids among the
    five most likely; `first_difference` the index of the first pass that chose differently.
    """

    match: float
    top5_overlap: float
    first_difference: int | None
    compared: int


def choices(run: RunRecord) -> list[int]:
    """What the model itself chose at each pass: on forced runs its best alternative."""
    if run.header.forced_tokens:
        return [t.alternatives[0][0] for t in run.tokens]
    return [t.token_id for t in run.tokens]


def agreement(reference: RunRecord, other: RunRecord) -> Agreement:
    """Compare two runs of one prompt (records.md: teacher-forced, or up to the first difference).

    Raises RecordError where the runs do not answer the same prompt or were not fed alike.
    """
    _check_comparable(reference, other)
    pairs = list(zip(choices(reference), choices(other), strict=False))
    differences = [n for n, (a, b) in enumerate(pairs) if a != b]
    first = differences[0] if differences else None
    counted = len(pairs)
    if not reference.header.forced_tokens and first is not None:
        counted = first + 1
        differences = [first]
    overlap = [
        _overlap(a, b)
        for a, b in zip(reference.tokens[:counted], other.tokens[:counted], strict=True)
    ]
    return Agreement(1 - len(differences) / counted, fmean(overlap), first, counted)


def _check_comparable(reference: RunRecord, other: RunRecord) -> None:
    if reference.prompt.token_ids != other.prompt.token_ids:
        raise RecordError("the two runs have different prompts; compare runs of the same prompt.")
    if reference.header.forced_tokens != other.header.forced_tokens:
        raise RecordError(
            "one run was teacher-forced and the other was not; compare two of the same kind."
        )
    if not reference.tokens or not other.tokens:
        raise RecordError("a run without tokens cannot be compared; run it to at least one.")
    forced = [[t.token_id for t in run.tokens] for run in (reference, other)]
    if reference.header.forced_tokens and forced[0] != forced[1]:
        raise RecordError("the two runs were fed different tokens; force the same ones.")


def _overlap(a: TokenRecord, b: TokenRecord) -> float:
    ids = {i for i, _, _ in a.alternatives}
    return len(ids & {i for i, _, _ in b.alternatives}) / len(ids)


def exit_histogram(run: RunRecord) -> dict[int, int]:
    """Exit layer -> number of decode passes (i >= 1) that left there, ascending."""
    counts = Counter(t.exit_layer for t in run.tokens[1:])
    return dict(sorted(counts.items()))


def mean_exit_layer(runs: Sequence[RunRecord]) -> float | None:
    """Mean exit layer over the decode passes of several runs; None where there are none."""
    exits = [t.exit_layer for run in runs for t in run.tokens[1:]]
    return fmean(exits) if exits else None
