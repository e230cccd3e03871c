"""The packed cache rows against the records, for the KV sources that each policy leaves."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from app.views.cache import pack_updates, prompt_rows, run_lengths
from app.views.run import Lane, ModelCard, Run
from app.views.snapshot import FIELDS, append, snapshot
from river_core.policies import POLICIES
from river_core.records import CacheUpdate, RunRecord
from tests.unit import made_records

CARD = ModelCard("ready", "Ready", "m", "packaged", "cpu", 4, 0.98, 4096)
# Policy -> (KV source of each row after an exit at layer 2, what a later pass changed in row 3).
SOURCES: dict[str, tuple[str, tuple[CacheUpdate, ...]]] = {
    "backbone": ("bbbb", ()),
    "river": ("bbrr", ()),
    "full-quant": ("rrrr", ()),
    "kv-mask": ("bbmm", ()),
    "state-propagation": ("bbpp", ()),
    "batch-recompute": ("bbdd", (CacheUpdate(3, (3,), "b", 2), CacheUpdate(3, (4,), "b", 3))),
    "mono-decreasing": ("bbnn", ()),
    "fixed-exit": ("bbnn", ()),
    "self-speculative": ("bbdd", (CacheUpdate(3, (3, 4), "b", 2),)),
    "adaskip": ("bnbb", ()),
    "ffn-skip": ("bbbb", ()),
    "river-verified": ("bbrr", (CacheUpdate(3, (3, 4), "b", 2), CacheUpdate(4, (3, 4), "b", 2))),
}


def letters(runs: str) -> str:
    return "".join(letter * int(n) for letter, n in re.findall(r"(\D)(\d+)", runs))


def made(policy: str) -> RunRecord:
    record = made_records.run([5, 6, 7, 8])
    source, updates = SOURCES[policy]
    tokens = tuple(dataclasses.replace(t, kv_source=source) for t in record.tokens)
    return dataclasses.replace(record, tokens=tokens, updates=updates)


def rows(lane: dict, moment: int) -> list[str]:
    """The cache after the pass of token `moment`, from what the page receives."""
    found = [letters(runs) for count, runs in lane["prompt_kv"] for _ in range(count)]
    tokens = [dict(zip(FIELDS, json.loads(t), strict=True)) for t in lane["tokens"].splitlines()]
    found += [letters(token["kv"]) for token in tokens[1 : moment + 1]]
    for passed, position, source, *edges in lane["updates"][1]:
        if passed <= moment:
            row = list(found[position])
            for first, last in zip(edges[::2], edges[1::2], strict=True):
                row[first - 1 : last] = source * (last - first + 1)
            found[position] = "".join(row)
    return found


def lane_of(record: RunRecord) -> Run:
    run = Run("id", "done")
    for lane in run.lanes:
        lane.num_layers, lane.prompt = 4, record.prompt
        for token in record.tokens:
            append(lane, token)
        lane.updates.extend(record.updates)
    return run


def test_every_policy_has_its_sources_here() -> None:
    assert set(SOURCES) == set(POLICIES)


@pytest.mark.parametrize("policy", SOURCES)
def test_the_page_receives_who_wrote_the_cache(policy: str) -> None:
    record = made(policy)
    lane = snapshot(lane_of(record), CARD)["lanes"]["upper"]
    assert rows(lane, 3) == list(record.kv_final)
    assert rows(lane, 0) == list(record.prompt.kv_source)
    early = dataclasses.replace(
        record,
        tokens=record.tokens[:3],
        updates=tuple(u for u in record.updates if u.pass_index <= 2),
    )
    assert rows(lane, 2) == list(early.kv_final)
    assert rows(lane, 1)[3] == SOURCES[policy][0], "not changed before its time"


def test_rows_travel_in_runs() -> None:
    assert run_lengths("b" * 14 + "r" * 16) == "b14r16" and run_lengths("") == ""
    record = made("river")
    assert prompt_rows(record.prompt) == [[3, "b2r2"]] and prompt_rows(None) == []
    mixed = dataclasses.replace(record.prompt, kv_source=("bbbb", "bbbb", "bbrr"))
    assert prompt_rows(mixed) == [[2, "b4"], [1, "b2r2"]]


def test_updates_travel_once() -> None:
    updates = [CacheUpdate(7, (1, 2, 4), "b", 5), CacheUpdate(8, (3,), "r", 6)]
    assert pack_updates(updates) == [[5, 7, "b", 1, 2, 4, 4], [6, 8, "r", 3, 3]]
    assert pack_updates(updates, 1) == [[6, 8, "r", 3, 3]]
    run = lane_of(made("batch-recompute"))
    assert run.counts == {"upper": 4, "lower": 4, "upper.updates": 2, "lower.updates": 2}
    view = snapshot(run, CARD, {"upper.updates": 1})["lanes"]["upper"]["updates"]
    assert view == [1, [[3, 3, "b", 4, 4]]]


def test_parts_and_residency_reach_the_page() -> None:
    token = dataclasses.replace(
        made_records.token(0, 5), forced=True, parts={"backbone": 1.23456, "head": 0.5}
    )
    lane = Lane("upper", "river", 4)
    append(lane, token)
    cell = dict(zip(FIELDS, json.loads(lane.lines[0]), strict=True))
    assert cell["forced"] == 1 and cell["parts"] == {"backbone": 1.235, "head": 0.5}
