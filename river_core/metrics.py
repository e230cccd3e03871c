"""Records to numbers. No torch: whatever the records alone can say is said here."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
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


@dataclass(frozen=True)
class RunNumbers:
    """One run in numbers; means are over its decode passes (i >= 1), None where there are none.

    `tokens_per_second` leaves the prompt pass out, `..._with_prefill` counts all tokens over both;
    `milliseconds` per token by part exist only in profile mode; `decision_microseconds` is the
    median per decision, `decision_percent` all decisions of a token in per cent of its time.
    """

    policy: str
    tokens: int
    mean_exit_layer: float | None
    layers_saved: float | None
    exits: Mapping[int, int]
    extra_rows: int
    slots_missing: int
    tokens_per_second: float | None
    tokens_per_second_with_prefill: float | None
    milliseconds: Mapping[str, float] | None
    decision_microseconds: float | None
    decision_percent: float | None


def weight_bytes(memory: Mapping[str, int], layers: int, entry_layer: int) -> tuple[float, float]:
    """Bytes of weights that a token reads after 0 backbone layers, and for each one more.

    From a summary's `memory`, with every backbone layer there; (0, 0) where it has no layers. An
    estimate of speed, since decoding at batch 1 is bound by them (method.md 2.6): a token that
    leaves after e layers reads e of the backbone's and layers - e twins, and the head.
    """
    layer, twin, head = part_bytes(memory, layers, entry_layer)
    return (head + layers * twin, layer - twin) if layer else (0.0, 0.0)


def part_bytes(
    memory: Mapping[str, int], layers: int, entry_layer: int
) -> tuple[float, float, float]:
    """Bytes of weights of one backbone layer, one twin and the head; zeros without layers."""
    backbone, river = memory.get("backbone", 0), memory.get("river", 0)
    if not backbone or not river:
        return 0.0, 0.0, 0.0
    head = memory.get("head") or memory.get("embedding", 0)
    return backbone / layers, river / (layers - entry_layer + 1), float(head)


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


def run_numbers(run: RunRecord) -> RunNumbers:
    """What one run's records say about depth, speed, extra work and the cost of deciding."""
    summary = run.summary
    seconds = summary.prefill_seconds + summary.decode_seconds
    return RunNumbers(
        policy=str(run.header.settings.get("policy", "unknown")),
        tokens=len(run.tokens),
        mean_exit_layer=summary.mean_exit_layer,
        layers_saved=summary.layers_saved,
        exits=exit_histogram(run),
        extra_rows=summary.counters.get("extra_rows", 0),
        slots_missing=summary.counters.get("slots_missing", 0),
        tokens_per_second=summary.tokens_per_second,
        tokens_per_second_with_prefill=len(run.tokens) / seconds if seconds > 0 else None,
        milliseconds=part_milliseconds(run),
        decision_microseconds=summary.decision_microseconds,
        decision_percent=decision_percent(run),
    )


def part_milliseconds(run: RunRecord) -> dict[str, float] | None:
    """Mean ms per token by part over the decode passes; None where they were not profiled."""
    parts = [t.parts for t in run.tokens[1:] if t.parts is not None]
    if not parts:
        return None
    return {name: fmean(part[name] for part in parts) for name in parts[0]}


def decision_percent(run: RunRecord) -> float | None:
    """Time spent deciding in per cent of a token's time (paper: 0.0688 %); None if unknown.

    As measured where the run was profiled; otherwise the median decision times the number of
    decisions: one after each layer that a token may leave, up to the one where it left.
    """
    passes = run.tokens[1:]
    if not passes or run.summary.decode_seconds <= 0:
        return None
    token = run.summary.decode_seconds / len(passes)
    parts, each = part_milliseconds(run), run.summary.decision_microseconds
    if parts is not None and "decision" in parts:
        return parts["decision"] * 1e-3 / token * 100
    if each is None:
        return None
    asked = decisions_per_token(passes, run.header.entry_layer, run.header.num_layers)
    return asked * each * 1e-6 / token * 100


def decisions_per_token(passes: Sequence[TokenRecord], entry_layer: int, layers: int) -> float:
    """Mean number of exit decisions: one after each layer that a token may leave, up to its own."""
    first, last = entry_layer - 1, layers - 1
    return fmean(max(0, min(t.exit_layer, last) - first + 1) for t in passes)


def mean_similarity_by_layer(runs: Sequence[RunRecord]) -> tuple[float | None, ...]:
    """Mean similarity of each layer over the decode passes of several runs (paper Fig. 6b).

    From the full trace, where a run has one: all passes at all layers. Otherwise from the layers
    that ran, so that deep layers speak for deep tokens only. None for a layer that none ran.
    Raises RecordError for runs of models with unequal numbers of layers.
    """
    depths = {run.header.num_layers for run in runs}
    if len(depths) != 1:
        raise RecordError(f"runs of one model are needed, not of {sorted(depths)} layers.")
    rows = [row for run in runs for row in _similarities(run)[1:]]
    by_layer = [[row[n] for row in rows if n < len(row)] for n in range(depths.pop())]
    return tuple(fmean(values) if values else None for values in by_layer)


def similarity_quartiles(run: RunRecord) -> tuple[tuple[float, float, float] | None, ...]:
    """Lower quartile, median and upper quartile of each layer's similarity over the decode passes.

    From the full trace, where the run has one; otherwise of the passes that ran the layer. None for
    a layer that none ran.
    """
    rows = _similarities(run)[1:]
    by_layer = [[row[n] for row in rows if n < len(row)] for n in range(run.header.num_layers)]
    return tuple(_quartiles(values) if values else None for values in by_layer)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def running_shares(run: RunRecord) -> list[list[float]]:
    """[L][n - 1]: of decode passes 1 to i, the share whose exit layer is at least the row's."""
    exits = [t.exit_layer for t in run.tokens[1:]]
    rows = []
    for layer in range(1, run.header.num_layers + 1):
        reached = accumulate(exit_layer >= layer for exit_layer in exits)
        rows.append([count / i for i, count in enumerate(reached, start=1)])
    return rows


def _similarities(run: RunRecord) -> Sequence[Sequence[float]]:
    return [t.similarities for t in run.tokens] if run.full_trace is None else run.full_trace


def entropy_depth_correlation(runs: Sequence[RunRecord]) -> float | None:
    """Spearman's rho of entropy and exit layer over decode passes.

    Above 0: tokens that the model is less sure of run deeper. None where either is constant.
    """
    passes = [t for run in runs for t in run.tokens[1:]]
    return spearman([t.entropy for t in passes], [t.exit_layer for t in passes])


def pearson(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Pearson's r of pairs, -1..1; None where either is constant or there are fewer than two.

    Raises ValueError for unequal lengths.
    """
    if len(xs) != len(ys):
        raise ValueError(f"{len(xs)} values cannot be paired with {len(ys)}")
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return None
    return statistics.correlation(xs, ys)


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Spearman's rho: Pearson's r of the ranks, equal values sharing their mean rank."""
    return pearson(_ranks(xs), _ranks(ys))


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, ascending; m equal values at ranks a..a+m-1 all get a + (m - 1) / 2."""
    counts, rank, below = Counter(values), {}, 0
    for value in sorted(counts):
        rank[value] = below + (counts[value] + 1) / 2
        below += counts[value]
    return [rank[value] for value in values]
