"""Properties 2 and 3: identical rivers change nothing; quantised ones equal a slow reference."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import river_core
from river_core.random_model import random_model
from river_core.settings import QuantSpec
from river_core.shapes import SHAPES
from tests.tiny.slow_reference import MixedReference
from tests.whole import in_full

TOKENS = 16


def tokens_of(run):
    return [t.token_id for t in run.tokens]


def random_schedule(seed: int, layers: int, count: int = TOKENS) -> list[int]:
    return random.Random(seed).choices(range(1, layers + 1), k=count)


@pytest.mark.parametrize("seeds", [range(15), in_full(range(15, 50))], ids=str)
def test_identical_river_equals_backbone_under_50_schedules(tiny, seeds):
    model, count = tiny.load(bits=16), 9
    base = river_core.generate(model, tiny.prompt, policy="backbone", max_new_tokens=count)
    for seed in seeds:
        schedule = random_schedule(seed, tiny.config.layers, count)
        prefill = ("exit", "full")[seed % 2]
        run = river_core.generate(
            model,
            tiny.prompt,
            exit="schedule",
            options={"exit_layers": schedule},
            prefill=prefill,
            max_new_tokens=count,
            full_trace=False,
        )
        assert tokens_of(run) == tokens_of(base), (seed, prefill)
        wanted = schedule if prefill == "exit" else [tiny.config.layers, *schedule[1:]]
        assert [t.exit_layer for t in run.tokens] == wanted


@pytest.mark.parametrize("threshold", [-1.0, 0.0, 0.2, 0.4, 0.6, 0.8, 0.95])
def test_identical_river_equals_backbone_at_any_threshold(tiny, threshold):
    model = tiny.load(bits=16)
    base = river_core.teacher_forced(model, tiny.prompt, [3] * TOKENS, policy="backbone")
    run = river_core.teacher_forced(model, tiny.prompt, [3] * TOKENS, threshold=threshold)
    assert (run.logits - base.logits).abs().max() < 1e-5


def test_identical_full_quantization_equals_backbone(tiny):
    model = tiny.load(bits=16)
    base = river_core.generate(model, tiny.prompt, policy="backbone", max_new_tokens=TOKENS)
    run = river_core.generate(model, tiny.prompt, policy="full-quant", max_new_tokens=TOKENS)
    assert tokens_of(run) == tokens_of(base)
    assert {t.exit_layer for t in run.tokens} == {0}


@pytest.mark.parametrize("seed", [0, in_full(1)])
def test_quantised_river_equals_the_slow_reference(tiny, seed):
    model = tiny.load(bits=4)
    reference = MixedReference(tiny.reference, QuantSpec())
    schedule = random_schedule(seed, tiny.config.layers)
    expected, logits = reference.greedy(tiny.prompt, schedule)
    settings = {"exit": "schedule", "options": {"exit_layers": schedule}}
    run = river_core.generate(model, tiny.prompt, max_new_tokens=TOKENS, **settings)
    assert tokens_of(run) == expected
    forced = river_core.teacher_forced(model, tiny.prompt, expected, **settings)
    assert (forced.logits - logits).abs().max() < 2e-4


@pytest.mark.few
def test_a_river_of_8_bits_equals_the_slow_reference(tiny):
    reference = MixedReference(tiny.reference, QuantSpec(bits=8))
    schedule = random_schedule(5, tiny.config.layers)
    expected, logits = reference.greedy(tiny.prompt, schedule)
    settings = {"exit": "schedule", "options": {"exit_layers": schedule}}
    forced = river_core.teacher_forced(tiny.load(bits=8), tiny.prompt, expected, **settings)
    assert (forced.logits - logits).abs().max() < 2e-4
    coarse = river_core.teacher_forced(tiny.load(bits=4), tiny.prompt, expected, **settings)
    assert (coarse.logits - logits).abs().max() > 1e-2


def test_the_quantised_river_is_not_the_backbone(tiny):
    """The slow reference can fail: with exits it differs from the backbone's own logits."""
    reference = MixedReference(tiny.reference, QuantSpec())
    layers = tiny.config.layers
    _, early = reference.greedy(tiny.prompt, [1] * 3)
    _, never = reference.greedy(tiny.prompt, [layers] * 3)
    assert (early - never).abs().max() > 1e-2


def test_full_quantization_equals_the_slow_reference(tiny):
    model = tiny.load(bits=4)
    expected, _ = MixedReference(tiny.reference, QuantSpec()).greedy(tiny.prompt, [0] * TOKENS)
    run = river_core.generate(model, tiny.prompt, policy="full-quant", max_new_tokens=TOKENS)
    assert tokens_of(run) == expected


@pytest.mark.parametrize("entry", [2, 3, 5])
def test_no_token_leaves_before_the_entry_layer(one_tiny, entry):
    model = one_tiny.load(bits=4, entry_layer=entry)
    run = river_core.generate(model, one_tiny.prompt, threshold=-1.0, max_new_tokens=5)
    assert {t.exit_layer for t in run.tokens} == {entry - 1}


def test_all_options_together():
    """Random weights with biases, q and k norms and a window: an identical river changes nothing,
    and any number of rows at once gives what single rows give."""
    block = replace(SHAPES["tiny"].block, qkv_bias=True, qk_norm="head", window=6)
    spec = replace(SHAPES["tiny"], block=block)
    model = random_model(spec, dtype="float32", river=QuantSpec(bits=16), capacity=64)
    assert len(model.shape.options) == 3
    ids = [(7 * n + 3) % model.vocab for n in range(20)]
    base = river_core.teacher_forced(model, ids[:1], ids[1:], policy="backbone")
    early = river_core.teacher_forced(model, ids[:1], ids[1:], threshold=-1.0)
    assert (early.logits - base.logits).abs().max() < 1e-5
    whole = river_core.teacher_forced(model, ids[:15], ids[15:], policy="backbone")
    assert (whole.logits - base.logits[14:]).abs().max() < 1e-4
