"""Lines of an evaluation to rows and a table: score, 95 % interval, exits, tokens, seconds.

No torch and no harness: whatever the file holds is said here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from .errors import RecordError
from .resumable import Lines

RUNS_CODE = ("river_code", "humaneval")  # tasks whose programs run in our sandbox
Z = 1.959964  # 97.5 % quantile of the normal distribution
COLUMNS = (
    *("task", "policy", "scoring", "score, %", "95 % interval", "items"),
    *("mean exit layer", "prompt depth", "tokens", "seconds"),
)


def wilson(right: int, total: int, z: float = Z) -> tuple[float, float]:
    """Wilson's score interval of a proportion, as fractions; (0, 1) for no items.

    Raises ValueError for more right than there are. Source: E. B. Wilson, JASA 22 (1927).
    """
    if not 0 <= right <= total:
        raise ValueError(f"{right} of {total} is not a proportion")
    if not total:
        return 0.0, 1.0
    share, square = right / total, z * z
    middle = (share + square / (2 * total)) / (1 + square / total)
    spread = share * (1 - share) / total + square / (4 * total * total)
    half = z * math.sqrt(spread) / (1 + square / total)
    low = 0.0 if right == 0 else max(0.0, middle - half)
    return low, 1.0 if right == total else min(1.0, middle + half)


def interval(result: Mapping[str, Any]) -> tuple[float, float] | None:
    """95 % interval of a result line: Wilson's where every item is right or wrong.

    Otherwise 1.96 standard errors of the harness either way; None where it gives none.
    """
    values = result["right"]
    if values and set(values) <= {0.0, 1.0}:
        return wilson(int(sum(values)), len(values))
    if result["stderr"] is None:
        return None
    half = Z * result["stderr"]
    return result["score"] - half, result["score"] + half


def rows(file: Lines) -> list[dict[str, Any]]:
    """One row per part that has a result, in the file's order."""
    heads = [line for line in file.lines if line["type"] == "header"]
    found = []
    for head in heads:
        results = file.of(head["part"], "result")
        if results:
            found.append(_row(head, results[-1], file.of(head["part"], "item")))
    return found


def _row(
    head: Mapping[str, Any], result: Mapping[str, Any], items: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    answers = [answer for item in items for answer in item["answers"]]
    if not answers:
        raise RecordError(f"part {head['part']!r} has a result but no items.")
    bounds = interval(result)
    written = "text" in answers[0]
    return {
        "model": head["model"],
        "num_layers": head["num_layers"],
        "task": head["task"],
        "policy": head["settings"]["policy"],
        "threshold": head["settings"].get("threshold"),
        "back_end": head.get("back_end"),
        "scoring": "text" if written else head["scoring"],
        "metric": result["metric"],
        "score": result["score"],
        "low": None if bounds is None else bounds[0],
        "high": None if bounds is None else bounds[1],
        "items": result["n"],
        "shots": result["shots"],
        "mean_exit_layer": _mean_exit(answers),
        "prompt_depth": fmean(answer["prompt_depth"] for answer in answers),
        "tokens": sum(answer["tokens"] for answer in answers),
        "truncated": sum(answer["truncated"] > 0 for answer in answers),
        "seconds": sum(answer["seconds"] for answer in answers),
        "tokens_per_second": _rate(answers),
        "right": result["right"],
    }


def _mean_exit(answers: Sequence[Mapping[str, Any]]) -> float:
    """Mean over the rows that were counted, over the answers where none was."""
    exits = [answer["mean_exit_layer"] for answer in answers]
    counted = [answer["counted"] for answer in answers]
    return fmean(exits, counted) if sum(counted) else fmean(exits)


def _rate(answers: Sequence[Mapping[str, Any]]) -> float | None:
    """Median over the answers of their tokens after the first per second of decoding.

    None where none was decoded, or where an answer was written before these times were kept.
    """
    if any("decode_seconds" not in answer for answer in answers):
        return None
    times = [(answer["counted"], answer["decode_seconds"]) for answer in answers]
    return median(n / took for n, took in times if n) if any(n for n, _ in times) else None


def table(file: Lines) -> Iterator[str]:
    """Markdown: what was run, a row per part, and what the numbers mean."""
    heads = [line for line in file.lines if line["type"] == "header"]
    yield from dict.fromkeys(_setup(head) for head in heads)
    yield ""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|---|---|---|{'--:|' * (len(COLUMNS) - 3)}"
    found = rows(file)
    for row in found:
        yield f"| {' | '.join(_cells(row))} |"
    yield ""
    yield from _notes(file, found)


def _setup(head: Mapping[str, Any]) -> str:
    chat = "chat template" if head["chat"] else "no chat template"
    return (
        f"{head['model']} ({head['origin']}), {head['num_layers']} layers, {head['dtype']}, river "
        f"{head['quantisation']}; {head['harness']}, seed {head['seed']}, {chat}, greedy unless a "
        "task samples."
    )


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield row["task"]
    threshold, words = row["threshold"], [row["policy"]]
    words += [] if threshold is None else [f"threshold {threshold:g}"]
    yield ", ".join(words + ([] if row["back_end"] in (None, "none") else [row["back_end"]]))
    yield row["scoring"]
    yield f"{100 * row['score']:.1f}"
    low, high = row["low"], row["high"]
    yield "-" if low is None else f"{100 * low:.1f} to {100 * high:.1f}"
    yield str(row["items"])
    yield f"{row['mean_exit_layer']:.2f}"
    yield f"{row['prompt_depth']:.2f}"
    yield str(row["tokens"])
    yield f"{row['seconds']:.0f}"


def _notes(file: Lines, found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    shown = {row["task"]: (row["metric"], row["shots"]) for row in found}
    for task, (metric, shots) in shown.items():
        number = " or ".join(map(str, shots))
        yield f"- {task}: {metric}, {number} worked examples before each item."
    yield (
        "- Intervals are Wilson's, over items. Text: the mean exit layer is over the tokens after "
        "each answer's first; seconds are the answers' own, of whatever machine this ran on."
    )
    for line in dict.fromkeys(_marks(file)):
        yield f"- {line}"


def _marks(file: Lines) -> Iterator[str]:
    """What a reader has to know of single parts: how they were scored, what was left out."""
    for line in file.lines:
        if line["type"] == "header":
            if line["note"] and not any("text" in a for a in _first(file, line["part"])):
                yield f"{line['settings']['policy']}, scoring sequence: {line['note']}."
        elif line["type"] == "result" and line["network"] and line["task"] in RUNS_CODE:
            yield f"Code ran in a limited process, its network off by {line['network']}."
        elif line["type"] == "auto":
            yield " ".join([f"{line['part']}: {line['origin']}.", *line["notes"]])
        elif line["type"] == "skipped":
            yield f"Left out: {line['part']}: {line['reason']}"


def _first(file: Lines, part: str) -> list[Mapping[str, Any]]:
    """The answers of a part's first item."""
    return [answer for item in file.of(part, "item")[:1] for answer in item["answers"]]
