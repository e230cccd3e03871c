"""The numbers under the lanes. Everything that is not measured yet is a dash; a slow-down is shown
as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .agreement import agreeing
from .english import known, named
from .numbers import DASH, decimal, mebibytes, microseconds, percent, seconds
from .run import Lane, Run
from .wording import listed, say

PARTS = ("backbone", "river", "embedding", "head", "norms", "kv", "buffers")


def readouts(run: Run) -> dict[str, Any]:
    """Tiles, the table of both lanes, memory by part, and what it runs on."""
    return {
        "tiles": tiles(run),
        "rows": rows(run),
        "memory": memory(run),
        "machine": machine(run),
    }


def live_rate(lane: Lane) -> float | None:
    """Decode tokens per second: the summary's, or (n-1)/elapsed while the lane is decoding."""
    if lane.summary is not None:
        return lane.summary.tokens_per_second
    if len(lane.tokens) < 2 or lane.tokens[-1].seconds <= 0:
        return None
    return (len(lane.tokens) - 1) / lane.tokens[-1].seconds


def live_mean_exit(lane: Lane) -> float | None:
    """Mean exit layer over the decode passes (i >= 1), as in RunSummary."""
    if lane.summary is not None:
        return lane.summary.mean_exit_layer
    layers = [t.exit_layer for t in lane.tokens if t.index >= 1]
    return sum(layers) / len(layers) if layers else None


def tiles(run: Run) -> list[dict[str, Any]]:
    """The six large read-outs: label, value, note, and whether the note is bad news."""
    upper, lower = live_rate(run.upper), live_rate(run.lower)
    note, slower = ratio_note(upper, lower, run.lower.title), _slower(upper, lower)
    return [
        _tile("upper_rate", decimal(upper), note, slower, say("tile.rate", policy=run.upper.title)),
        _tile("lower_rate", decimal(lower), label=say("tile.rate", policy=run.lower.title)),
        _exit_tile(run.upper),
        _saved_tile(run, time_saved(upper, lower)),
        _agreement_tile(run),
        _memory_tile(run),
    ]


def ratio_note(upper: float | None, lower: float | None, policy: str) -> str:
    """'1.32× Backbone', or '0.87× Backbone: a slow-down'."""
    if not upper or not lower:
        return ""
    key = "tile.rate.slower" if upper < lower else "tile.rate.faster"
    return say(key, ratio=decimal(upper / lower, 2), policy=policy)


def time_saved(upper: float | None, lower: float | None) -> float | None:
    """Fraction of the lower lane's time per token that the upper one saved; negative: slower."""
    if not upper or not lower:
        return None
    return 1 - lower / upper


def rows(run: Run) -> list[list[str]]:
    """[label, upper, lower] for everything that both lanes have."""
    return [[say(f"row.{key}"), *(cell(lane) for lane in run.lanes)] for key, cell in _ROWS]


def memory(run: Run) -> list[dict[str, Any]]:
    """One entry per part: label, bytes as text, share of the whole in 0..1."""
    parts = _latest_memory(run)
    total = sum(parts.values())
    names = [p for p in PARTS if p in parts] + sorted(set(parts) - set(PARTS))
    return [
        {
            "part": name,
            "label": say(f"memory.{name}") if name in PARTS else name,
            "text": mebibytes(parts[name]),
            "bytes": parts[name],
            "share": round(parts[name] / total, 4) if total else 0,
        }
        for name in names
    ]


def machine(run: Run) -> list[list[str]]:
    """[label, text] lines: device, the kernel of each shape, notes, versions."""
    summary = run.lower.summary or run.upper.summary
    lines = []
    if summary is not None:
        lines.append([say("machine.device"), summary.device])
        lines += [
            [say("machine.kernel", shape=named(k)), named(v)] for k, v in _kernels(run).items()
        ]
    lines += [[say("machine.note"), known(note)] for note in run.notes]
    if summary is not None:
        versions = listed(f"{name} {v}" for name, v in summary.versions.items())
        lines.append([say("machine.versions"), versions])
    return lines


def _kernels(run: Run) -> Mapping[str, str]:
    merged: dict[str, str] = {}
    for lane in run.lanes:
        if lane.summary is not None:
            merged.update(lane.summary.kernels)
    return merged


def _tile(
    key: str, value: str, note: str = "", bad: bool = False, label: str = ""
) -> dict[str, Any]:
    return {
        "key": key,
        "value": value,
        "label": label or say(f"tile.{key}"),
        "note": note,
        "bad": bad,
        "measured": value != DASH,
    }


def _slower(upper: float | None, lower: float | None) -> bool:
    return bool(upper and lower and upper < lower)


def _exit_tile(lane: Lane) -> dict[str, Any]:
    mean = live_mean_exit(lane)
    value = DASH if mean is None else f"{decimal(mean)} / {lane.num_layers}"
    return _tile("mean_exit", value)


def _saved_tile(run: Run, time: float | None) -> dict[str, Any]:
    lane, mean = run.upper, live_mean_exit(run.upper)
    layers = None if mean is None or not lane.num_layers else 1 - mean / lane.num_layers
    value = DASH if layers is None else f"{percent(layers)} → {percent(time)}"
    bad = time is not None and time < 0
    note = say("tile.saved.slower" if bad else "tile.saved.note", policy=run.lower.title)
    return _tile("saved", value, note, bad)


def _agreement_tile(run: Run) -> dict[str, Any]:
    label = say("tile.agreement", policy=run.lower.title)
    same, compared = agreeing(run.upper.token_ids, run.lower.token_ids)
    if not compared:
        return _tile("agreement", DASH, label=label)
    note = say("tile.agreement.share", share=percent(same / compared))
    value = say("tile.agreement.value", same=same, compared=compared)
    return _tile("agreement", value, note, label=label)


def _memory_tile(run: Run) -> dict[str, Any]:
    parts = _latest_memory(run)
    if not parts:
        return _tile("memory", DASH)
    layers = parts.get("backbone", 0), parts.get("river", 0)
    note = say("tile.memory.note", backbone=mebibytes(layers[0]), river=mebibytes(layers[1]))
    return _tile("memory", mebibytes(sum(parts.values())), note)


def _latest_memory(run: Run) -> Mapping[str, int]:
    summary = run.lower.summary or run.upper.summary
    return summary.memory if summary is not None else {}


def _prefill(lane: Lane) -> str:
    return seconds(lane.prompt.seconds if lane.prompt else None)


def _depth(lane: Lane) -> str:
    if lane.prompt is None:
        return DASH
    return say("row.depth.value", exit=lane.prompt.exit_layer, layers=lane.num_layers)


def _decision(lane: Lane) -> str:
    return microseconds(lane.summary.decision_microseconds if lane.summary else None)


def _ended(lane: Lane) -> str:
    return say(f"stop.{lane.summary.stop_reason}") if lane.summary else DASH


_ROWS = (
    ("rate", lambda lane: decimal(live_rate(lane))),
    ("tokens", lambda lane: str(len(lane.tokens)) if lane.tokens else DASH),
    ("prefill", _prefill),
    ("prompt_tokens", lambda lane: str(len(lane.prompt.token_ids)) if lane.prompt else DASH),
    ("depth", _depth),
    ("mean_exit", lambda lane: decimal(live_mean_exit(lane))),
    ("decision", _decision),
    ("ended", _ended),
)
