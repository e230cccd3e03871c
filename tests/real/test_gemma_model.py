"""Gemma 3 270M through our loop, where it is cached: equal to transformers, river and all."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import river_core
from river_core import packaged
from river_core.model import RiverModel
from river_core.settings import QuantSpec
from tests.tiny.slow_reference import MixedReference

PROMPT = "Question: Why is the sky blue?\nAnswer:"


@pytest.fixture(scope="module")
def folder() -> Path:
    if not packaged.is_ready(packaged.GEMMA3):
        pytest.skip("Gemma 3 270M is not in the cache (see test_gemma_folder.py)")
    return packaged.packaged_folder(packaged.GEMMA3)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def identical(folder: Path) -> RiverModel:
    """fp32, the river its backbone."""
    name = packaged.GEMMA3.name
    return river_core.load(name, dtype="float32", river=QuantSpec(bits=16), capacity=640)


def test_greedy_tokens_equal_transformers(identical: RiverModel, reference: Any) -> None:
    ids = identical.tokenizer.encode(PROMPT)
    out = reference.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False)
    run = river_core.generate(identical, PROMPT, policy="backbone", max_new_tokens=40)
    assert list(run.prompt.token_ids) == ids
    assert [t.token_id for t in run.tokens] == out[0, len(ids) :].tolist()


def test_logits_within_5e4_beyond_the_window(identical: RiverModel, reference: Any) -> None:
    """540 tokens, where most layers see 512: scaled by the logits' own spread."""
    text = "The river runs past the old mill and the green hills. " * 60
    ids = identical.tokenizer.encode(text)[:540]
    run = river_core.teacher_forced(identical, ids[:533], ids[533:], policy="backbone")
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0, 532:-1]
    assert run.logits is not None
    assert (run.logits - expected).abs().max() < 5e-4 * expected.std()


def test_identical_river_equals_backbone(identical: RiverModel) -> None:
    base = river_core.generate(identical, PROMPT, policy="backbone", max_new_tokens=12)
    for seed in range(6):
        exits = random.Random(seed).choices(range(1, 19), k=12)
        run = river_core.generate(
            identical,
            PROMPT,
            exit="schedule",
            options={"exit_layers": exits},
            max_new_tokens=12,
            full_trace=False,
        )
        assert [t.token_id for t in run.tokens] == [t.token_id for t in base.tokens], seed
        assert [t.exit_layer for t in run.tokens] == exits[: len(run.tokens)]


def test_quantised_river_equals_the_slow_reference(folder: Path, reference: Any) -> None:
    hqq = QuantSpec()
    model = river_core.load(packaged.GEMMA3.name, dtype="float32", river=hqq, capacity=640)
    ids = model.tokenizer.encode(PROMPT)
    exits = [3, 1, 6, 18, 2, 4]
    expected, logits = MixedReference(reference, hqq).greedy(ids, exits)
    settings: dict[str, Any] = {"exit": "schedule", "options": {"exit_layers": exits}}
    run = river_core.teacher_forced(model, ids, expected, **settings)
    assert run.logits is not None
    assert (run.logits - logits).abs().max() < 1e-3 * logits.std()
    assert [t.alternatives[0][0] for t in run.tokens] == expected
