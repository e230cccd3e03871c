"""Backbone offloading: forced exits give what they should, and what comes back is as it was."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch

import river_core
from river_core.errors import RiverError
from river_core.execution import open_execution
from river_core.execution.fused import can_fuse
from river_core.random_model import random_model
from river_core.settings import QuantSpec
from tests.tiny.resident import QUIET, TOKENS, fresh, ids, shown

BOTH = pytest.mark.parametrize("bits", [16, 4])


@pytest.fixture
def keeps_all(tiny):
    """The tiny model, whatever a test evicts, whole again afterwards."""
    yield tiny
    for model in tiny.loaded.values():
        model.set_resident(model.num_layers)


def written(model, run):
    """K and V of every position that the run wrote, and their letters."""
    rows = len(run.prompt.token_ids) + len(run.tokens) - 1
    letters = [model.cache.letters(position) for position in range(rows)]
    return letters, model.cache.k[:, :, :rows].clone(), model.cache.v[:, :, :rows].clone()


# What forced exits give


def test_an_identical_river_gives_the_backbones_text_at_any_number(keeps_all):
    tiny = keeps_all
    model = tiny.load(bits=16)
    base = river_core.generate(model, tiny.prompt, policy="backbone", **QUIET)
    for k in range(1, model.num_layers):
        model.set_resident(k)
        for prefill in ("exit", "full"):
            run = river_core.generate(model, tiny.prompt, threshold=1.0, prefill=prefill, **QUIET)
            assert ids(run) == ids(base), (k, prefill)
            assert [(t.exit_layer, t.forced) for t in run.tokens] == [(k, True)] * TOKENS
            assert {t.path for t in run.tokens} == {"b" * k + "r" * (model.num_layers - k)}
            assert run.prompt.exit_layer == k


def test_a_forced_run_is_the_schedule_cut_off_at_the_last_resident_layer(keeps_all):
    """With a quantised river; the whole model runs the schedule min(e, k)."""
    tiny = keeps_all
    model = tiny.load(bits=4)
    for k in (1, 2, model.num_layers - 1):
        model.set_resident(k)
        run = river_core.teacher_forced(
            model, tiny.prompt, [3] * TOKENS, threshold=0.5, full_trace=False
        )
        found, exits = written(model, run), [t.exit_layer for t in run.tokens]
        model.set_resident(model.num_layers)
        same = river_core.teacher_forced(
            model, tiny.prompt, [3] * TOKENS, threshold=0.5, full_trace=False
        )
        for now, free in zip(run.tokens, same.tokens, strict=True):
            if free.exit_layer <= k and now.index == 0:
                assert (now.exit_layer, now.forced) == (free.exit_layer, False)
            assert now.exit_layer <= k
            last = now.similarities[-1]
            assert now.forced == (now.exit_layer == k and not last > 0.5) or now.index == 0
        again = river_core.teacher_forced(
            model, tiny.prompt, [3] * TOKENS, exit="schedule", options={"exit_layers": exits},
            full_trace=False,
        )  # fmt: skip
        assert torch.equal(again.logits, run.logits)
        letters, keys, values = written(model, again)
        assert letters == found[0]
        assert torch.equal(keys, found[1]) and torch.equal(values, found[2])


def test_a_token_that_would_leave_at_the_last_resident_layer_is_not_forced(one_tiny):
    model = fresh(one_tiny, resident_layers=2)
    early = river_core.generate(model, one_tiny.prompt, threshold=-1.0, **QUIET)
    assert [(t.exit_layer, t.forced) for t in early.tokens] == [(1, False)] * TOKENS
    settings = {"exit": "schedule", "options": {"exit_layers": [2]}}
    asked = river_core.generate(model, one_tiny.prompt, **QUIET, **settings)
    assert [(t.exit_layer, t.forced) for t in asked.tokens] == [(2, False)] * TOKENS
    full = river_core.generate(model, one_tiny.prompt, prefill="full", **QUIET, **settings)
    assert [t.forced for t in full.tokens] == [True] + [False] * (TOKENS - 1)
    whole = river_core.generate(one_tiny.load(bits=4), one_tiny.prompt, threshold=1.0, **QUIET)
    assert not any(t.forced for t in whole.tokens)


@pytest.mark.parametrize("head", ["river", "lens"])
def test_mono_decreasing_is_forced_as_well(one_tiny, head):
    model = fresh(one_tiny, resident_layers=2)
    settings = {"policy": "mono-decreasing", "head": head, "threshold": 1.0}
    run = river_core.generate(model, one_tiny.prompt, **QUIET, **settings)
    assert [(t.exit_layer, t.forced) for t in run.tokens] == [(2, True)] * TOKENS
    decaying = river_core.generate(
        model, one_tiny.prompt, **QUIET, **settings, options={"decay": 1}
    )
    exits = [t.exit_layer for t in decaying.tokens]
    assert exits == sorted(exits, reverse=True) and set(exits) == {1, 2}


# Evict and restore


@BOTH
def test_evicting_and_restoring_changes_nothing(keeps_all, bits):
    tiny = keeps_all
    model = tiny.load(bits=bits)
    layers, settings = model.num_layers, {"threshold": 0.5, **QUIET}
    base = river_core.generate(model, tiny.prompt, **settings)
    before = written(model, base)
    model.set_resident(2)
    river_core.generate(model, tiny.prompt, **settings)
    model.set_resident(1)
    model.set_resident(3)
    assert model.resident == 3
    model.set_resident(layers)
    again = river_core.generate(model, tiny.prompt, **settings)
    assert shown(again) == shown(base)
    after = written(model, again)
    assert after[0] == before[0]
    assert torch.equal(after[1], before[1]) and torch.equal(after[2], before[2])


@BOTH
@pytest.mark.few
def test_loading_with_a_number_is_loading_and_evicting(tiny, bits):
    river = QuantSpec(bits=bits)
    straight, later = fresh(tiny, river=river, resident_layers=2), fresh(tiny, river=river)
    later.set_resident(2)
    runs = [river_core.generate(m, tiny.prompt, threshold=0.5, **QUIET) for m in (straight, later)]
    assert shown(runs[0]) == shown(runs[1])
    assert straight.memory() == later.memory()
    assert straight.info == replace(later.info, calibration=straight.info.calibration)
    whole = fresh(tiny, river=river)
    straight.set_resident(whole.num_layers)
    assert straight.memory() == whole.memory()
    for ours, theirs in zip(straight.backbone, whole.backbone, strict=True):
        for name, linear in ours.linears.items():
            assert torch.equal(linear.dense(), theirs.linears[name].dense())
        for name, tensor in ours.small.items():
            assert torch.equal(tensor, theirs.small[name])


@pytest.mark.few
def test_memory_falls_by_exactly_the_evicted_bytes(tiny):
    model = fresh(tiny)
    before = model.memory()
    held = [t for w in model.backbone[2:] for x in w.linears.values() for t in x.tensors()]
    evicted = sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}.values()
    )
    gone = [weakref.ref(t) for t in held]
    runs = [river_core.stream(model, tiny.prompt, **QUIET) for _ in range(2)]
    for _ in runs[0]:
        pass
    del held
    model.set_resident(2)
    after = model.memory()
    assert before["backbone"] - after["backbone"] == evicted > 0
    assert {n: b for n, b in after.items() if n != "backbone"} == {
        n: b for n, b in before.items() if n != "backbone"
    }
    gc.collect()
    assert not any(ref() is not None for ref in gone)  # though both runs are still held


def test_a_fused_engine_lets_go_of_evicted_layers():
    model = random_model("tiny", dtype="bfloat16", capacity=64)
    if not can_fuse(model):
        pytest.skip("no native kernels here")
    run = river_core.stream(model, [5, 3, 9], max_new_tokens=8, threshold=1.0)
    for _ in range(5):
        next(run)
    gone = [weakref.ref(x) for w in model.backbone[3:] for x in w.linears.values()]
    model.set_resident(3)
    gc.collect()
    assert not any(ref() is not None for ref in gone)
    with pytest.raises(RiverError, match="resident layers changed; this run cannot go on"):
        next(run)
    assert can_fuse(model)
    assert open_execution(model).name == "fused C++ steps"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_random_model_comes_back_as_it_was(dtype, tmp_path):
    same = {"dtype": dtype, "capacity": 64, "store": tmp_path / "kernels.json"}  # one micro-test
    model = random_model("tiny", **same)
    settings = {"exit": "schedule", "options": {"exit_layers": [8, 3, 8, 2, 1, 8]}, "seed": 1}
    base = river_core.generate(model, [5, 3, 9], max_new_tokens=9, **settings)
    straight = random_model("tiny", **same, resident_layers=3)
    assert straight.resident == 3
    model.set_resident(3)
    forced = [river_core.generate(m, [5, 3, 9], max_new_tokens=9) for m in (model, straight)]
    assert shown(forced[0]) == shown(forced[1])
    for m in (model, straight):
        m.set_resident(8)
        assert shown(river_core.generate(m, [5, 3, 9], max_new_tokens=9, **settings)) == shown(base)
