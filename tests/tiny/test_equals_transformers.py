"""Property 1: never exiting equals Hugging Face, token for token, logits within 1e-4."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import river_core
from river_core.settings import QuantSpec
from tests.tiny.tiny_models import GEMMA, LONGROPE, TINY, YARN, TinyConfig, prompt, save

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


HALVED = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 5.0]}


def _rope(parameters, **changes):
    return {"options": {"rope_parameters": parameters | changes, **_trained(parameters)}}


def _trained(parameters):
    """Phi 3 has the trained length once more outside its RoPE parameters."""
    trained = parameters["original_max_position_embeddings"]
    return {"original_max_position_embeddings": trained} if "long_factor" in parameters else {}


def _theta(kind, base):
    ropes = GEMMA["rope_parameters"]
    return {
        "options": GEMMA | {"rope_parameters": ropes | {kind: ropes[kind] | {"rope_theta": base}}}
    }


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
        ("qwen2-windows", {"options": {"use_sliding_window": True, "max_window_layers": 3}}),
        ("qwen2-windows", {"window": 8}),
        ("ministral3", _rope(YARN, factor=2.0)),
        ("ministral3", _rope(YARN, llama_4_scaling_beta=0.4)),
        ("ministral3", _rope(YARN, original_max_position_embeddings=17)),
        ("ministral3", _rope(YARN, mscale=0.5)),
        ("phi3", {"window": 10}),
        ("phi3", {"window": 12}),
        ("phi3", _rope(LONGROPE, rope_theta=500000.0)),
        ("phi3", _rope(LONGROPE, partial_rotary_factor=0.5, **HALVED)),
        ("phi3", _rope(LONGROPE, short_factor=[1.5, 1.1, 1.2, 1.3, 1.4, 1.5])),
        ("gemma3", {"window": 8}),
        ("gemma3", {"window": 10}),
        ("gemma3", {"options": GEMMA | {"query_pre_attn_scalar": 16}}),
        (
            "gemma3",
            {"options": GEMMA | {"layer_types": [*GEMMA["layer_types"][1:], "full_attention"]}},
        ),
        ("gemma3", _theta("full_attention", 500000.0)),
        ("gemma3", _theta("sliding_attention", 500000.0)),
        ("gemma3", {"options": GEMMA | {"hidden_activation": "silu"}}),
        ("smollm3", {"window": 8}),
        ("smollm3", {"window": 10}),
        ("smollm3", {"options": {"no_rope_layer_interval": 3, "use_sliding_window": True}}),
        ("smollm3", {"options": {"no_rope_layer_interval": 2, "use_sliding_window": False}}),
        ("olmo2", {"rope_theta": 500000.0}),
        ("olmo2", {"eps": 1e-1}),
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
    ids = prompt(right, 18)
    model = river_core.load(str(tmp_path / "right"), dtype="float32", river=QuantSpec(bits=16))
    run = river_core.teacher_forced(model, ids, [1, 2, 3], policy="backbone")
    with torch.no_grad():
        other = wrong(torch.tensor([[*ids, 1, 2]])).logits[0, -3:]
    assert (run.logits - other).abs().max() > 1e-2


@pytest.mark.parametrize(
    "name, part",
    [
        *(("qwen2", f"{letter}_proj.bias") for letter in "qkv"),
        *((name, f"{letter}_norm") for letter in "qk" for name in ("qwen3", "olmo2", "gemma3")),
        *((name, "post_attention_layernorm") for name in ("olmo2", "gemma3", "llama")),
        *((name, "post_feedforward_layernorm") for name in ("olmo2", "gemma3")),
        ("gemma3", "pre_feedforward_layernorm"),
        *((name, "input_layernorm") for name in ("gemma3", "llama")),
    ],
)
@pytest.mark.parametrize("fault", ["dropped", "shifted"])
def test_a_wrong_bias_or_norm_moves_the_logits(tiny_by_name, name, part, fault):
    """Left out, or a row too far: the logits of transformers move by more than 1e-2."""
    tiny = tiny_by_name(next(c for c in TINY if c.name == name or c.family == name))
    wrong = deepcopy(tiny.reference)
    found = [p for key, p in wrong.named_parameters() if part in key]
    assert len(found) == tiny.config.layers
    with torch.no_grad():
        for p in found:
            none = float("norm" in part and name != "gemma3")  # Gemma's norms add 1
            p.copy_(p.roll(1) if fault == "shifted" else torch.full_like(p, none))
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
