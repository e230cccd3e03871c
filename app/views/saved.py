"""Layers saved next to time saved, and what lies between, in the numbers of this run.

The shares are `river_core.saving`'s: all are of the full backbone's time per token.
"""

from __future__ import annotations

from typing import Any

from river_core.saving import Saving, saving

from .numbers import DASH, MINUS, percent
from .run import Lane, Run
from .wording import say

BASELINE = "backbone"


def saved(run: Run) -> dict[str, Any] | None:
    """Bars, lines of numbers and sentences about the lane that is not the backbone.

    None where neither lane lets a token leave. Where no lane is the backbone, time against it was
    not measured, and is a dash.
    """
    lane, other = _pair(run)
    if lane.summary is None or other.summary is None or lane.policy == BASELINE:
        return None
    rate = other.summary.tokens_per_second if other.policy == BASELINE else None
    found = saving(lane.tokens, lane.summary, run.entry_layer, rate)
    return {
        "title": say("gap.title", policy=lane.title),
        "sentences": _sentences(found, lane, other),
        "bars": _bars(found, lane),
        "lines": _lines(found),
    }


def _pair(run: Run) -> tuple[Lane, Lane]:
    """The lane that is explained, and the one that it is held against."""
    if run.upper.policy == BASELINE:
        return run.lower, run.upper
    return run.upper, run.lower


def share(value: float | None) -> str:
    """A share in per cent; one digit more below 1 %."""
    if value is not None and 0 < abs(value) < 0.01:
        return f"{100 * value:.1f} %".replace("-", MINUS)
    return percent(value)


def _sentences(found: Saving, lane: Lane, other: Lane) -> list[str]:
    said = []
    if found.bytes is None:
        said.append(say("gap.no_bytes", policy=lane.title, layers=share(found.layers)))
    elif not found.layers:
        said.append(say("gap.none"))
    else:
        said.append(
            say(
                "gap.bytes" if found.bytes.river else "gap.bytes_alone",
                layers=share(found.layers),
                river=share(found.bytes.river),
                head=share(found.bytes.head),
                allowed=share(1 - found.bytes.total),
            )
        )
    said.append(_measured(found, lane, other))
    if found.rest is not None and found.rest < 0:
        said.append(say("gap.faster"))
    return said


def _measured(found: Saving, lane: Lane, other: Lane) -> str:
    if found.measured is not None:
        key = "gap.lost" if found.measured > 1 else "gap.saved"
        return say(key, time=share(abs(1 - found.measured)))
    if other.policy == BASELINE:
        return say("gap.no_time")
    assert lane.summary is not None and other.summary is not None
    rates = lane.summary.tokens_per_second, other.summary.tokens_per_second
    time = rates[1] / rates[0] if rates[0] and rates[1] else None
    return say("gap.other", policy=lane.title, other=other.title, time=share(time))


def _bars(found: Saving, lane: Lane) -> list[dict[str, Any]]:
    """Three bars as shares of the backbone's time: its own, bound by bytes, measured."""
    read = found.bytes
    bound = [] if read is None else [("b", read.backbone), ("r", read.river), ("h", read.head)]
    whole = [("all", 1.0)] if read is None else [("b", 1 - read.head), ("h", read.head)]
    return [
        _bar(say("gap.bar.backbone"), 1.0, whole),
        _bar(say("gap.bar.bytes"), read.total if read else None, bound),
        _bar(say("gap.bar.measured", policy=lane.title), found.measured, _spent(found)),
    ]


def _spent(found: Saving) -> list[tuple[str, float]]:
    """The measured time, cut where the bytes and the decisions end."""
    if found.measured is None:
        return []
    if found.bytes is None or found.rest is None or found.rest < 0:
        return [("whole", found.measured)]
    return [("time", found.bytes.total), ("d", found.decisions or 0.0), ("rest", found.rest)]


def _bar(label: str, total: float | None, parts: list[tuple[str, float]]) -> dict[str, Any]:
    return {
        "label": label,
        "value": share(total),
        "parts": [[name, round(size, 4)] for name, size in parts if size > 0],
    }


def _lines(found: Saving) -> list[list[str]]:
    """[label, value, what it is made of]."""
    return [
        [say("gap.line.layers"), share(found.layers), say("gap.line.layers.of")],
        [say("gap.line.bytes"), *_bytes(found)],
        [say("gap.line.time"), *_time(found)],
        [say("gap.line.rest"), *_rest(found)],
    ]


def _bytes(found: Saving) -> list[str]:
    read = found.bytes
    if read is None:
        return [DASH, ""]
    parts = {"backbone": share(read.backbone), "river": share(read.river), "head": share(read.head)}
    return [share(read.total), say("gap.line.bytes.of", **parts)]


def _time(found: Saving) -> list[str]:
    if found.measured is None:
        return [DASH, ""]
    key = "gap.line.time.lost" if found.measured > 1 else "gap.line.time.saved"
    return [share(found.measured), say(key, time=share(abs(1 - found.measured)))]


def _rest(found: Saving) -> list[str]:
    if found.rest is None:
        return [DASH, ""]
    over = found.rest + (found.decisions or 0.0)
    parts = {"decisions": share(found.decisions), "rest": share(found.rest)}
    return [share(over), say("gap.line.rest.of", **parts)]
