"""Property 1: never exiting equals Hugging Face, token for token, logits within 1e-4."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import river_core
from river_core.settings import QuantSpec
from tests.tiny.tiny_models import TINY, prompt, save

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
    "change",
    [{"rope_theta": 500000.0}, {"eps": 1e-1}, {"kv_heads": 1}, {"tied": False}],
    ids=lambda c: next(iter(c)),
)
def test_a_wrong_option_moves_the_logits(change, tmp_path: Path):
    """The tiny models can show a fault: one option wrong moves the logits by more than 1e-2."""
    right = replace(TINY[0], kv_heads=2)
    save(right, tmp_path / "right")
    wrong = save(replace(right, **change), tmp_path / "wrong")
    ids = prompt(right, 12)
    model = river_core.load(str(tmp_path / "right"), dtype="float32", river=QuantSpec(bits=16))
    run = river_core.teacher_forced(model, ids, [1, 2, 3], policy="backbone")
    with torch.no_grad():
        other = wrong(torch.tensor([[*ids, 1, 2]])).logits[0, -3:]
    assert (run.logits - other).abs().max() > 1e-2
