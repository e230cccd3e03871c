"""Every strategy in awkward moments: cancelled, cut short, overtaken, full, forced, saved."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

import river_core
from river_core.errors import RiverError, SettingsError
from river_core.records import RunRecord, RunSummary, TokenRecord

TOKENS = 10
DRAFTS = ("river-verified", "self-speculative")
EVERY: list[dict[str, Any]] = [
    {"policy": "backbone"},
    {"policy": "river", "threshold": 0.3},
    {"policy": "river", "exit": "confidence", "threshold": 0.1},
    {"policy": "full-quant"},
    {"policy": "kv-mask", "threshold": 0.3},
    {"policy": "kv-mask", "threshold": 0.3, "head": "lens"},
    {"policy": "kv-mask", "exit": "gap", "threshold": 0.05},
    {"policy": "state-propagation", "threshold": 0.3},
    {"policy": "state-propagation", "threshold": 0.3, "head": "lens"},
    {"policy": "batch-recompute", "threshold": 0.3},
    {"policy": "batch-recompute", "threshold": 0.3, "head": "lens"},
    {"policy": "batch-recompute", "exit": "confidence", "threshold": 0.1},
    {"policy": "batch-recompute", "exit": "oracle", "options": {"exit_layers": [5, 2, 3, 2, 4, 2]}},
    {"policy": "mono-decreasing", "threshold": 0.5},
    {"policy": "mono-decreasing", "head": "lens", "options": {"decay": 2}},
    {"policy": "fixed-exit"},
    {"policy": "fixed-exit", "options": {"fill": "none", "size": "S"}},
    {"policy": "fixed-exit", "head": "lens"},
    {"policy": "self-speculative"},
    {"policy": "self-speculative", "options": {"exit_layer": 4, "draft": 3}},
    {"policy": "self-speculative", "options": {"exit_layer": 5, "draft": 3}},
    {"policy": "adaskip", "options": {"halves": 3, "observed": 3}, "threshold": 0.3},
    {"policy": "adaskip", "options": {"halves": 10, "observed": 0}},
    {"policy": "ffn-skip", "threshold": 0.5},
    {"policy": "river-verified", "threshold": -1.0},
    {"policy": "river-verified", "threshold": 0.3, "options": {"draft": 64}},
    {"policy": "river-verified", "exit": "confidence", "threshold": 0.1},
]
SOME = [EVERY[n] for n in (1, 5, 9, 10, 18, 19, 21, 24, 25)]
every = pytest.mark.parametrize("settings", EVERY, ids=str)
some = pytest.mark.parametrize("settings", SOME, ids=str)


def timeless(run: RunRecord) -> tuple:
    tokens = tuple(replace(t, seconds=0.0, parts=None) for t in run.tokens)
    prompt = replace(run.prompt, seconds=0.0, matrix=None)
    return prompt, tokens, run.updates, run.text, run.full_trace, run.summary.counters


def check_records(model, run: RunRecord, prompt) -> None:
    """What records.md says of every run, and the cache beside it."""
    layers, rows = model.num_layers, len(prompt)
    for i, t in enumerate(run.tokens):
        assert (t.index, t.position) == (i, rows + i)
        assert len(t.path) == len(t.kv_source) == layers
        assert len(t.similarities) == t.exit_layer
        assert set(t.path) <= set("brpafs")
        for at, (path, kv) in enumerate(zip(t.path, t.kv_source, strict=True), start=1):
            if at <= t.exit_layer:
                assert path in "bafs"
                assert kv == ("b" if path in "bf" else "n")
            else:
                assert path in "rps"
    assert run.prompt.exit_layer == len(run.prompt.similarities)
    for update in run.updates:
        assert update.layers
        assert update.position < rows + len(run.tokens) - 1
        assert update.pass_index <= len(run.tokens)
    fed = rows + max(0, len(run.tokens) - 1)
    held = [model.cache.letters(p) for p in range(model.capacity)]
    assert tuple(held[:fed]) == run.kv_final
    assert set("".join(held[fed:])) == {"."}
    counters = run.summary.counters
    assert counters["slots_missing"] == "".join(run.kv_final).count("m")
    assert 0 <= counters["accepted"] <= counters["drafted"]


@every
@pytest.mark.parametrize("entry", [2, 3])
def test_records_cache_and_repetition(one_tiny, settings, entry, tmp_path):
    model = one_tiny.load(bits=4, entry_layer=entry)
    model.cache.k.fill_(float("nan"))  # what was never written is never read
    model.cache.v.fill_(float("nan"))
    try:
        run = river_core.generate(model, one_tiny.prompt, max_new_tokens=TOKENS, **settings)
    finally:
        model.cache.k.fill_(0)
        model.cache.v.fill_(0)
    check_records(model, run, one_tiny.prompt)
    again = river_core.generate(
        model, one_tiny.prompt, max_new_tokens=TOKENS, profile=True, prompt_trace=True, **settings
    )
    assert timeless(again) == timeless(run)
    assert all(t.parts is not None for t in again.tokens)
    again.save(tmp_path / "run.jsonl")
    loaded = RunRecord.load(tmp_path / "run.jsonl")
    assert loaded.kv_final == again.kv_final
    assert list(loaded.lines()) == list(again.lines())
    assert loaded.summary == again.summary
    assert loaded.header == again.header


@some
@pytest.mark.parametrize("new", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 2])
def test_short_prompts_and_answers(one_tiny, settings, new, length):
    model = one_tiny.load(bits=4)
    prompt = one_tiny.prompt[:length]
    run = river_core.generate(model, prompt, max_new_tokens=new, **settings)
    assert len(run.tokens) == new
    check_records(model, run, prompt)


@some
def test_capacity_exactly_full(one_tiny, settings):
    model = one_tiny.load(bits=4)
    prompt = (one_tiny.prompt * 100)[: model.capacity - TOKENS]
    run = river_core.generate(model, prompt, max_new_tokens=TOKENS, full_trace=False, **settings)
    assert len(run.tokens) == TOKENS
    check_records(model, run, prompt)
    with pytest.raises(RiverError):
        river_core.generate(model, prompt, max_new_tokens=TOKENS + 1, **settings)


@every
def test_forced_equals_free(one_tiny, settings):
    if settings["policy"] in DRAFTS:
        with pytest.raises(SettingsError):
            river_core.teacher_forced(one_tiny.load(bits=4), one_tiny.prompt, [1], **settings)
        return
    model = one_tiny.load(bits=4)
    run = river_core.generate(model, one_tiny.prompt, max_new_tokens=TOKENS, **settings)
    ids = [t.token_id for t in run.tokens]
    forced = river_core.teacher_forced(
        model, one_tiny.prompt, ids, max_new_tokens=TOKENS, **settings
    )
    assert timeless(forced) == timeless(run)
    assert forced.logits.shape == (TOKENS, model.vocab)


class CancelAt:
    """A control that cancels itself the n-th time it is looked at."""

    def __init__(self, count: int) -> None:
        self.left, self.threshold = count, None

    @property
    def cancelled(self) -> bool:
        self.left -= 1
        return self.left < 0


@some
def test_cancelled_at_every_moment(one_tiny, settings):
    model = one_tiny.load(bits=4)
    keys: dict[str, Any] = {"max_new_tokens": 6, "full_trace": False, **settings}
    fresh = river_core.generate(model, one_tiny.prompt, **keys)
    for moment in itertools.count():
        control: Any = CancelAt(moment)
        run = river_core.stream(model, one_tiny.prompt, control=control, **keys)
        got = list(run)
        assert isinstance(got[-1], RunSummary)
        part = run.record()
        assert list(RunRecord.from_lines(part.lines()).lines()) == list(part.lines())
        shown = tuple(replace(t, seconds=0.0) for t in part.tokens)
        assert shown == tuple(replace(t, seconds=0.0) for t in fresh.tokens[: len(shown)])
        if part.tokens:
            check_records(model, part, one_tiny.prompt)
        if part.summary.stop_reason != "cancelled":
            break
    else:
        raise AssertionError
    assert moment > 6
    again = river_core.generate(model, one_tiny.prompt, **keys)
    assert timeless(again) == timeless(fresh)


@some
def test_stop_strings_and_eos_at_every_token(one_tiny, settings):
    model = one_tiny.load(bits=4)
    whole = river_core.generate(model, one_tiny.prompt, max_new_tokens=TOKENS, **settings)
    ids = [t.token_id for t in whole.tokens]
    for at in range(TOKENS):
        first = ids.index(ids[at])
        keys = {"max_new_tokens": TOKENS, "full_trace": False, **settings}
        run = river_core.generate(model, one_tiny.prompt, stop=f"<{ids[at]}>", **keys)
        assert [t.token_id for t in run.tokens] == ids[: first + 1]
        assert run.text == "".join(f"<{i}>" for i in ids[:first])
        check_records(model, run, one_tiny.prompt)
        ended = river_core.generate(
            replace(model, eos_ids=frozenset([ids[at]])), one_tiny.prompt, **keys
        )
        assert [t.token_id for t in ended.tokens] == ids[: first + 1]
        assert ended.summary.stop_reason == "eos"
        check_records(model, ended, one_tiny.prompt)


@every
def test_threshold_changes_in_mid_run(one_tiny, settings):
    """The rule of a pass is the one in force when it began; repeated, it is the same run."""
    model = one_tiny.load(bits=4)

    def once() -> RunRecord:
        control = river_core.Control()
        run = river_core.stream(
            model, one_tiny.prompt, control=control, max_new_tokens=TOKENS, **settings
        )
        for record in run:
            if isinstance(record, TokenRecord):
                control.threshold = (-1.0, 1.0, 0.4)[record.index % 3]
        return run.record()

    first = once()
    check_records(model, first, one_tiny.prompt)
    assert timeless(once()) == timeless(first)


@some
def test_an_overtaken_run_leaves_the_newer_alone(one_tiny, settings):
    model = one_tiny.load(bits=4)
    newer = {"policy": "kv-mask", "threshold": 0.3, "max_new_tokens": 12, "full_trace": False}
    fresh = river_core.generate(model, one_tiny.prompt, **newer)
    for taken in range(1, 7):
        older = river_core.stream(model, one_tiny.prompt[:2], max_new_tokens=5, **settings)
        list(itertools.islice((r for r in older if isinstance(r, TokenRecord)), taken - 1))
        if taken == 1:
            next(older)
        run = river_core.stream(model, one_tiny.prompt, **newer)
        list(itertools.islice(run, 5))
        with pytest.raises(RiverError, match="another run"):
            list(older)
        list(run)
        assert timeless(run.record()) == timeless(fresh)


@some
def test_holes_do_not_leak_into_the_next_run(one_tiny, settings):
    model = one_tiny.load(bits=4)
    keys: dict[str, Any] = {"max_new_tokens": TOKENS, **settings}
    first = river_core.generate(model, one_tiny.prompt, **keys)
    for other in ({"policy": "kv-mask", "threshold": -1.0}, {"policy": "adaskip"}):
        options = {"options": {"halves": 6}} if other["policy"] == "adaskip" else {}
        river_core.generate(model, one_tiny.prompt * 3, max_new_tokens=9, **other, **options)
        assert timeless(river_core.generate(model, one_tiny.prompt, **keys)) == timeless(first)


@every
def test_drawn_text_repeats(one_tiny, settings):
    model = one_tiny.load(bits=4)
    keys: dict[str, Any] = {"max_new_tokens": TOKENS, "temperature": 0.7, "seed": 3, **settings}
    if settings["policy"] in DRAFTS:
        with pytest.raises(SettingsError, match="temperature=0"):
            river_core.generate(model, one_tiny.prompt, **keys)
        return
    first = river_core.generate(model, one_tiny.prompt, **keys)
    check_records(model, first, one_tiny.prompt)
    assert timeless(river_core.generate(model, one_tiny.prompt, **keys)) == timeless(first)
