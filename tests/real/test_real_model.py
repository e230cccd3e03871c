"""Properties 1, 2, 3 and 5 on the packaged model, fp32."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

import river_core
from river_core.footprint import Layout, footprint
from river_core.inventory import find_sizes
from river_core.settings import QuantSpec
from river_core.sweep import bundled_prompts
from tests.tiny.slow_reference import MixedReference

PROMPTS = bundled_prompts()


def tokens_of(run):
    return [t.token_id for t in run.tokens]


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: p[:16])
def test_64_greedy_tokens_equal_transformers(load_packaged, transformers_model, prompt, request):
    if prompt not in PROMPTS[:2] and not request.config.getoption("--whole"):
        pytest.skip("two prompts without --whole")
    model = load_packaged()
    run = river_core.generate(model, prompt, policy="backbone", max_new_tokens=64, full_trace=False)
    ids = list(run.prompt.token_ids)
    out = transformers_model.generate(torch.tensor([ids]), max_new_tokens=64, do_sample=False)
    assert tokens_of(run) == out[0, len(ids) :].tolist()


def test_logits_within_5e4(load_packaged, transformers_model):
    model = load_packaged()
    forced = list(model.tokenizer("Rain is made of water that rose as vapour.")["input_ids"])
    run = river_core.teacher_forced(model, PROMPTS[0], forced, policy="backbone")
    ids = torch.tensor([[*run.prompt.token_ids, *forced]])
    with torch.no_grad():
        full = transformers_model(ids).logits[0]
    first = len(run.prompt.token_ids) - 1
    assert (run.logits - full[first : first + len(forced)]).abs().max() < 5e-4


def test_chat_prompt_is_what_transformers_encodes(load_packaged):
    model = load_packaged()
    run = river_core.generate(model, PROMPTS[0], max_new_tokens=1)
    expected = model.tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPTS[0]}], add_generation_prompt=True, return_dict=False
    )
    assert list(run.prompt.token_ids) == expected
    assert run.prompt.chat
    assert "".join(run.prompt.texts) == model.tokenizer.decode(expected)


def test_identical_river_equals_backbone_under_50_schedules(load_packaged):
    model = load_packaged(bits=16)
    count, layers = 6, model.num_layers
    base = river_core.generate(
        model, PROMPTS[2], policy="backbone", max_new_tokens=count, full_trace=False
    )
    for seed in range(50):
        schedule = random.Random(seed).choices(range(1, layers + 1), k=count)
        run = river_core.generate(
            model,
            PROMPTS[2],
            exit="schedule",
            options={"exit_layers": schedule},
            prefill=("exit", "full")[seed % 2],
            max_new_tokens=count,
            full_trace=False,
        )
        assert tokens_of(run) == tokens_of(base), seed
        assert [t.exit_layer for t in run.tokens[1:]] == schedule[1:]


def test_quantised_river_equals_the_slow_reference(load_packaged, transformers_model):
    model = load_packaged()
    schedule = [2, 1, 30, 7, 3, 15, 2, 28, 1, 4]
    settings = {"exit": "schedule", "options": {"exit_layers": schedule}}
    reference = MixedReference(transformers_model, QuantSpec())
    run = river_core.generate(model, PROMPTS[0], max_new_tokens=len(schedule), **settings)
    expected, logits = reference.greedy(list(run.prompt.token_ids), schedule)
    assert tokens_of(run) == expected
    forced = river_core.teacher_forced(model, PROMPTS[0], expected, **settings)
    assert (forced.logits - logits).abs().max() < 2e-3


def test_eos_ends_the_answer_and_is_not_shown(load_packaged):
    model = load_packaged()
    prompt = "Answer with the single word yes. Is water wet?"
    run = river_core.generate(model, prompt, policy="backbone", max_new_tokens=200)
    assert run.summary.stop_reason == "eos"
    assert run.tokens[-1].token_id in model.eos_ids
    assert run.tokens[-1].text == ""
    assert "<|im_end|>" not in run.text


def test_stop_strings_end_the_answer_before_them(load_packaged):
    model = load_packaged()
    free = river_core.generate(model, PROMPTS[0], policy="backbone", max_new_tokens=30)
    stop = free.text[20:26]
    run = river_core.generate(model, PROMPTS[0], policy="backbone", max_new_tokens=30, stop=(stop,))
    assert run.summary.stop_reason == "stop"
    assert run.text == free.text[: free.text.index(stop)]


def test_packaged_defaults(load_packaged):
    """16 bits by micro-test, a note of where weights come from, memory that adds up."""
    model = load_packaged(dtype="auto")
    assert "4 bits, group 32" in model.origin
    run = river_core.generate(model, PROMPTS[0], max_new_tokens=12)
    again = river_core.generate(model, PROMPTS[0], max_new_tokens=12)
    assert [replace(t, seconds=0.0) for t in run.tokens] == [
        replace(t, seconds=0.0) for t in again.tokens
    ]
    memory = run.summary.memory
    assert memory["head"] == 0  # tied: counted once, as the embedding
    weights = 30 * (960 * 576 + 576 * 576 + 3072 * 576 + 576 * 1536)
    assert memory["backbone"] == weights * model.embedding.element_size()
    assert memory["kv"] == 2 * 30 * 3 * 1024 * 64 * model.cache.k.element_size()
    assert run.header.kernels["execution"]
    if run.header.kernels["960x576 int4"] in ("aten-int4", "native-int4"):
        assert memory["river"] == pytest.approx(weights / 30 * 29 * 4.5 / 8, rel=0.001)


def test_memory_worked_out_from_the_configuration_is_the_loaded_models(load_packaged):
    model = load_packaged(dtype="auto")
    if model.embedding.element_size() != 2 or "int4" not in model.info.kernels["960x576 int4"]:
        pytest.skip("this machine runs the packaged model in other bits than 16 and 4")
    first = 2 if model.river[0] is None else 1  # full quantization builds the twin of layer 1
    spec, _ = find_sizes(model.info.name)
    size = footprint(spec, Layout(entry_layer=first), tokens=model.capacity)
    assert size.parts == model.memory()
