"""calibrate on a tiny model: what it stores is what runs say; "auto" takes it from there."""

from __future__ import annotations

import importlib
import shutil
from dataclasses import replace

import pytest
import torch

import river_core
from river_core.calibrate import LEVELS, estimated_depth
from river_core.calibration_store import Point
from river_core.errors import RecordError, RiverError, SettingsError
from tests.tiny.tiny_models import TINY, prompt

TOKENS, LAYERS = 10, 8


@pytest.fixture(scope="module")
def prompts(tiny_deep):
    base = prompt(tiny_deep.config, 12)
    return [base[:7], base[5:], base[3:9]]


@pytest.fixture(scope="module")
def tiny_deep(tiny_by_name):
    return tiny_by_name(next(c for c in TINY if c.name == "deep-untied"))


@pytest.fixture(scope="module")
def model(tiny_deep):
    """Its own loaded model, whose calibration no other test stores."""
    return river_core.load(str(tiny_deep.folder), device="cpu", dtype="float32", entry_layer=3)


@pytest.fixture(scope="module")
def measured(model, prompts):
    return river_core.calibrate(model, prompts=prompts, tokens=TOKENS)


@pytest.fixture
def store(model, measured):
    """The model's file, put right again afterwards."""
    yield model.info.calibration
    model.info.calibration.save(measured)


def point(threshold, match):
    """A measured point of which only these two matter."""
    return Point(threshold, 3.0, match, 0.1, (1,) * LAYERS)


def references(model, prompts):
    for ids in prompts:
        free = river_core.generate(model, ids, policy="backbone", max_new_tokens=TOKENS)
        forced = [t.token_id for t in free.tokens]
        yield ids, forced, river_core.teacher_forced(model, ids, forced, policy="backbone")


def test_what_is_returned_is_what_is_stored(model, measured):
    assert model.info.calibration.load() == measured
    assert measured.passes == 3 * TOKENS
    assert measured.prefill == river_core.POLICIES["river"].prefills[0]
    assert len(measured.quantiles) == model.num_layers
    thresholds = [p.threshold for p in measured.points]
    assert thresholds == sorted(set(thresholds))
    assert {0.5, 1.0} < set(thresholds)
    assert len(thresholds) >= 5  # random similarities spread: the grid does too


def test_one_point_again_by_hand(model, measured, prompts):
    """The point nearest half depth, from teacher_forced and compare."""
    half = model.num_layers / 2
    point = min(measured.points, key=lambda p: abs(p.mean_exit_layer - half))
    same, kl, exits = 0, [], []
    for ids, forced, reference in references(model, prompts):
        run = river_core.teacher_forced(model, ids, forced, threshold=point.threshold)
        found = river_core.compare(reference, run)
        same += round(found.match * len(forced))
        kl += [found.kl] * len(forced)
        exits += [t.exit_layer for t in run.tokens[1:]]
    assert len(set(exits)) > 1
    assert point.match == pytest.approx(same / len(kl), abs=1e-6)
    assert point.kl == pytest.approx(sum(kl) / len(kl), abs=1e-6)
    assert point.mean_exit_layer == pytest.approx(sum(exits) / len(exits), abs=1e-6)
    assert point.exits == tuple(exits.count(layer) for layer in range(1, model.num_layers + 1))


def test_quantiles_are_those_of_the_full_depth_passes(model, measured, prompts):
    rows = [t.similarities for _, _, run in references(model, prompts) for t in run.tokens[1:]]
    traces = torch.tensor(rows, dtype=torch.float64)
    for layer, row in enumerate(measured.quantiles):
        ranked = traces[:, layer].sort().values
        for level, value in zip(LEVELS, row, strict=True):
            at = level / 100 * (len(ranked) - 1)
            low, part = int(at), at - int(at)
            high = ranked[min(low + 1, len(ranked) - 1)]
            assert value == pytest.approx(float(ranked[low] * (1 - part) + high * part), abs=1e-6)


def test_never_leaving_is_the_backbone(model, measured):
    last = measured.points[-1]
    layers, passes = model.num_layers, 3 * (TOKENS - 1)
    assert last == Point(1.0, float(layers), 1.0, 0.0, (*[0] * (layers - 1), passes))


def test_twice_gives_the_same(model, measured, prompts):
    again = river_core.calibrate(model, prompts=prompts, tokens=TOKENS)
    assert again == measured


def test_estimated_depth_by_hand():
    traces = torch.tensor([[0.9, 0.2, 0.8, 0.9], [0.1, 0.3, 0.4, 0.9]], dtype=torch.float64)
    assert estimated_depth(traces, 0.5, 2) == (1 + 4) / 2
    assert estimated_depth(traces, 0.5, 3) == (3 + 4) / 2  # layer 1 may not be left
    assert estimated_depth(traces, 0.8, 3) == 4  # strictly greater
    assert estimated_depth(traces, 0.25, 2) == (1 + 2) / 2
    assert estimated_depth(traces, 1.0, 2) == 4


def test_auto_takes_the_smallest_that_meets_the_target(model, store, measured, prompts):
    points = (point(0.21, 0.9), point(0.43, 0.97), point(1.0, 1.0))
    store.save(replace(measured, points=points))
    for target, threshold in ((0.9, 0.21), (0.95, 0.43)):
        auto = {"threshold": "auto", "target_match": target}
        run = river_core.generate(model, prompts[0], max_new_tokens=6, **auto)
        same = river_core.generate(model, prompts[0], max_new_tokens=6, threshold=threshold)
        assert run.header.settings["threshold"] == threshold
        assert run.header.settings["threshold_from"] == f"auto, target_match {target}"
        assert "threshold_from" not in same.header.settings
        assert run.header.notes == model.info.notes
        assert [t.threshold for t in run.tokens] == [threshold] * 6
        assert [(t.token_id, t.path) for t in run.tokens] == [
            (t.token_id, t.path) for t in same.tokens
        ]


def test_auto_says_when_none_meets_the_target(model, store, measured, prompts):
    points = (point(0.21, 0.9), point(1.0, 1.0))
    store.save(replace(measured, points=points))
    run = river_core.generate(model, prompts[0], max_new_tokens=3, threshold="auto")
    assert run.header.settings["threshold"] == 1.0
    assert run.header.notes[-1].startswith("no calibrated threshold reaches a match of 0.98")
    assert {t.exit_layer for t in run.tokens} == {model.num_layers}


def test_auto_says_when_the_prefill_is_another(model, store, measured, prompts):
    settings = {"threshold": "auto", "target_match": 0.0, "max_new_tokens": 2}
    run = river_core.generate(model, prompts[0], prefill="full", **settings)
    assert "calibrated with prefill 'exit'" in run.header.notes[-1]


def test_auto_keeps_a_live_threshold_a_number(model, measured, prompts):
    control = river_core.Control()
    with pytest.raises(SettingsError, match="threshold is 'auto'; use a number"):
        control.threshold = "auto"
    assert control.threshold is None


def test_auto_is_refused_where_it_means_nothing(model, measured, prompts):
    fixed = {"exit": "fixed", "options": {"exit_layer": 4}}
    for settings in ({"policy": "backbone"}, {"policy": "full-quant"}, fixed):
        with pytest.raises(SettingsError, match="for exits by similarity"):
            river_core.stream(model, prompts[0], threshold="auto", **settings)


def test_auto_without_a_calibration_says_what_to_do(model, store, prompts):
    store.path.unlink()
    with pytest.raises(SettingsError, match=r"river_core calibrate` or river_core.calibrate\("):
        river_core.stream(model, prompts[0], threshold="auto")
    store.path.write_text("{", encoding="utf-8")
    with pytest.raises(RecordError, match="damaged"):
        river_core.stream(model, prompts[0], threshold="auto")
    assert len(river_core.generate(model, prompts[0], max_new_tokens=2).tokens) == 2


def test_other_weights_have_another_file(model, tiny_deep, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "changed"
    shutil.copytree(tiny_deep.folder, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][0, 0] += 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    other = river_core.load(str(folder), device="cpu", dtype="float32", entry_layer=3)
    assert other.info.calibration.path != model.info.calibration.path
    with pytest.raises(SettingsError, match="no calibration is stored"):
        river_core.stream(other, [1, 2, 3], threshold="auto")


def test_a_stopped_calibration_stores_nothing(model, store, prompts):
    store.path.unlink()
    said = []

    def stop():
        return len(said) == 5

    with pytest.raises(RiverError, match="stopped; nothing was stored"):
        river_core.calibrate(
            model,
            prompts=prompts,
            tokens=TOKENS,
            progress=lambda text, share: said.append(share),
            cancelled=stop,
        )
    assert len(said) == 5
    assert said == sorted(said)
    assert store.load() is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tokens": 1}, "tokens is 1"),
        ({"tokens": 2.5}, "tokens is 2.5"),
        ({"prompts": []}, "prompts is empty"),
        ({}, "no tokenizer"),
    ],
    ids=str,
)
def test_bad_calls(model, settings, words):
    with pytest.raises(SettingsError, match=words):
        river_core.calibrate(model, **settings)


def test_answers_of_one_token_are_refused(model, prompts, monkeypatch):
    monkeypatch.setattr(model, "eos_ids", tuple(range(model.vocab)))
    with pytest.raises(RiverError, match="ended with its first token"):
        river_core.calibrate(model, prompts=prompts, tokens=TOKENS)


def test_a_model_without_a_file_is_refused(model, prompts, monkeypatch):
    monkeypatch.setattr(model, "info", replace(model.info, calibration=None))
    with pytest.raises(SettingsError, match="cannot be stored"):
        river_core.calibrate(model, prompts=prompts)
    with pytest.raises(SettingsError, match="no calibration is stored"):
        river_core.stream(model, prompts[0], threshold="auto")


@pytest.mark.parametrize("name", ["calibrate", "compare"])
def test_a_public_name_stays_the_function(name):
    """The file of the same name, once it is imported, does not take its place."""
    module = importlib.import_module(f"river_core.{name}")
    assert getattr(river_core, name) is getattr(module, name)
