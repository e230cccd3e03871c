"""Backbone offloading: what leaves the device, what comes back, and what runs say meanwhile."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import river_core
from river_core.calibration_store import Calibration, Point
from river_core.errors import ModelUnavailable, RiverError, SettingsError
from river_core.execution import open_execution
from river_core.execution.fused import can_fuse
from river_core.kv_error import kv_error
from river_core.metrics import mean_similarity_by_layer
from river_core.policies import POLICIES
from river_core.random_model import random_model
from river_core.settings import QuantSpec
from river_core.sweep import sweep
from tests.tiny.tiny_models import TINY

TOKENS = 10
QUIET = {"max_new_tokens": TOKENS, "full_trace": False}
BOTH = pytest.mark.parametrize("bits", [16, 4])


@pytest.fixture
def keeps_all(tiny):
    """The tiny model, whatever a test evicts, whole again afterwards."""
    yield tiny
    for model in tiny.loaded.values():
        model.set_resident(model.num_layers)


def fresh(tiny, **settings):
    """A model of its own, fp32 on the CPU."""
    return river_core.load(str(tiny.folder), device="cpu", dtype="float32", **settings)


def shown(run):
    """What a run says of each token, times apart."""
    return [replace(t, seconds=0.0) for t in run.tokens]


def ids(run):
    return [t.token_id for t in run.tokens]


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
def test_loading_with_a_number_is_loading_and_evicting(tiny, bits):
    river = QuantSpec(bits=bits)
    straight, later = fresh(tiny, river=river, resident_layers=2), fresh(tiny, river=river)
    later.set_resident(2)
    runs = [river_core.generate(m, tiny.prompt, threshold=0.5, **QUIET) for m in (straight, later)]
    assert shown(runs[0]) == shown(runs[1])
    assert straight.memory() == later.memory()
    assert straight.info == replace(later.info, calibration=straight.info.calibration)
    whole = tiny.load(bits=bits)
    straight.set_resident(whole.num_layers)
    assert straight.memory() == {**whole.memory(), "kv": straight.memory()["kv"]}
    for ours, theirs in zip(straight.backbone, whole.backbone, strict=True):
        for name, linear in ours.linears.items():
            assert torch.equal(linear.dense(), theirs.linears[name].dense())
        for name, tensor in ours.small.items():
            assert torch.equal(tensor, theirs.small[name])


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
def test_a_random_model_comes_back_as_it_was(dtype):
    model = random_model("tiny", dtype=dtype, capacity=64)
    settings = {"exit": "schedule", "options": {"exit_layers": [8, 3, 8, 2, 1, 8]}, "seed": 1}
    base = river_core.generate(model, [5, 3, 9], max_new_tokens=9, **settings)
    straight = random_model("tiny", dtype=dtype, capacity=64, resident_layers=3)
    assert straight.resident == 3
    model.set_resident(3)
    forced = [river_core.generate(m, [5, 3, 9], max_new_tokens=9) for m in (model, straight)]
    assert shown(forced[0]) == shown(forced[1])
    for m in (model, straight):
        m.set_resident(8)
        assert shown(river_core.generate(m, [5, 3, 9], max_new_tokens=9, **settings)) == shown(base)


# Runs while it changes


def test_a_run_ends_when_the_resident_layers_change(one_tiny):
    model = fresh(one_tiny)
    begun, made = (river_core.stream(model, one_tiny.prompt, **QUIET) for _ in range(2))
    for _ in range(3):
        next(begun)
    model.set_resident(2)
    with pytest.raises(RiverError, match="resident layers changed; this run cannot go on"):
        next(begun)
    with pytest.raises(RiverError, match="resident layers changed; make this run again"):
        next(made)
    begun = river_core.stream(model, one_tiny.prompt, **QUIET)
    for _ in range(2):
        next(begun)
    model.set_resident(3)
    model.set_resident(2)
    with pytest.raises(RiverError, match="another run started on this model, or its resident"):
        next(begun)
    begun = river_core.stream(model, one_tiny.prompt, **QUIET)
    next(begun)
    model.set_resident(2)  # no change
    assert len(list(begun)) > 1


# What cannot be


def test_numbers_that_are_not_possible(one_tiny):
    model = fresh(one_tiny, entry_layer=3)
    layers = model.num_layers
    for bad in (0, 1, layers + 1, True, 2.0, "all"):
        with pytest.raises(SettingsError, match=r"resident_layers is .*\.$"):
            model.set_resident(bad)
    with pytest.raises(SettingsError, match=rf"keep 2 .* to {layers} "):
        model.set_resident(1)
    with pytest.raises(SettingsError, match=rf"keep 2 .* to {layers} "):
        fresh(one_tiny, entry_layer=3, resident_layers=layers + 1)
    assert model.resident == layers
    model.set_resident(2)
    assert model.resident == 2


WHOLE = [name for name, row in POLICIES.items() if not row.offloads]


@pytest.mark.parametrize("policy", WHOLE)
def test_policies_that_need_the_backbone_say_so(one_tiny, policy):
    model = fresh(one_tiny, resident_layers=2)
    before = model.cache.k.clone()
    with pytest.raises(SettingsError, match=rf"'{policy}' needs all .* model\.set_resident\("):
        river_core.generate(model, one_tiny.prompt, policy=policy, **QUIET)
    assert torch.equal(model.cache.k, before)
    model.set_resident(model.num_layers)
    river_core.generate(model, one_tiny.prompt, policy=policy, **QUIET)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in WHOLE])
def test_the_others_run(one_tiny, policy):
    model = fresh(one_tiny, river=QuantSpec(bits=16), resident_layers=2)
    options = {"options": {"exit_layer": 2}, "head": "river"} if policy == "fixed-exit" else {}
    run = river_core.generate(model, one_tiny.prompt, policy=policy, **QUIET, **options)
    whole = one_tiny.load(bits=16)
    base = river_core.generate(whole, one_tiny.prompt, policy="backbone", **QUIET)
    assert ids(run) == ids(base)
    assert max(t.exit_layer for t in run.tokens) <= 2


@pytest.mark.parametrize(
    "settings",
    [
        {"exit": "fixed", "options": {"exit_layer": 3}},
        {"exit": "schedule", "options": {"exit_layers": [1, 2, 3]}},
        {"policy": "fixed-exit", "options": {"exit_layer": 3}},
        {"policy": "fixed-exit", "options": {"size": "L"}},
    ],
    ids=str,
)
def test_exits_beyond_are_refused_with_the_range(one_tiny, settings):
    model = fresh(one_tiny, resident_layers=2)
    with pytest.raises(SettingsError, match=r"use 1 to 2 \(2 of \d+ backbone layers are resident"):
        river_core.stream(model, one_tiny.prompt, **settings)
    with pytest.raises(SettingsError, match="'decay' is 3; use 1 to 2"):
        river_core.stream(model, one_tiny.prompt, policy="mono-decreasing", options={"decay": 3})


def test_studies_need_the_backbone(one_tiny):
    model, asked = fresh(one_tiny, resident_layers=2), []
    prompt = one_tiny.prompt
    run = river_core.generate(model, prompt, **QUIET)
    refused = [
        lambda: river_core.calibrate(model, prompts=[prompt], progress=lambda *a: asked.append(a)),
        lambda: sweep(model, [prompt], (0.5,), 4, lambda *a: asked.append(a)),
        lambda: river_core.earliest_safe_exits(model, run),
        lambda: kv_error(model, prompt, max_new_tokens=4),
    ]
    for call in refused:
        with pytest.raises(
            SettingsError, match=r"needs all \d layers?|needs all \d backbone"
        ) as caught:
            call()
        assert str(caught.value).count("model.set_resident(") == 1
    assert not asked


def test_the_full_trace_is_of_the_resident_layers(one_tiny):
    model = fresh(one_tiny)
    forced = [3] * 5
    whole = river_core.teacher_forced(model, one_tiny.prompt, forced).full_trace
    model.set_resident(2)
    part = river_core.teacher_forced(model, one_tiny.prompt, forced)
    assert part.full_trace == tuple(row[:2] for row in whole)
    assert mean_similarity_by_layer([part])[2:] == (None,) * (model.num_layers - 2)


# Files


def test_a_layer_whose_file_is_gone_or_changed_does_not_come_back(one_tiny, tmp_path):
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(one_tiny.folder, folder)
    model = river_core.load(str(folder), device="cpu", dtype="float32", resident_layers=2)
    base = river_core.generate(model, one_tiny.prompt, **QUIET)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    tensors = load_file(weights)
    tensors["model.layers.3.mlp.down_proj.weight"][0, 0] += 1
    for change in (
        weights.unlink,
        lambda: weights.write_bytes(whole[: len(whole) // 2]),
        lambda: save_file(tensors, weights, metadata={"format": "pt"}),
    ):
        change()
        with pytest.raises(ModelUnavailable, match=r"model( anew| again)\.$") as caught:
            model.set_resident(model.num_layers)
        assert str(folder) in str(caught.value)
        assert model.resident == 2
        assert shown(river_core.generate(model, one_tiny.prompt, **QUIET)) == shown(base)
    weights.write_bytes(whole)
    model.set_resident(model.num_layers)
    assert model.resident == model.num_layers


def test_tensors_that_no_part_uses_are_still_an_error(one_tiny, tmp_path):
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(one_tiny.folder, folder)
    tensors = load_file(folder / "model.safetensors") | {"model.layers.0.odd": torch.zeros(2)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelUnavailable, match=r"hold 1 tensors .*layers\.0\.odd"):
        river_core.load(str(folder), device="cpu", dtype="float32", resident_layers=1)


# By the calibration


def calibration(layers, exits, thresholds=(0.3, 0.7), matches=(0.9, 0.99)):
    points = [Point(t, 2.0, m, 0.0, e) for t, m, e in zip(thresholds, matches, exits, strict=True)]
    last = Point(1.0, float(layers), 1.0, 0.0, (*[0] * (layers - 1), 100))
    return Calibration((50.0,), ((0.5,),) * layers, (*points, last), "exit", 100, {})


def test_auto_covers_the_calibrated_exits(tiny_by_name):
    tiny = tiny_by_name(next(c for c in TINY if c.name == "deep-untied"))
    model = fresh(tiny, entry_layer=3, river=QuantSpec(group_size=32))
    file, counts = model.info.calibration, (0, 60, 34, 1, 5, 0, 0, 0)
    for asked in (lambda: model.set_resident("auto"), lambda: load_auto(tiny)):
        with pytest.raises(SettingsError, match=r"no calibration is stored.*river_core calibrate"):
            asked()
    assert model.resident == 8
    file.save(calibration(8, [(0, 100, *[0] * 6), counts]))
    model.set_resident("auto")
    assert model.resident == 4  # 95 of 100
    assert load_auto(tiny).resident == 4
    file.save(calibration(8, [(90, 10, *[0] * 6), counts], matches=(0.985, 0.99)))
    model.set_resident("auto")
    assert model.resident == 2  # of the lower threshold; 2 is the least with entry layer 3
    file.save(calibration(8, [counts, (0, 50, 0, 0, 0, 50, 0, 0)], matches=(0.9, 0.9)))
    model.set_resident("auto")
    assert model.resident == 6  # none meets the target: at 0.7, the first above the default 0.5


def load_auto(tiny):
    return fresh(tiny, entry_layer=3, river=QuantSpec(group_size=32), resident_layers="auto")


def test_auto_of_a_measured_calibration(tiny_by_name):
    tiny = tiny_by_name(next(c for c in TINY if c.name == "deep-untied"))
    model = fresh(tiny, entry_layer=2, river=QuantSpec(group_size=32))
    found = river_core.calibrate(model, prompts=[tiny.prompt], tokens=8)
    best = found.smallest_threshold(0.98)
    at = 0.5 if best is None else best
    exits = next(p.exits for p in found.points if p.threshold >= at)
    model.set_resident("auto")
    assert sum(exits[: model.resident]) >= 0.95 * sum(exits)
    assert model.resident == 1 or sum(exits[: model.resident - 1]) < 0.95 * sum(exits)
    run = river_core.generate(model, tiny.prompt, threshold="auto", **QUIET)
    assert max(t.exit_layer for t in run.tokens) <= model.resident
