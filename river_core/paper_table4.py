"""The paper's Table 4, quantization back ends under River and alone, and our rows beside it.

Source: River-LLM, arXiv 2604.18396, version 1: Llama-3.1-8B on GSM8K, tokens per second on one
NVIDIA A40 at batch size 1, score in per cent. Ours are what an evaluation's file holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .settings import QuantSpec

Row = Mapping[str, Any]
NONE = "none"  # the back end of the backbone's rows


@dataclass(frozen=True)
class Printed:
    """One row of the paper: tokens per second and score."""

    tokens_per_second: float
    score: float


PAPER_THRESHOLD = 0.5
BACKBONE = Printed(25.3, 78.2)
RIVER = {"hqq": Printed(45.0, 74.4), "awq": Printed(46.9, 77.3)}  # at PAPER_THRESHOLD
FULL = {"hqq": Printed(47.5, 69.8), "awq": Printed(48.1, 76.2)}
COLUMNS = (
    *("row", "paper: τ", "tok/s", "score, %"),
    *("ours: τ", "tok/s", "score, %", "95 % interval", "mean exit layer", "items"),
)
DIFFERS = (
    "Paper: Llama-3.1-8B, GSM8K with all items, one NVIDIA A40. Ours: the model, task and machine "
    "named above; neither speeds nor scores can be measured against the paper's, only the order of "
    "the rows.",
    "tok/s of ours: the median over the answers of each one's decoded tokens by the time that they "
    "took, recorded as the answers were scored. Rows ran one after another, not interleaved, so a "
    "machine that other work shares moves them apart (`quantizers --speed` and `bench` "
    "interleave). A dash: nothing was decoded, or the file is older than these times.",
    "A threshold is a property of a model: equal numbers on two models are different depths.",
)


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: a table per model and task of the rows that have a back end, then what differs."""
    ours = [row for row in rows if row["back_end"] is not None]
    for model, task in dict.fromkeys((row["model"], row["task"]) for row in ours):
        yield f"#### Table 4: Llama-3.1-8B on GSM8K, and {model} on {task}"
        yield ""
        yield f"| {' | '.join(COLUMNS)} |"
        yield f"|---|{'--:|' * (len(COLUMNS) - 1)}"
        own = [row for row in ours if (row["model"], row["task"]) == (model, task)]
        for name, printed, threshold, row in _pairs(own):
            cells = [name, *_printed(printed, threshold), *_cells(row)]
            yield f"| {' | '.join(cells)} |"
        yield ""
    yield from (f"- {line}" for line in DIFFERS)


def _pairs(own: Sequence[Row]) -> Iterator[tuple[str, Printed | None, float | None, Row | None]]:
    """Each row's name, what the paper prints for it and at which threshold, and ours."""
    yield "Backbone", BACKBONE, None, next((r for r in own if r["back_end"] == NONE), None)
    labels = dict.fromkeys(row["back_end"] for row in own if row["back_end"] != NONE)
    for label in labels:
        method = next((name for name in RIVER if _is_printed(label, name)), "")
        rivers = [r for r in own if (r["back_end"], r["policy"]) == (label, "river")]
        full = [r for r in own if (r["back_end"], r["policy"]) == (label, "full-quant")]
        for row in rivers:
            yield f"River + `{label}`", RIVER.get(method), PAPER_THRESHOLD, row
        for row in full:
            yield f"`{label}`, full", FULL.get(method), None, row
    for method in RIVER:
        if not any(_is_printed(label, method) for label in labels):
            yield f"River + {method.upper()}", RIVER[method], PAPER_THRESHOLD, None
            yield f"{method.upper()}, full", FULL[method], None, None


def _is_printed(label: str, method: str) -> bool:
    """Whether the paper's row of that method is this back end: 4 bits, whatever the group."""
    spec = QuantSpec.parse(label)
    return (spec.method, spec.bits, spec.budget) == (method, 4, None)


def _printed(printed: Printed | None, threshold: float | None) -> list[str]:
    if printed is None:
        return ["-", "-", "-"]
    shown = "-" if threshold is None else f"{threshold:g}"
    return [shown, f"{printed.tokens_per_second:.1f}", f"{printed.score:.1f}"]


def _cells(row: Row | None) -> list[str]:
    if row is None:
        return ["-"] * 6
    rate, threshold, low = row["tokens_per_second"], row["threshold"], row["low"]
    return [
        "-" if threshold is None else f"{threshold:g}",
        "-" if rate is None else f"{rate:.1f}",
        f"{100 * row['score']:.1f}",
        "-" if low is None else f"{100 * low:.1f} to {100 * row['high']:.1f}",
        f"{row['mean_exit_layer']:.2f}",
        str(row["items"]),
    ]
