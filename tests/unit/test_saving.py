"""Layers saved next to time saved: shares by hand, and what they must always add up to."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from river_core.metrics import weight_bytes
from river_core.records import RunSummary
from river_core.saving import read_share, saving, spread
from tests.unit.made_records import token

# Four layers of 10 bytes, three twins of 2, a head of 8: the backbone reads 48.
MEMORY = {"backbone": 40, "river": 6, "embedding": 100, "head": 8}


def summary(rate: float | None = 20.0, **changes: Any) -> RunSummary:
    made = RunSummary(
        "length", 0.05, 0.1, rate, 2.0, 0.5, 15.0, MEMORY, {"extra_rows": 0}, {}, "cpu", {}
    )
    return replace(made, **changes)


def tokens(exits: Sequence[int]) -> list[Any]:
    return [token(i, i, exit_layer) for i, exit_layer in enumerate(exits)]


def test_skipped_layers_still_run_in_the_river_and_the_head_is_read_whole() -> None:
    read = read_share(tokens([4, 2, 2]), summary(), 2)
    assert read is not None
    assert (read.backbone, read.river, read.head) == pytest.approx((20 / 48, 4 / 48, 8 / 48))
    assert read.total == pytest.approx(32 / 48)


def test_shares_follow_the_mean_exit_as_weight_bytes_does() -> None:
    """Property: for any exits, the total is bytes(mean exit) / bytes(L)."""
    rng = random.Random(3)
    fixed, more = weight_bytes(MEMORY, 4, 2)
    for _ in range(50):
        exits = [4, *(rng.randint(0, 4) for _ in range(rng.randint(1, 9)))]
        mean = sum(exits[1:]) / len(exits[1:])
        read = read_share(tokens(exits), summary(), 2)
        assert read is not None
        assert read.total == pytest.approx((fixed + more * mean) / (fixed + more * 4))


def test_never_leaving_reads_what_the_backbone_reads() -> None:
    read = read_share(tokens([4, 4, 4]), summary(), 2)
    assert read is not None and read.total == pytest.approx(1.0)


def test_a_skipped_layer_that_runs_nowhere_reads_nothing() -> None:
    passes = [replace(t, path="bsss") for t in tokens([1, 1])]
    read = read_share(passes, summary(), 2)
    assert read is not None and (read.backbone, read.river) == pytest.approx((10 / 48, 0))


@pytest.mark.parametrize(
    ("passes", "made"),
    [
        (tokens([2]), summary()),
        (tokens([2, 2]), summary(memory={"kv": 3})),
        ([replace(t, path="bbpp") for t in tokens([2, 2])], summary()),
        (tokens([2, 2]), summary(counters={"extra_rows": 3})),
        (tokens([2, 2]), summary(counters={"drafted": 3})),
    ],
)
def test_where_the_bytes_per_pass_are_not_known_there_is_no_bound(passes: Any, made: Any) -> None:
    assert read_share(passes, made, 2) is None
    found = saving(passes, made, 2, 16.0)
    assert found.rest is None and found.measured == pytest.approx(0.8)


def test_what_is_left_over() -> None:
    """At exit 2 of 4 two decisions a token, each 15 µs; the backbone takes 1/16 s per token."""
    found = saving(tokens([4, 2, 2]), summary(), 2, 16.0)
    assert found.layers == 0.5 and found.bytes is not None
    assert found.measured == pytest.approx(16 / 20)
    assert found.decisions == pytest.approx(2 * 15e-6 * 16)
    total = found.bytes.total + (found.decisions or 0) + (found.rest or 0)
    assert total == pytest.approx(found.measured)


def test_a_slow_down_and_a_bound_that_was_beaten() -> None:
    slow = saving(tokens([4, 2, 2]), summary(10.0), 2, 16.0)
    assert slow.measured == pytest.approx(1.6) and (slow.rest or 0) > 0
    fast = saving(tokens([4, 2, 2]), summary(40.0), 2, 16.0)
    assert (fast.rest or 0) < 0


def test_without_the_backbones_rate_nothing_is_said_of_time() -> None:
    found = saving(tokens([4, 2, 2]), summary(), 2, None)
    assert (found.measured, found.decisions, found.rest) == (None, None, None)
    assert found.bytes is not None


def test_the_spread_of_rounds() -> None:
    found = spread([3.0, 1.0, 2.0])
    assert (found.median, found.slowest, found.fastest) == (2.0, 1.0, 3.0)
