"""Backbone offloading: what ends, what is refused and in which words; "auto"; changed files."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import river_core
from river_core.calibration_store import Calibration, Point
from river_core.errors import ModelUnavailable, RiverError, SettingsError
from river_core.kv_error import kv_error
from river_core.metrics import mean_similarity_by_layer
from river_core.policies import POLICIES
from river_core.settings import QuantSpec
from river_core.sweep import sweep
from tests.tiny.resident import QUIET, fresh, ids, shown
from tests.tiny.tiny_models import TINY

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
    assert part.header.notes[-1].startswith(f"2 of {model.num_layers} backbone layers are resident")
    assert part.full_trace == tuple(row[:2] for row in whole)
    assert mean_similarity_by_layer([part])[2:] == (None,) * (model.num_layers - 2)


# Files


def test_a_layer_whose_file_is_gone_or_changed_does_not_come_back(one_tiny, tmp_path):

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
