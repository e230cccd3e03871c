"""Property 1: never exiting equals Hugging Face, token for token, logits within 1e-4."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import river_core
from river_core.settings import QuantSpec
from tests.tiny.tiny_models import TINY, TinyConfig, prompt, save

TOKENS = 40


def hf_greedy(model, ids, count):
    out = model.generate(
        torch.tensor([ids]), max_new_tokens=count, min_new_tokens=count, do_sample=False
    )
    return out[0, len(ids) :].tolist()


def test_greedy_tokens_equal(tiny):
    model = tiny.load()
    run = river_core.generate(model, tiny.prompt, policy="backbone", max_new_tokens=TOKENS)
    assert [t.token_id for t in run.tokens] == hf_greedy(tiny.reference, tiny.prompt, TOKENS)


def test_logits_within_1e4(tiny):
    model = tiny.load()
    forced = prompt(replace(tiny.config, seed=77), 20)
    run = river_core.teacher_forced(model, tiny.prompt, forced, policy="backbone")
    with torch.no_grad():
        full = tiny.reference(torch.tensor([tiny.prompt + forced])).logits[0]
    first = len(tiny.prompt) - 1
    assert (run.logits - full[first : first + 20]).abs().max() < 1e-4


def test_threshold_one_never_leaves(tiny):
    model = tiny.load(bits=4)
    run = river_core.generate(model, tiny.prompt, threshold=1.0, max_new_tokens=TOKENS)
    assert {t.exit_layer for t in run.tokens} == {tiny.config.layers}
    assert [t.token_id for t in run.tokens] == hf_greedy(tiny.reference, tiny.prompt, TOKENS)


@pytest.mark.parametrize(
    "name, change",
    [
        ("mha-tied", {"rope_theta": 500000.0}),
        ("mha-tied", {"eps": 1e-1}),
        ("mha-tied", {"kv_heads": 1}),
        ("mha-tied", {"tied": False}),
        ("qwen2", {"rope_theta": 500000.0}),
        ("qwen3", {"rope_theta": 500000.0}),
        ("mistral", {"rope_theta": 500000.0}),
        ("mistral", {"window": 8}),
        ("mistral", {"window": 10}),
        ("mistral", {"window": None}),
    ],
    ids=str,
)
def test_a_wrong_option_moves_the_logits(name, change, tmp_path: Path):
    """The tiny models can show a fault: one option wrong moves the logits by more than 1e-2."""
    right = next(config for config in TINY if config.name == name)
    if name == "mha-tied":
        right = replace(right, kv_heads=2)
    save(right, tmp_path / "right")
    wrong = save(replace(right, **change), tmp_path / "wrong")
    ids = prompt(right, 12)
    model = river_core.load(str(tmp_path / "right"), dtype="float32", river=QuantSpec(bits=16))
    run = river_core.teacher_forced(model, ids, [1, 2, 3], policy="backbone")
    with torch.no_grad():
        other = wrong(torch.tensor([[*ids, 1, 2]])).logits[0, -3:]
    assert (run.logits - other).abs().max() > 1e-2


@pytest.mark.parametrize(
    "name, part",
    [
        *(("qwen2", f"{letter}_proj.bias") for letter in "qkv"),
        *(("qwen3", f"{letter}_norm") for letter in "qk"),
    ],
)
@pytest.mark.parametrize("fault", ["dropped", "shifted"])
def test_a_wrong_bias_or_norm_moves_the_logits(tiny_by_name, name, part, fault):
    """Left out, or a row too far: the logits of transformers move by more than 1e-2."""
    tiny = tiny_by_name(next(config for config in TINY if config.name == name))
    wrong = deepcopy(tiny.reference)
    found = [p for name, p in wrong.named_parameters() if part in name]
    assert len(found) == tiny.config.layers
    with torch.no_grad():
        for p in found:
            p.copy_(p.roll(1) if fault == "shifted" else torch.full_like(p, float("norm" in part)))
        other = wrong(torch.tensor([[*tiny.prompt, 1, 2]])).logits[0, -3:]
    run = river_core.teacher_forced(tiny.load(), tiny.prompt, [1, 2, 3], policy="backbone")
    assert (run.logits - other).abs().max() > 1e-2


def test_a_window_that_holds_the_whole_cache_is_none(tmp_path: Path):
    """Then the block is the plain one, and the capacity decides."""
    config = TinyConfig("mistral", layers=2, family="mistral", window=16)
    save(config, tmp_path)
    wide, narrow = (
        river_core.load(tmp_path, dtype="float32", river=QuantSpec(bits=16), capacity=n)
        for n in (17, 16)
    )
    assert wide.shape.window == 16 and wide.shape.options == ("a sliding window",)
    assert narrow.shape.window is None and narrow.shape.options == ()
    forced = prompt(config, 9)
    logits = [
        river_core.teacher_forced(model, prompt(config), forced, policy="backbone").logits
        for model in (wide, narrow)
    ]
    assert (logits[0] - logits[1]).abs().max() < 1e-5


def test_biases_and_norms_are_shared_and_weighed(tiny):
    """Both banks hold the same tensors, and the ledger counts them once."""
    model = tiny.load(bits=4)
    own, twin = model.backbone[-1], model.twin(model.num_layers)
    assert own.small.keys() == twin.small.keys() == model.shape.vectors.keys()
    assert all(tensor is twin.small[name] for name, tensor in own.small.items())
    shape = model.shape
    norms = {"before": 2, "after": 2, "both": 4}[shape.norms]
    numbers = norms * shape.hidden + shape.qkv_bias * shape.matrices["qkv"][0]
    numbers += bool(shape.qk_norm) * (shape.heads + shape.kv_heads) * shape.head_dim
    assert model.memory()["norms"] == 4 * (model.num_layers * numbers + shape.hidden)
