"""What records say is what the cache holds; runs repeat, stop and resume cleanly."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

import river_core
from river_core.errors import RiverError
from river_core.records import PromptRecord, RunRecord, RunSummary, TokenRecord

TOKENS = 12


def timeless(run: RunRecord) -> tuple:
    """A run without what a clock says."""
    tokens = tuple(replace(t, seconds=0.0) for t in run.tokens)
    return replace(run.prompt, seconds=0.0), tokens, run.updates, run.text, run.full_trace


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "backbone"},
        {"policy": "full-quant"},
        {"policy": "river", "threshold": -1.0},
        {"policy": "river", "threshold": 0.3},
        {"policy": "river", "threshold": 0.3, "prefill": "full"},
        {"exit": "schedule", "options": {"exit_layers": [3, 1, 5, 2, 4, 1, 1, 5, 3, 2, 2, 4]}},
        {"exit": "fixed", "options": {"exit_layer": 2}},
    ],
    ids=str,
)
@pytest.mark.few
def test_records_and_cache_agree(tiny, settings):
    model = tiny.load(bits=4)
    layers, rows = tiny.config.layers, len(tiny.prompt)
    model.cache.k.fill_(7.0)
    model.cache.v.fill_(7.0)
    run = river_core.generate(model, tiny.prompt, max_new_tokens=TOKENS, **settings)
    for t in run.tokens:
        assert t.path == "b" * t.exit_layer + "r" * (layers - t.exit_layer) == t.kv_source
        assert len(t.similarities) == t.exit_layer
        assert t.position == rows + t.index
        assert not t.forced
    assert run.prompt.kv_source == (run.tokens[0].kv_source,) * rows
    assert run.prompt.exit_layer == run.tokens[0].exit_layer == len(run.prompt.similarities)
    held = [model.cache.letters(p) for p in range(model.capacity)]
    written = rows + TOKENS - 1  # the last token is never fed
    assert tuple(held[:written]) == run.kv_final
    assert set("".join(held[written:])) == {"."}
    for layer in range(1, layers + 1):
        assert model.cache.valid(layer) == list(range(written))
    for bank in (model.cache.k, model.cache.v):
        assert (bank[:, :, :written] != 7.0).all()  # every row was written ...
        assert (bank[:, :, written:] == 7.0).all()  # ... and nothing else


def test_the_cache_holds_what_the_slow_way_computes(one_tiny):
    """Keys and values of the last run equal a fresh prompt pass over the same rows."""
    model = one_tiny.load(bits=16)
    run = river_core.generate(model, one_tiny.prompt, threshold=0.3, max_new_tokens=TOKENS)
    k, v = model.cache.k.clone(), model.cache.v.clone()
    fed = one_tiny.prompt + [t.token_id for t in run.tokens[:-1]]
    river_core.generate(model, fed, policy="backbone", max_new_tokens=1)
    assert torch.allclose(k, model.cache.k, atol=1e-5)
    assert torch.allclose(v, model.cache.v, atol=1e-5)


@pytest.mark.few
def test_two_runs_give_the_same_records(tiny):
    model = tiny.load(bits=4)
    settings = {"threshold": 0.3, "temperature": 0.8, "seed": 5, "max_new_tokens": TOKENS}
    first = river_core.generate(model, tiny.prompt, **settings)
    second = river_core.generate(model, tiny.prompt, **settings)
    assert timeless(first) == timeless(second)
    other = river_core.generate(model, tiny.prompt, **{**settings, "seed": 6})
    assert [t.token_id for t in other.tokens] != [t.token_id for t in first.tokens]


def test_stop_in_mid_stream_then_run_again(one_tiny):
    model = one_tiny.load(bits=4)
    fresh = river_core.generate(model, one_tiny.prompt, threshold=0.3, max_new_tokens=TOKENS)
    control = river_core.Control()
    run = river_core.stream(
        model, one_tiny.prompt, threshold=0.3, max_new_tokens=TOKENS, control=control
    )
    got = list(itertools.islice(run, 5))
    control.cancel()
    got += list(run)
    assert isinstance(got[-1], RunSummary)
    assert got[-1].stop_reason == "cancelled"
    assert len(got) <= 7  # prompt, at most one more token than at the time of the call, summary
    again = river_core.generate(model, one_tiny.prompt, threshold=0.3, max_new_tokens=TOKENS)
    assert timeless(again) == timeless(fresh)


def test_cancel_before_the_prompt_pass(one_tiny):
    model = one_tiny.load(bits=4)
    control = river_core.Control()
    control.cancel()
    prompt, summary = river_core.stream(model, one_tiny.prompt, control=control)
    assert isinstance(prompt, PromptRecord)
    assert prompt.kv_source == ("n" * model.num_layers,) * len(one_tiny.prompt)
    assert summary.stop_reason == "cancelled"
    assert summary.tokens_per_second is None


def test_an_overtaken_run_says_so(one_tiny):
    model = one_tiny.load(bits=4)
    first = river_core.stream(model, one_tiny.prompt, max_new_tokens=TOKENS)
    list(itertools.islice(first, 3))
    river_core.generate(model, one_tiny.prompt, max_new_tokens=2)
    with pytest.raises(RiverError, match="another run started"):
        list(first)


def test_the_threshold_acts_from_the_next_pass(one_tiny):
    model = one_tiny.load(bits=4)
    control = river_core.Control()
    run = river_core.stream(
        model, one_tiny.prompt, threshold=1.0, max_new_tokens=8, control=control, prefill="full"
    )
    tokens = []
    for record in run:
        if isinstance(record, TokenRecord):
            tokens.append(record)
            if record.index == 3:
                control.threshold = -1.0
    assert [t.threshold for t in tokens] == [1.0] * 4 + [-1.0] * 4
    assert [t.exit_layer for t in tokens] == [model.num_layers] * 4 + [1] * 4


def test_lines_round_trip(one_tiny, tmp_path):
    model = one_tiny.load(bits=4)
    run = river_core.generate(
        model, one_tiny.prompt, threshold=0.3, max_new_tokens=6, prompt_trace=True, profile=True
    )
    run.save(tmp_path / "run.jsonl")
    loaded = RunRecord.load(tmp_path / "run.jsonl")
    assert list(loaded.lines()) == list(run.lines())
    loaded.save(tmp_path / "again.jsonl")
    assert RunRecord.load(tmp_path / "again.jsonl") == loaded
    assert len(loaded.prompt.matrix) == loaded.prompt.exit_layer
    assert set(loaded.tokens[1].parts) == {"backbone", "river", "fill", "head", "decision"}
    assert loaded.to_frame()["exit_layer"].tolist() == [t.exit_layer for t in run.tokens]


@pytest.mark.few
def test_full_trace_is_the_backbones(tiny):
    model = tiny.load(bits=4)
    run = river_core.generate(model, tiny.prompt, threshold=0.3, max_new_tokens=6)
    forced = [t.token_id for t in run.tokens]
    full = river_core.teacher_forced(model, tiny.prompt, forced, policy="backbone")
    for trace, token in zip(run.full_trace, full.tokens, strict=True):
        assert trace == pytest.approx(token.similarities, abs=2e-5)
    if run.prompt.exit_layer == model.num_layers:
        assert run.full_trace[0] == pytest.approx(run.tokens[0].similarities, abs=2e-5)
