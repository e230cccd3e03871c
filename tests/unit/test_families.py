"""What configurations mean to River: sizes, options, RoPE tables, and what is refused by name."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from river_core import families
from river_core.block import rotate
from river_core.errors import UnsupportedModel
from river_core.layer import BlockShape

ROOT = Path(families.__file__).parents[1]


def _config(family: str = "llama", **changes: Any) -> Any:
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 4}
    return AutoConfig.for_model(family, **(sizes | {"num_key_value_heads": 2} | changes))


def _shape(config: Any) -> BlockShape:
    """The shape of all layers, where they are alike."""
    (shape,) = set(families.block_shapes(config))
    return shape


def test_sizes() -> None:
    shape = _shape(_config(rms_norm_eps=1e-5))
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (48, 4, 2, 12)
    assert (shape.ffn, shape.eps, shape.options) == (80, 1e-5, ())
    assert _shape(_config(head_dim=32)).head_dim == 32
    assert len(families.block_shapes(_config(num_hidden_layers=7))) == 7


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "already quantised"),
        ({"num_key_value_heads": 3}, "4 query heads over 3"),
        ({"head_dim": 11}, "11 values"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"sliding_window": 16}, "sliding_window"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "'linear_attention'"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ],
)
def test_what_the_block_lacks_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    config = _config()
    for name, value in changes.items():
        setattr(config, name, value)
    with pytest.raises(UnsupportedModel) as caught:
        families.block_shapes(config)
    assert words in str(caught.value) and str(caught.value).endswith(".")


OTHERS = ("mixtral", "qwen3_moe", "gpt_oss", "mamba", "bert", "t5", "gemma3n", None)


@pytest.mark.parametrize("kind", OTHERS)
def test_another_family_is_refused_with_the_list(kind: str | None) -> None:
    """Mixture of experts, state-space, encoder models: by name."""
    listed = ", ".join(families.FAMILIES)
    with pytest.raises(UnsupportedModel, match=rf"{kind!r} are not supported; .*{listed}"):
        families.check_family({"model_type": kind})
    with pytest.raises(UnsupportedModel, match="never run"):
        families.check_family({"model_type": kind, "auto_map": {"AutoConfig": "own.Code"}})


def test_a_wrapper_is_known_by_its_text_model() -> None:
    for kind, inner in families.WRAPPERS.items():
        families.check_family({"model_type": kind})  # what the hub says before a download
        for text in inner:
            families.check_family({"model_type": kind, "text_config": {"model_type": text}})
        with pytest.raises(UnsupportedModel, match=rf"'{kind}' around 'mixtral'"):
            families.check_family({"model_type": kind, "text_config": {"model_type": "mixtral"}})


GEMMA = {"head_dim": 12, "query_pre_attn_scalar": 16, "num_hidden_layers": 6, "sliding_window": 8}


@pytest.mark.parametrize(
    "family, changes, expected",
    [
        ("llama", {}, {}),
        ("mistral", {"sliding_window": None}, {}),
        ("mistral", {"sliding_window": 16}, {"window": 16}),
        ("ministral3", {"sliding_window": 16}, {"window": 16}),
        ("phi3", {"sliding_window": 16}, {"window": 16}),
        ("qwen2", {"sliding_window": 16}, {"qkv_bias": True}),  # use_sliding_window is off
        ("qwen3", {"head_dim": 32}, {"qk_norm": "head"}),
        ("olmo2", {}, {"qk_norm": "all", "norms": "after"}),
        ("smollm3", {"no_rope_layer_interval": 100}, {}),
    ],
)
def test_options_of_each_family(
    family: str, changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    shape, plain = _shape(_config(family, **changes)), _shape(_config(head_dim=12))
    plain = replace(plain, eps=shape.eps, head_dim=shape.head_dim)
    assert shape == replace(plain, **expected)
    assert len(shape.options) == len(expected)
    assert shape.within(16).window is None and shape.within(17).window == expected.get("window")


def test_layers_that_differ() -> None:
    shapes = families.block_shapes(_config("gemma3_text", **GEMMA))
    assert [s.window for s in shapes] == [8, 8, 8, 8, 8, None]
    assert [s.rope for s in shapes] == [1, 1, 1, 1, 1, 0]  # the full table first
    assert {(s.qk_norm, s.norms, s.activation, s.scale) for s in shapes} == {
        ("head", "both", "gelu_tanh", 0.25)
    }
    turned = families.block_shapes(_config("smollm3", no_rope_layer_interval=2))
    assert [s.rope for s in turned][:4] == [0, None, 0, None]
    some = _config("qwen3", use_sliding_window=True, sliding_window=8, max_window_layers=2)
    assert [s.window for s in families.block_shapes(some)][:4] == [None, None, 8, 8]


OWN_ROPE = ("phi3", "gemma3_text")  # their own tests are below
ROPE = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("family", [f for f in families.FAMILIES if f not in OWN_ROPE])
@pytest.mark.parametrize("kind", ROPE)
def test_rope_tables_are_those_of_the_model(kind: str, family: str) -> None:
    rope = {"rope_type": kind, "rope_theta": 5000.0, **ROPE[kind]}
    if family == "ministral3":  # whose layers read these two, whatever the type
        rope = {"original_max_position_embeddings": 64, **rope, "llama_4_scaling_beta": 0.0}
    sizes = {"max_position_embeddings": 256, "num_hidden_layers": 1, "head_dim": 12}
    sizes |= {"vocab_size": 100, "pad_token_id": None}
    config = _config(family, rope_parameters=rope, **sizes)
    (table,) = families.rope_tables(config, 100)
    cos, sin = table.cos, table.sin
    assert cos.shape == sin.shape == (100, 12) and table.queries is None
    assert cos.dtype == sin.dtype == torch.float32 and cos.is_contiguous()
    (seen,) = _rotary_calls(config, 100)
    assert torch.equal(seen[0][0], cos) and torch.equal(seen[1][0], sin)
    plain = _config(rope_parameters=rope | {"rope_type": "default"})
    assert torch.allclose(families.rope_tables(plain, 100)[0].cos, cos) is (kind == "default")


def _rotary_calls(config: Any, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What the model's own rotary module gives its layers, call by call."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    model = AutoModelForCausalLM.from_config(config)
    model.model.rotary_emb.register_forward_hook(lambda *call: seen.append(call[2]))
    with torch.no_grad():
        model(torch.arange(length).unsqueeze(0) % config.vocab_size)
    return seen


@pytest.mark.parametrize("family", ["phi3"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_partial_rope_turns_halves_in_its_own_order(family: str, share: float) -> None:
    """Heads in `rotary_order`, turned as wholes, are transformers' partly turned heads."""
    rope = {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": share}
    config = _config(family, rope_parameters=rope, num_hidden_layers=1, vocab_size=100)
    config.pad_token_id = None
    (table,), order = families.rope_tables(config, 30), families.rotary_order(config)
    assert (order is None) is (share == 1.0)
    order = list(range(12)) if order is None else order
    assert sorted(order) == list(range(12))
    from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb

    ((cos, sin),) = _rotary_calls(config, 30)
    assert cos.shape[-1] == int(12 * share)
    heads = torch.randn(1, 2, 30, 12)
    expected, _ = apply_rotary_pos_emb(heads, heads, cos, sin)
    mine = rotate(heads[0].transpose(0, 1)[..., order], table.cos, table.sin)
    assert torch.equal(mine, expected[0].transpose(0, 1)[..., order])


@pytest.mark.parametrize("capacity, long", [(64, False), (65, True)])
def test_longrope_takes_one_set_of_factors_by_capacity(capacity: int, long: bool) -> None:
    """A cache cannot change its factors later: those that its last position would have."""
    rope = {"rope_type": "longrope", "rope_theta": 5000.0, "short_factor": [1.0] * 6}
    rope |= {"long_factor": [4.0] * 6, "original_max_position_embeddings": 64}
    sizes = {"max_position_embeddings": 256, "original_max_position_embeddings": 64}
    config = _config("phi3", rope_parameters=rope, **sizes)
    assert families.positions(config) == (256, 64)
    (table,) = families.rope_tables(config, capacity)
    angle = torch.atan2(table.sin[1], table.cos[1])[:6]
    frequency = 5000.0 ** -(torch.arange(0, 12, 2) / 12)
    assert torch.allclose(angle, frequency / (4.0 if long else 1.0))


def test_queries_are_scaled_by_position() -> None:
    """Ministral 3: 1 + beta ln(1 + floor(position / trained length)), as transformers has it."""
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    rope = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0}
    rope |= {"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1}
    config = _config("ministral3", rope_parameters=rope, head_dim=12)
    (table,) = families.rope_tables(config, 50)
    expected = get_llama_4_attn_scale(torch.arange(50)[None], 0.1, 16).flatten()
    assert table.queries is not None and torch.allclose(table.queries, expected)
    assert families.rope_tables(config, 16)[0].queries is None  # all are 1


def test_two_tables_where_layer_types_have_their_own() -> None:
    config = _config("gemma3_text", vocab_size=100, pad_token_id=None, **GEMMA)
    tables = families.rope_tables(config, 30)
    seen = _rotary_calls(config, 30)
    assert len(tables) == len(seen) == 2
    for kind, table in zip(("full", "sliding"), tables, strict=True):
        base = config.rope_parameters[f"{kind}_attention"]["rope_theta"]
        angle = torch.atan2(table.sin[1], table.cos[1])
        assert angle[1].item() == pytest.approx(base ** -(2 / 12))
        assert any(torch.equal(cos[0], table.cos) for cos, _ in seen)


def test_rope_that_changes_with_the_length_is_refused() -> None:
    config = _config(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    with pytest.raises(UnsupportedModel, match="'dynamic'"):
        families.rope_tables(config, 10)


def test_importing_stays_cheap() -> None:
    code = "import sys, river_core.sources; print('transformers' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
