"""The paper's Tables 2, 3 and 5 as printed, and what we measured beside them.

Source: River-LLM, arXiv 2604.18396, version 1: accuracy in per cent, exit positions as the mean
number of backbone layers that ran, tokens per second on one NVIDIA A40 at batch size 1. None of
these numbers is ours; our columns hold only what an evaluation's file holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Benchmark:
    """One of the paper's eight: the harness's task, its worked examples, our task of that form."""

    task: str
    shots: int
    stand_in: str = ""


BENCHMARKS = {
    "BoolQ": Benchmark("boolq", 0),
    "HellaSwag": Benchmark("hellaswag", 0),
    "ARC-c": Benchmark("arc_challenge", 0),
    "ARC-e": Benchmark("arc_easy", 0, "river_choice"),
    "MMLU": Benchmark("mmlu", 0),
    "GSM8K": Benchmark("gsm8k", 5, "river_math"),
    "MATH": Benchmark("minerva_math", 4),
    "HumanEval": Benchmark("humaneval", 0, "river_code"),
}


@dataclass(frozen=True)
class Block:
    """One model of Table 2 or 5; per benchmark (backbone, River low, high, exit low, high)."""

    model: str
    layers: int
    thresholds: tuple[float, float]
    numbers: tuple[tuple[float, float, float, float, float], ...]  # in the order of BENCHMARKS


TABLE_2 = (
    Block(
        "Llama-3.2-1B",
        16,
        (0.5, 0.7),
        (
            (69.4, 67.5, 69.2, 3.90, 15.02),
            (45.1, 44.3, 44.9, 3.71, 10.94),
            (35.7, 35.2, 35.9, 3.24, 10.68),
            (68.4, 67.8, 67.1, 3.24, 10.68),
            (46.1, 44.3, 46.0, 4.05, 12.70),
            (33.5, 29.3, 33.5, 3.79, 15.05),
            (17.8, 14.6, 17.0, 3.56, 14.67),
            (25.8, 23.2, 25.7, 2.30, 10.05),
        ),
    ),
    Block(
        "Llama-3.1-8B",
        32,
        (0.5, 0.7),
        (
            (84.1, 83.4, 83.4, 3.07, 9.74),
            (59.1, 58.5, 58.6, 3.09, 8.80),
            (51.5, 50.3, 51.2, 3.01, 8.44),
            (81.7, 82.0, 81.4, 3.01, 8.44),
            (68.0, 66.1, 67.4, 3.04, 14.01),
            (78.2, 74.4, 75.6, 2.96, 26.98),
            (27.0, 26.6, 25.7, 2.81, 13.10),
            (57.3, 55.5, 57.3, 2.16, 5.84),
        ),
    ),
)
TABLE_5 = (
    Block(
        "Phi4-mini",
        32,
        (0.8, 0.9),
        (
            (84.3, 84.1, 84.3, 2.35, 4.93),
            (54.4, 53.7, 53.9, 2.05, 4.14),
            (57.1, 54.0, 54.4, 2.02, 3.45),
            (82.8, 81.3, 81.3, 2.02, 3.45),
            (66.7, 64.1, 65.4, 2.07, 4.48),
            (82.1, 79.2, 81.0, 6.10, 13.79),
            (37.4, 33.1, 35.1, 5.77, 13.69),
            (63.4, 62.8, 63.1, 2.55, 7.72),
        ),
    ),
    Block(
        "Ministral3-8B",
        34,
        (0.8, 0.9),
        (
            (85.9, 85.2, 85.4, 2.04, 3.83),
            (58.5, 58.2, 58.2, 2.00, 2.38),
            (62.3, 62.2, 62.2, 2.01, 2.11),
            (86.5, 85.9, 85.9, 2.01, 2.11),
            (73.1, 72.7, 72.7, 2.01, 2.76),
            (84.5, 84.2, 84.3, 6.16, 6.70),
            (48.1, 46.4, 46.6, 5.68, 6.18),
            (29.3, 22.6, 26.2, 2.51, 7.02),
        ),
    ),
)
# One rate is printed with two decimals (62.41); the others, and all here, have one.
# Model, threshold -> task -> (accuracy of backbone, full quantization, River; tok/s of the three).
TABLE_3: dict[tuple[str, float], dict[str, tuple[float, ...]]] = {
    ("Llama-3.2-1B", 0.5): {
        "GSM8K": (33.2, 25.1, 29.3, 84.5, 195.5, 182.9),
        "MATH": (17.8, 12.2, 14.6, 100.5, 208.8, 189.2),
        "HumanEval": (25.8, 20.4, 23.2, 100.4, 190.6, 171.8),
    },
    ("Llama-3.1-8B", 0.5): {
        "GSM8K": (78.2, 69.8, 74.4, 25.3, 47.5, 45.0),
        "MATH": (27.0, 23.1, 26.6, 25.1, 47.6, 43.1),
        "HumanEval": (57.3, 50.2, 55.5, 25.2, 47.7, 44.7),
    },
    ("Phi4-mini", 0.9): {
        "GSM8K": (82.1, 75.9, 81.0, 71.4, 136.8, 115.0),
        "MATH": (37.4, 28.8, 35.1, 62.4, 110.7, 95.2),
        "HumanEval": (63.4, 57.9, 63.1, 69.5, 132.1, 118.6),
    },
    ("Ministral3-8B", 0.9): {
        "GSM8K": (84.5, 84.1, 84.3, 34.9, 65.0, 61.8),
        "MATH": (48.1, 46.0, 46.6, 32.0, 62.7, 59.1),
        "HumanEval": (29.3, 20.7, 26.2, 33.7, 71.3, 66.6),
    },
}
DIFFERS = (
    "Paper: Instruct models of 1B to 8B parameters (which variant it does not say; the numbers fit "
    "Instruct), all items, GSM8K with 5 worked examples, MATH with 4, the others with none; prompt "
    "templates, length limits and harness version are not given.",
    "Ours: the model and the number of items of the table above; rows in italics are our own small "
    "task sets in that benchmark's form, not the benchmark: their scores stand beside the paper's, "
    "they are not measured against them.",
    "A threshold is a property of a model: equal numbers on two models are different depths.",
    "Ours decodes greedily; log-likelihoods are sequence-level, which is how we read the paper's "
    "prefill rule. Speed is measured elsewhere (docs/speed-cpu.md), so tok/s of ours is left out.",
)


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: Tables 2, 5 and 3, the paper's columns first, then ours, and what differs."""
    ours = [row for row in rows if row["scoring"] in ("text", "sequence")]
    for title, blocks in (("Table 2", TABLE_2), ("Table 5", TABLE_5)):
        yield f"#### {title}: accuracy in per cent, and mean exit layer"
        yield ""
        yield from _accuracy(blocks, ours)
        yield ""
    yield "#### Table 3: accuracy of backbone, full quantization and River; tokens per second"
    yield ""
    yield from _speed(ours)
    yield ""
    yield from (f"- {line}" for line in DIFFERS)


def _accuracy(blocks: Sequence[Block], ours: Sequence[Row]) -> Iterator[str]:
    """A row per benchmark, and below it one of our own task of that form where it was run."""
    names = list(dict.fromkeys(row["model"] for row in ours))
    at = {name: _thresholds(ours, name) for name in names}
    head = ["benchmark"]
    for block in blocks:
        head += _heads(block.model, block.layers, block.thresholds)
    for name in names:
        layers = next(row["num_layers"] for row in ours if row["model"] == name)
        head += _heads(f"ours, {name}", layers, at[name])
    yield f"| {' | '.join(head)} |"
    yield f"|---|{'--:|' * (len(head) - 1)}"
    for n, (benchmark, about) in enumerate(BENCHMARKS.items()):
        paper = [
            f"{value:.{digits}f}"
            for block in blocks
            for value, digits in zip(block.numbers[n], (1, 1, 1, 2, 2), strict=True)
        ]
        mine = [cell for name in names for cell in _cells(ours, name, about.task, at[name])]
        yield f"| {' | '.join([benchmark, *paper, *mine])} |"
        if any(row["task"] == about.stand_in for row in ours):
            mine = [c for name in names for c in _cells(ours, name, about.stand_in, at[name])]
            yield f"| {' | '.join([f'*{about.stand_in}*', *['-'] * len(paper), *mine])} |"


def _heads(model: str, layers: int, thresholds: Sequence[float]) -> list[str]:
    marks = [f"τ {threshold:g}" for threshold in thresholds]
    exits = [f"exit, {mark}, of {layers}" for mark in marks]
    return [f"{model}, backbone", *marks, *exits]


def _thresholds(ours: Sequence[Row], model: str) -> list[float]:
    found = {row["threshold"] for row in ours if (row["model"], row["policy"]) == (model, "river")}
    return sorted(found - {None})


def _find(
    ours: Sequence[Row], model: str, task: str, policy: str, threshold: float | None = None
) -> Row | None:
    wanted = (model, task, policy, threshold)
    names = ("model", "task", "policy", "threshold")
    return next((row for row in ours if tuple(row[n] for n in names) == wanted), None)


def _cells(ours: Sequence[Row], model: str, task: str, at: Sequence[float]) -> list[str]:
    rivers = [_find(ours, model, task, "river", threshold) for threshold in at]
    scores = [_score(row) for row in (_find(ours, model, task, "backbone"), *rivers)]
    return scores + ["-" if row is None else f"{row['mean_exit_layer']:.2f}" for row in rivers]


def _score(row: Row | None) -> str:
    return "-" if row is None else f"{100 * row['score']:.1f}"


def _speed(ours: Sequence[Row]) -> Iterator[str]:
    yield (
        "| model | task | backbone | full quant. | River | tok/s backbone | tok/s full quant. "
        "| tok/s River |"
    )
    yield f"|---|---|{'--:|' * 6}"
    for (model, threshold), tasks in TABLE_3.items():
        for task, numbers in tasks.items():
            cells = " | ".join(f"{value:.1f}" for value in numbers)
            yield f"| {model}, τ {threshold:g} | {task} | {cells} |"
    for name in dict.fromkeys(row["model"] for row in ours):
        for threshold in _thresholds(ours, name):
            yield from _own_speed(ours, name, threshold)


def _own_speed(ours: Sequence[Row], model: str, threshold: float) -> Iterator[str]:
    for benchmark in ("GSM8K", "MATH", "HumanEval"):
        about = BENCHMARKS[benchmark]
        for task, shown in ((about.task, benchmark), (about.stand_in, f"*{about.stand_in}*")):
            river = _find(ours, model, task, "river", threshold)
            if river is not None:
                others = [_find(ours, model, task, name) for name in ("backbone", "full-quant")]
                scores = " | ".join(_score(row) for row in (*others, river))
                yield f"| ours, {model}, τ {threshold:g} | {shown} | {scores} | - | - | - |"
