"""The comparison of two finished answers, and layers saved next to time saved, in words."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from app.views.comparison import comparison
from app.views.run import ModelCard, Run
from app.views.saved import saved, share
from app.views.snapshot import append, snapshot
from tests.ui.synthetic import LAYERS, OTHER, WORDS, prompt_record, spoken, summary, token

CARD = ModelCard("ready", "Ready", "m", "packaged", "cpu", LAYERS, 0.98, 4096)


def made(
    upper: list[str], lower: list[str], rates: tuple[float, float] = (33.9, 27.1), exit_layer=14
) -> Run:
    run, rng = Run("id", "done"), random.Random(1)
    for lane, words, rate in zip(run.lanes, (upper, lower), rates, strict=True):
        deep = lane.name == "lower"
        lane.num_layers, lane.phase = LAYERS, "done"
        lane.prompt = prompt_record(LAYERS if deep else 5)
        for i, (text, raw) in enumerate(spoken(words)):
            append(lane, token(i, text, raw, LAYERS if deep else exit_layer, 11, rng))
        lane.summary = summary(LAYERS if deep else exit_layer, rate)
    return run


def test_it_comes_only_when_both_lanes_are_done() -> None:
    run = made(WORDS, OTHER)
    assert snapshot(run, CARD)["comparison"] is not None
    run.lower.phase = "decoding"
    assert snapshot(run, CARD)["comparison"] is None
    run.lower.phase, run.lower.summary = "done", None
    assert comparison(run) is None


def test_the_first_difference_with_both_opinions() -> None:
    found: dict[str, Any] = comparison(made(WORDS, OTHER)) or {}
    assert found["sentence"] == "River and Backbone chose the same first 3 of 44 tokens, 7 %."
    difference = found["difference"]
    assert difference["index"] == 3
    upper, lower = difference["lanes"]
    assert (upper["token"], lower["token"]) == ("·up", "·by")
    assert upper["rows"][0] == ["·up", 0.6703, "own"]
    assert [row[2] for row in upper["rows"]] == ["own", "", "", "", ""]
    assert upper["said"] == "Backbone's token is not among the 5 likeliest here."
    assert "not compared further" in found["after"]
    assert found["prefill"] == {"upper": 0.214, "lower": 0.214}


def test_the_other_lanes_token_is_marked_where_it_was_likely() -> None:
    run = made(WORDS, OTHER)
    wanted = run.lower.tokens[3]
    thought = run.upper.tokens[3].alternatives
    thought = (thought[0], (wanted.token_id, wanted.text, -1.5), *thought[2:])
    run.upper.tokens[3] = replace(run.upper.tokens[3], alternatives=thought)
    upper = (comparison(run) or {})["difference"]["lanes"][0]
    assert upper["rows"][1] == ["·by", 0.2231, "other"]
    assert upper["said"] == "Backbone's token is number 2 here, with 22.3 %."


def test_an_answer_that_ends_first_is_a_difference() -> None:
    found: dict[str, Any] = comparison(made(WORDS[:5], WORDS)) or {}
    assert found["difference"]["index"] == 5
    upper, lower = found["difference"]["lanes"]
    assert (upper["token"], upper["rows"]) == ("", []) and "ended, after 5" in upper["said"]
    assert lower["token"] == "·water" and lower["said"] == ""


def test_equal_answers_have_no_difference() -> None:
    found: dict[str, Any] = comparison(made(WORDS, WORDS)) or {}
    assert found["difference"] is None and found["after"] == ""
    assert found["sentence"] == f"River and Backbone chose the same {len(WORDS)} tokens."


def test_layers_bytes_time_and_what_is_left() -> None:
    found = saved(made(WORDS, OTHER)) or {}
    assert [bar["value"] for bar in found["bars"]] == ["100 %", "70 %", "80 %"]
    sizes = [sum(size for _, size in bar["parts"]) for bar in found["bars"]]
    assert sizes == pytest.approx([1.0, 0.6976, 27.1 / 33.9], abs=0.001)
    assert [line[1] for line in found["lines"]] == ["53 %", "70 %", "80 %", "10 %"]
    assert "20 % less" in " ".join(found["sentences"])


def test_what_is_said_follows_what_ran() -> None:
    run = made(WORDS, OTHER, exit_layer=LAYERS)
    assert (saved(run) or {})["sentences"][0].startswith("No layer was skipped")
    run = made(WORDS, OTHER)
    run.upper.tokens = [replace(t, path=t.path.replace("r", "s")) for t in run.upper.tokens]
    assert "nothing ran in their place" in (saved(run) or {})["sentences"][0]
    run.upper.tokens = [replace(t, path=t.path.replace("s", "p")) for t in run.upper.tokens]
    found = saved(run) or {}
    assert "no bound is given" in found["sentences"][0] and found["bars"][1]["value"] == "—"


def test_a_slow_down_is_called_one() -> None:
    found = saved(made(WORDS, OTHER, (20.0, 27.1))) or {}
    assert "36 % more, a slow-down" in " ".join(found["sentences"])
    assert found["lines"][2][1:] == ["136 %", "36 % lost"]


def test_without_the_backbone_in_a_lane_time_is_a_dash() -> None:
    run = made(WORDS, OTHER)
    run.lower.policy = "kv-mask"
    found = saved(run) or {}
    assert [bar["value"] for bar in found["bars"]] == ["100 %", "70 %", "—"]
    assert [line[1] for line in found["lines"]] == ["53 %", "70 %", "—", "—"]
    assert "River took 80 % of KV mask's time per token" in found["sentences"][1]


def test_the_backbone_above_explains_the_lane_below() -> None:
    run = made(WORDS, OTHER)
    run.upper.policy, run.lower.policy = "backbone", "river"
    assert (saved(run) or {})["title"].endswith("River")
    run.lower.policy = "backbone"
    assert saved(run) is None


def test_shares_below_one_per_cent_keep_a_digit() -> None:
    assert [share(v) for v in (None, 0.0, 0.003, -0.004, 0.016)] == [
        "—",
        "0 %",
        "0.3 %",
        "−0.4 %",
        "2 %",
    ]
