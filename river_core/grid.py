"""`sweep` over thresholds, policies and heads: which settings, and what was found as a table.

A consumer of the loop; cells.py measures. Under head "river" every token is chosen by the exact
river tail, so only the cache differs; under "lens" by an untrained exit head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from .cell_rows import quality_rows, speed_rows
from .cells import Setting
from .errors import SettingsError
from .policies import find_policy
from .resumable import Lines
from .settings import check_threshold

PART = "sweep"
NO_THRESHOLD = ("backbone", "full-quant", "fixed-exit", "self-speculative")  # measured once each
HEAD_LABELS = {"river": "river", "lens": "lens (untrained exit head)"}


def settings(
    policies: Sequence[str], heads: Sequence[str], thresholds: Sequence[float]
) -> list[Setting]:
    """Every combination, policies outermost; SettingsError for an unknown policy or threshold."""
    for name in policies:
        find_policy(name)
    found = [
        Setting(policy, head, None if policy in NO_THRESHOLD else check_threshold(threshold))
        for policy, head, threshold in product(policies, heads, thresholds)
    ]
    if not found:
        raise SettingsError("a sweep needs at least one policy, head and threshold.")
    return list(dict.fromkeys(found))


def rows(file: Lines) -> list[dict[str, Any]]:
    """One flat row per setting that was measured: names, agreement, and speed where it was."""
    speeds = {row["setting"]: row for row in speed_rows(file.of(PART, "time"))}
    speed = ("tokens_per_second", "slowest", "fastest", "ms_per_token", "to_backbone", "acceptance")
    found = []
    for row in quality_rows(file.of(PART, "cell")):
        setting: Setting = row.pop("setting")
        timed = speeds.get(setting, {})
        names = {"policy": setting.policy, "head": setting.head, "threshold": setting.threshold}
        found.append({**names, **row, **{name: timed.get(name) for name in speed}})
    return found


def skipped(file: Lines) -> dict[str, str]:
    """Policy and head of what was refused, with the first reason given."""
    found: dict[str, str] = {}
    for line in file.of(PART, "skipped"):
        found.setdefault(f"{line['policy']}, head {line['head']}", line["reason"])
    return found


_COLUMNS = (
    *("policy", "head", "threshold", "exit layer", "match", "KL (nats)", "top-5"),
    *("slots missing", "extra rows", "tok/s", "min..max"),
)


def table(file: Lines) -> Iterator[str]:
    """Markdown: what was measured, a table with a row per setting, and what was refused."""
    for head in file.of(PART, "header"):
        yield setup(head)
        yield ""
    yield f"| {' | '.join(_COLUMNS)} |"
    yield f"|---|---|{'--:|' * (len(_COLUMNS) - 2)}"
    found = rows(file)
    for row in found:
        yield f"| {' | '.join(_cells(row))} |"
    yield ""
    yield (
        "Under head river a token is chosen by the exact river tail: only the cache differs, and "
        "the speed is not that of a method with its own exit head. Under head lens the exit head "
        "is untrained: such rows show speed."
    )
    if any(head["dtype"] == "float32" for head in file.of(PART, "header")):
        yield "In float32 the river runs dequantised and gains no speed; --dtype auto does."
    if any(row["mode"] == "free" for row in found):
        yield "A match marked * is of free runs, up to the first difference."
    for name, reason in skipped(file).items():
        yield f"Left out: {name}: {reason}"


def setup(head: Mapping[str, Any]) -> str:
    """One sentence of what a study's header says."""
    return (
        f"{head['model']}, {head['num_layers']} layers, {head['dtype']}, river "
        f"{head['quantisation']}, {head['threads']} threads; {len(head['prompts'])} prompts, "
        f"{head['tokens_per_prompt']} tokens each."
    )


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield row["policy"]
    yield HEAD_LABELS.get(row["head"], row["head"])
    yield number(row["threshold"], "g")
    yield number(row["mean_exit_layer"], ".2f")
    yield number(row["match"], ".3f") + ("*" if row["mode"] == "free" else "")
    yield number(row["kl"], ".4f")
    yield number(row["top5_overlap"], ".3f")
    yield str(row["slots_missing"])
    yield str(row["extra_rows"])
    yield number(row["tokens_per_second"], ".1f")
    yield spread(row["slowest"], row["fastest"], ".1f")


def number(value: float | None, form: str) -> str:
    """`value` in a format, or a dash for None."""
    return "-" if value is None else format(value, form)


def spread(least: float | None, most: float | None, form: str) -> str:
    """min..max, or a dash where there is none."""
    return "-" if least is None or most is None else f"{least:{form}}..{most:{form}}"
