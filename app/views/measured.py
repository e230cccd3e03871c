"""A measurement with repeats, as tiles, as the gap between layers and time, and as facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from river_core.records import RunRecord
from river_core.saving import Spread, spread

from .numbers import decimal, percent
from .readouts import live_mean_exit, machine, ratio_note, tiles, time_saved
from .run import Lane, Run
from .saved import saved
from .wording import say

TILES = ("upper_rate", "lower_rate", "mean_exit", "saved")  # those that a measurement replaces


@dataclass(frozen=True)
class Rounds:
    """How it was measured: rounds, tokens per repeat, threads of the CPU."""

    rounds: int
    tokens: int
    threads: int


def measured(
    records: Sequence[RunRecord], rates: Mapping[str, Sequence[float]], how: Rounds
) -> dict[str, Any]:
    """From one record and all rates, tokens per second, of each lane."""
    spreads = {lane: spread(values) for lane, values in rates.items()}
    run = _run(records, spreads)
    notes = {f"{lane}_rate": _range(found) for lane, found in spreads.items()}
    notes["saved"] = _saved_range(rates)
    return {
        "badge": say("measure.badge", rounds=how.rounds),
        "tiles": [_tile(tile, notes) for tile in tiles(run) if tile["key"] in TILES],
        "rows": _rows(run, spreads, how),
        "saved": saved(run),
        "facts": _facts(run, spreads, how),
    }


def _run(records: Sequence[RunRecord], spreads: Mapping[str, Spread]) -> Run:
    """The last repeat of each lane, at the median of all."""
    run = Run("", "done", entry_layer=records[0].header.entry_layer)
    for lane, record in zip(run.lanes, records, strict=True):
        lane.policy = str(record.header.settings.get("policy", lane.policy))
        lane.num_layers, lane.phase = record.header.num_layers, "done"
        lane.tokens = list(record.tokens)
        rate = spreads[lane.name].median
        lane.summary = replace(record.summary, tokens_per_second=rate)
    return run


def _tile(tile: dict[str, Any], notes: Mapping[str, str]) -> dict[str, Any]:
    """A tile with its spread below it, where it has one."""
    return tile | {"note": " · ".join(filter(None, [tile["note"], notes.get(tile["key"], "")]))}


def _range(found: Spread) -> str:
    return say("measure.range", slowest=decimal(found.slowest), fastest=decimal(found.fastest))


def _saved_range(rates: Mapping[str, Sequence[float]]) -> str:
    """Least and most time saved in any round."""
    pairs = zip(rates["upper"], rates["lower"], strict=True)
    shares = [share for pair in pairs if (share := time_saved(*pair)) is not None]
    if not shares:
        return ""
    words = {"least": percent(min(shares)), "most": percent(max(shares))}
    return say("measure.saved_range", **words)


def _rows(run: Run, spreads: Mapping[str, Spread], how: Rounds) -> list[list[str]]:
    """[label, upper, lower] of what was measured, as in the table of one run."""

    def rate(lane: Lane) -> str:
        found = spreads[lane.name]
        return say("measure.cell", median=decimal(found.median), range=_range(found))

    return [
        [say("row.rate"), *map(rate, run.lanes)],
        [say("measure.tokens"), *[str(how.tokens)] * len(run.lanes)],
        [say("row.mean_exit"), *(decimal(live_mean_exit(lane)) for lane in run.lanes)],
    ]


def _facts(run: Run, spreads: Mapping[str, Spread], how: Rounds) -> list[list[str]]:
    medians = [spreads[lane.name].median for lane in run.lanes]
    lines = [
        [
            lane.title,
            say("measure.median", median=decimal(found.median), range=_range(found)),
        ]
        for lane, found in zip(run.lanes, spreads.values(), strict=True)
    ]
    lines.append([say("measure.ratio"), ratio_note(medians[0], medians[1], run.lower.title)])
    lines.append([say("measure.n"), say("measure.how", rounds=how.rounds, tokens=how.tokens)])
    lines.append([say("measure.threads"), str(how.threads)])
    return lines + machine(run)
