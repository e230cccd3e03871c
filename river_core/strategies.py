"""The paper's comparison of KV strategies (its figures 3 and 8) as ours, in two parts.

Quality: the head is held fixed (the exact river tail), so only what later tokens find in the cache
differs. Speed: each strategy with its own exit head. The parts are never mixed: untrained exit
heads say nothing of a strategy's quality, and the fixed head nothing of its speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from .cell_rows import quality_rows, speed_rows
from .cells import BASELINE, Setting
from .grid import number, setup, spread
from .policies import POLICIES
from .resumable import Lines

QUALITY, SPEED = "quality", "speed"
TAILS = ("river", "state-propagation", "kv-mask", "batch-recompute", "mono-decreasing")
SEQUENCE = "fixed-exit"  # one depth for prompt and answer: its prompt cannot run in full
BASELINES = ("kv-mask", "mono-decreasing", "state-propagation", "batch-recompute")
# These leave out halves inside the stack; ffn-skip by its own similarity, which is higher.
SKIPPERS = (("adaskip", 0.98), ("ffn-skip", 0.999), ("ffn-skip", 0.995))
DRAFTERS = ("self-speculative", "river-verified")

# method.md 2.2: Fig. 3, ms per token on Llama3.2-1B, GSM8K, one A40, trained exit layers:
# relaxed (score about 0.15) and strict (about 0.25) threshold. Fig. 8 prints no numbers.
PAPER_FIG3 = {
    BASELINE: (15.18, 15.18),
    "kv-mask": (12.71, 15.17),
    "mono-decreasing": (11.46, 13.90),
    "state-propagation": (12.96, 14.71),
    "batch-recompute": (16.91, 19.27),
}


@dataclass(frozen=True)
class Points:
    """Where tokens leave: fixed exit layers, and a relaxed and a strict threshold; draft lengths.

    The thresholds are ours: the packaged model's depth rises between 0.97 and 0.98
    (docs/thresholds.md), so the paper's 0.5 would be an exit layer of 2 on it.
    """

    exit_layers: tuple[int, ...] = (2, 8, 16, 24)
    relaxed: float = 0.97
    strict: float = 0.98
    drafts: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)

    @property
    def thresholds(self) -> tuple[float, float]:
        """Relaxed, strict."""
        return self.relaxed, self.strict

    def of(self, policy: str, head: str | None, prefill: str | None = "full") -> Iterator[Setting]:
        """One policy at every fixed exit layer and threshold."""
        for exit_layer in self.exit_layers:
            yield Setting(policy, head, exit_layer=exit_layer, prefill=prefill)
        for threshold in self.thresholds:
            yield Setting(policy, head, threshold, prefill=prefill)


def quality_settings(points: Points) -> list[Setting]:
    """Head "river" and a prompt in full for all; the sequence-level exit has its prompt leave."""
    found = [Setting("full-quant", "river", prefill="full")]
    found += chain.from_iterable(points.of(policy, "river") for policy in TAILS)
    for exit_layer in points.exit_layers:
        found.append(Setting(SEQUENCE, "river", exit_layer=exit_layer, fill="river"))
    found += (Setting(policy, "river", threshold) for policy, threshold in SKIPPERS)
    return known(found)


def speed_settings(points: Points) -> list[Setting]:
    """Each baseline with its own (untrained) head; River, backbone and drafts as they are."""
    found = [Setting(BASELINE), Setting("full-quant", prefill="full")]
    found += points.of("river", None)
    found += chain.from_iterable(points.of(policy, "lens") for policy in BASELINES)
    for exit_layer in points.exit_layers:
        found.append(Setting(SEQUENCE, "lens", exit_layer=exit_layer, fill="none"))
    for exit_layer in points.exit_layers:
        found.append(Setting("self-speculative", exit_layer=exit_layer))
    found += (Setting(policy, threshold=threshold) for policy, threshold in SKIPPERS)
    for draft in points.drafts:
        found.append(Setting("river-verified", threshold=points.relaxed, draft=draft))
    return known(found)


def known(settings: Sequence[Setting]) -> list[Setting]:
    """Those whose policy this version has."""
    return [setting for setting in settings if setting.policy in POLICIES]


def missing() -> list[str]:
    """Policies of the study that this version does not have."""
    names = [BASELINE, "full-quant", *TAILS, *BASELINES, SEQUENCE, *dict(SKIPPERS), *DRAFTERS]
    return [name for name in dict.fromkeys(names) if name not in POLICIES]


def report(file: Lines, points: Points) -> Iterator[str]:
    """Markdown: the quality table, the speed table, the paper's numbers, what was refused."""
    for part, name, table in (
        (QUALITY, "Quality: the head held fixed, only the cache differs", quality_table),
        (SPEED, "Speed: each strategy with its own exit head", speed_table),
    ):
        for head in file.of(part, "header"):
            yield f"### {name}"
            yield ""
            yield setup(head)
            yield ""
            yield from table(file)
            yield ""
    yield "### The paper's figure 3 beside ours"
    yield ""
    yield from paper_table(file, points)
    for line in dict.fromkeys(_refusals(file)):
        yield ""
        yield line


def _refusals(file: Lines) -> Iterator[str]:
    for part in (QUALITY, SPEED):
        for line in file.of(part, "skipped"):
            where = Setting.of(line)
            yield f"Left out of {part}: {where.policy} {where.point}: {line['reason']}"


def quality_table(file: Lines) -> Iterator[str]:
    """One row per setting, policies as listed, not ranked."""
    yield "| policy | exit | mean exit layer | match | KL (nats) | top-5 | missing | extra rows |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for row in quality_rows(file.of(QUALITY, "cell")):
        s = row["setting"]
        yield (
            f"| {s.policy} | {s.point or '-'} | {row['mean_exit_layer']:.2f} | {row['match']:.3f} "
            f"| {number(row['kl'], '.4f')} | {row['top5_overlap']:.3f} | {row['slots_missing']} "
            f"| {row['extra_rows']} |"
        )


def speed_table(file: Lines) -> Iterator[str]:
    """One row per setting: medians over the rounds, spread, acceptance of drafts."""
    yield (
        "| policy | exit | mean exit layer | ms/token | min..max | tok/s | x backbone | accepted "
        "| backbone's text |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|"
    for row in speed_rows(file.of(SPEED, "time")):
        s = row["setting"]
        name = f"{s.policy} (untrained exit head)" if s.head == "lens" else s.policy
        least, most = 1e3 / row["fastest"], 1e3 / row["slowest"]
        yield (
            f"| {name} | {s.point or '-'} | {row['mean_exit_layer']:.2f} "
            f"| {row['ms_per_token']:.2f} | {spread(least, most, '.2f')} "
            f"| {row['tokens_per_second']:.1f} | {number(row['to_backbone'], '.2f')} "
            f"| {number(row['acceptance'], '.2f')} | {_same(row)} |"
        )


def _same(row: dict[str, Any]) -> str:
    """In how many rounds a policy that verifies gave the backbone's text, in this dtype."""
    drafts = row["acceptance"] is not None
    return f"{row['same_text']} of {row['rounds']}" if drafts else "-"


def paper_table(file: Lines, points: Points) -> Iterator[str]:
    """Fig. 3's ms per token and ours, each with its ratio to its own baseline's time."""
    found = {row["setting"]: row["ms_per_token"] for row in speed_rows(file.of(SPEED, "time"))}
    base = found.get(Setting(BASELINE))
    yield "| policy | paper, relaxed | paper, strict | ours, relaxed | ours, strict |"
    yield "|---|--:|--:|--:|--:|"
    for policy, paper in PAPER_FIG3.items():
        at = [Setting(policy, "lens", t, prefill="full") for t in points.thresholds]
        ours = [base, base] if policy == BASELINE else [found.get(setting) for setting in at]
        theirs = [_with_ratio(ms, PAPER_FIG3[BASELINE][0]) for ms in paper]
        cells = [*theirs, *(_with_ratio(ms, base) for ms in ours)]
        yield f"| {policy} | {' | '.join(cells)} |"


def _with_ratio(ms: float | None, base: float | None) -> str:
    if ms is None:
        return "-"
    return f"{ms:.2f} ms" if base is None else f"{ms:.2f} ms ({ms / base:.2f})"


def figure_rows(file: Lines) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows for figures.strategies_figure: quality, speed."""
    quality = [
        {**row, "policy": row["setting"].policy, "point": row["setting"].point}
        for row in quality_rows(file.of(QUALITY, "cell"))
    ]
    speed = [
        {
            **row,
            "policy": row["setting"].policy,
            "point": row["setting"].point,
            "least": 1e3 / row["fastest"],
            "most": 1e3 / row["slowest"],
        }
        for row in speed_rows(file.of(SPEED, "time"))
    ]
    return quality, speed
