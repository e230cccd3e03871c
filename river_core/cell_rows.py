"""A study's lines (cells.py) as rows of a table: means, medians and extremes of each setting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from .cells import BASELINE, Setting

Grouped = dict[Setting, list[Mapping[str, Any]]]


def by_setting(lines: Iterable[Mapping[str, Any]]) -> Grouped:
    """Lines of the same setting together, in the order in which settings first appear."""
    found: Grouped = {}
    for line in lines:
        found.setdefault(Setting.of(line), []).append(line)
    return found


def quality_rows(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means of `cell` lines per setting, weighted by tokens; counters are sums."""
    return [
        {"setting": setting, **_quality_row(cells)} for setting, cells in by_setting(lines).items()
    ]


def _quality_row(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def mean(name: str) -> float | None:
        if any(cell[name] is None for cell in cells):
            return None
        weights = [cell["tokens"] for cell in cells]
        return fmean((cell[name] for cell in cells), weights)

    sums = ("slots_missing", "extra_rows", "drafted", "accepted", "tokens")
    return {
        "mode": cells[0]["mode"],
        "prompts": len(cells),
        "same_text": sum(cell["first_difference"] is None for cell in cells),
        **{n: mean(n) for n in ("match", "kl", "top5_overlap", "mean_exit_layer", "prompt_depth")},
        **{name: sum(cell[name] for cell in cells) for name in sums},
    }


def speed_rows(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Medians and extremes of `time` lines per setting; the ratio is the median over rounds."""
    groups = by_setting(lines)
    base = next((times for s, times in groups.items() if s.policy == BASELINE), [])
    rounds = {time["round"]: time for time in base}
    return [{"setting": s, **_speed_row(times, rounds)} for s, times in groups.items()]


def _speed_row(
    times: Sequence[Mapping[str, Any]], base: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    own = [time["tokens_per_second"] for time in times]
    pairs = [(time, base[time["round"]]) for time in times if time["round"] in base]
    ratios = [a["tokens_per_second"] / b["tokens_per_second"] for a, b in pairs]
    drafted = sum(time["drafted"] for time in times)
    accepted = sum(time["accepted"] for time in times)
    return {
        "tokens_per_second": median(own),
        "slowest": min(own),
        "fastest": max(own),
        "ms_per_token": 1e3 / median(own),
        "to_backbone": median(ratios) if ratios else None,
        "mean_exit_layer": fmean(time["mean_exit_layer"] for time in times),
        "acceptance": accepted / drafted if drafted else None,
        "same_text": sum(a["text"] == b["text"] for a, b in pairs),
        "rounds": len(own),
    }
