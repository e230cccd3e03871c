"""Exit rules by themselves, and the policy table's refusals."""

from __future__ import annotations

import pytest

from river_core.errors import SettingsError
from river_core.exits import Fixed, Moment, Never, Schedule, Similarity, build_exit
from river_core.planning import resolve
from river_core.policies import POLICIES
from river_core.settings import DecodeSettings


def at(layer: int, index: int = 1, threshold: float = 0.9) -> Moment:
    return Moment(index, layer, threshold)


@pytest.mark.parametrize(
    ("rows", "leaves"),
    [
        ([0.95], True),
        ([0.9], False),  # strictly above
        ([0.95, 0.91, 0.99], True),
        ([0.95, 0.90, 0.99], False),  # the minimum over the rows decides
        ([0.95, -0.5], False),
    ],
)
def test_similarity_takes_the_minimum_and_is_strict(rows, leaves):
    assert Similarity().leaves(at(3), rows) is leaves


def test_similarity_one_never_leaves_at_threshold_one():
    assert not Similarity().leaves(at(3, threshold=1.0), [1.0])
    assert not Similarity().leaves(at(0, threshold=-1.0), [])


def test_fixed_schedule_never():
    assert [Fixed(2).leaves(at(n), []) for n in range(4)] == [False, False, True, True]
    schedule = Schedule((4, 1, 3))
    assert [schedule.leaves(at(1, index=i), []) for i in range(4)] == [False, True, False, False]
    assert schedule.leaves(at(3, index=99), [])  # later tokens take the last number
    assert not Never().leaves(at(99), [])


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fixed", {}, "needs options"),
        ("fixed", {"exit_layers": [1]}, "exit_layers"),
        ("fixed", {"exit_layer": 9}, "exit layer 9"),
        ("fixed", {"exit_layer": True}, "exit layer True"),
        ("fixed", {"exit_layer": "2"}, "exit layer '2'"),
        ("schedule", {"exit_layers": []}, "one exit layer per token"),
        ("schedule", {"exit_layers": [1, 0]}, "exit layer 0"),
        ("schedule", {"exit_layers": "123"}, "one exit layer per token"),
        ("schedule", {"exit_layers": 3}, "one exit layer per token"),
        ("similarity", {"decay": 1}, "'decay'"),
    ],
)
def test_bad_options_are_named(name, options, words):
    with pytest.raises(SettingsError, match=words):
        build_exit(name, options, range(1, 7))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"policy": "rivers"},
            "unknown policy 'rivers'; known are backbone, river, full-quant, kv-mask",
        ),
        ({"policy": "backbone", "exit": "similarity"}, "cannot use exit="),
        ({"policy": "backbone", "prefill": "exit"}, "cannot use prefill="),
        ({"policy": "full-quant", "options": {"exit_layer": 3}}, "it takes none"),
        ({"policy": "river", "options": {"exit_layer": 3}}, "it takes none"),
        ({"policy": "kv-mask", "options": {"draft": 3}}, "it takes 'min_exit'"),
        ({"policy": "kv-mask", "options": {"min_exit": 0}}, "'min_exit' is 0; use 1 to 6"),
        ({"policy": "kv-mask", "prefill": "exit"}, "use 'full'"),
        ({"policy": "river", "head": "lens"}, "use 'river'"),
        ({"policy": "river", "exit": "confidence", "prefill": "exit"}, "use 'full'"),
        ({"policy": "fixed-exit", "head": "river", "options": {"fill": "none"}}, "nothing for a"),
        ({"policy": "fixed-exit", "options": {"fill": "mask"}}, "use 'none' or 'river'"),
        ({"policy": "fixed-exit", "options": {"size": "XL"}}, "use 'L' or 'M' or 'S'"),
        ({"policy": "fixed-exit", "options": {"exit_layer": 9}}, "exit layer 9"),
        ({"policy": "mono-decreasing", "options": {"decay": 7}}, "'decay' is 7"),
        ({"policy": "river-verified", "options": {"draft": 0}}, "'draft' is 0"),
        ({"policy": "river-verified", "options": {"draft": True}}, "'draft' is True"),
        ({"policy": "river-verified", "temperature": 0.5}, "temperature=0"),
        ({"policy": "self-speculative", "head": "river"}, "use 'lens'"),
        ({"policy": "adaskip", "options": {"halves": 13}}, "'halves' is 13; use 0 to 12"),
        ({"policy": "river", "exit": "oracle"}, "earliest_safe_exits"),
    ],
)
def test_settings_that_a_policy_cannot_use_are_refused(settings, words):
    with pytest.raises(SettingsError, match=words):
        resolve(DecodeSettings(**settings), 6, 2)


def test_every_policy_has_a_sentence_and_a_source():
    for name, row in POLICIES.items():
        assert row.sentence.endswith("."), name
        assert row.source, name
        resolve(DecodeSettings(policy=name), 6, 2)
