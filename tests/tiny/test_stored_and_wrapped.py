"""Checkpoints that wrap their text model, store it in FP8 or have two sets of RoPE factors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    FineGrainedFP8Config,
)

import river_core
from river_core.errors import CacheFull, ModelUnavailable
from river_core.settings import QuantSpec
from tests.tiny.tiny_models import LONGROPE, TINY, TinyConfig, draw, prompt, save

IDENTICAL = {"dtype": "float32", "river": QuantSpec(bits=16)}
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
VISION |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}


def by_name(name: str) -> TinyConfig:
    return next(config for config in TINY if config.name == name)


def forced_logits(model: Any, ids: list[int], count: int) -> torch.Tensor:
    """The last `count` rows of logits over `ids`, [count, V], by our engine."""
    run = river_core.teacher_forced(
        model, ids[: len(ids) - count + 1], [*ids[len(ids) - count + 1 :], 0], policy="backbone"
    )
    assert run.logits is not None
    return run.logits


# --- longrope


@pytest.fixture
def two_ropes(tmp_path: Path) -> tuple[TinyConfig, Any, Path]:
    """Phi with short factors up to position 16, long ones beyond."""
    rope = LONGROPE | {"original_max_position_embeddings": 16}
    options = {"rope_parameters": rope, "original_max_position_embeddings": 16}
    config = replace(by_name("phi3"), options=options, window=None)
    return config, save(config, tmp_path), tmp_path


def test_short_factors_end_where_the_cache_ends(two_ropes):
    config, reference, folder = two_ropes
    model = river_core.load(folder, **IDENTICAL)
    assert model.capacity == 16
    ids = prompt(config, 16)
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0]
    assert (forced_logits(model, ids[:15], 9) - expected[6:15]).abs().max() < 1e-4
    with pytest.raises(CacheFull, match="the cache holds 16"):
        river_core.generate(model, ids[:7], max_new_tokens=10)
    run = river_core.generate(model, ids[:7], max_new_tokens=9)
    out = reference.generate(torch.tensor([ids[:7]]), max_new_tokens=9, do_sample=False)
    assert [t.token_id for t in run.tokens] == out[0, 7:].tolist()


@pytest.mark.parametrize("exits", [[5] * 40, [1, 3, 5, 2, 4] * 8])
def test_long_factors_serve_a_larger_cache_at_all_positions(two_ropes, exits):
    """A prompt beyond the boundary: 40 greedy tokens, every exit pattern; and across it."""
    config, reference, folder = two_ropes
    model = river_core.load(folder, capacity=100, **IDENTICAL)
    assert any("long factors" in note for note in model.info.notes)
    ids = prompt(config, 20)
    settings = {"exit": "schedule", "options": {"exit_layers": exits}}
    run = river_core.generate(model, ids, max_new_tokens=40, **settings)
    out = reference.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False)
    assert [t.token_id for t in run.tokens] == out[0, 20:].tolist()
    with torch.no_grad():
        whole = reference(out[:, :30]).logits[0]
    crossing = forced_logits(model, out[0, :30].tolist(), 26)  # from position 4 on
    assert (crossing - whole[4:]).abs().max() < 1e-4


# --- wrappers


def save_wrapped(kind: str, name: str, folder: Path) -> Any:
    """A vision-language model around the tiny text model `name`."""
    text = by_name(name)
    folder.mkdir(exist_ok=True)
    save(text, folder / "text")
    inner = AutoConfig.from_pretrained(folder / "text")
    vision = VISION | ({} if kind == "gemma3" else {"head_dim": 16, "image_size": 28})
    config = AutoConfig.for_model(kind, text_config=inner, vision_config=vision)
    config.tie_word_embeddings = text.tied
    model = draw(AutoModelForImageTextToText.from_config(config), text)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind, name", [("mistral3", "ministral3"), ("gemma3", "gemma3")])
@pytest.mark.parametrize("layout", ["saved", "other"])
def test_the_text_model_of_a_wrapper(tmp_path: Path, kind: str, name: str, layout: str) -> None:
    wrapped = save_wrapped(kind, name, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    assert any("vision" in key for key in tensors)
    if layout == "other":
        old, new = "language_model.model.", "model.language_model."
        if any(key.startswith(new) for key in tensors):
            old, new = new, old
        tensors = {
            (new + k.removeprefix(old) if k.startswith(old) else k): t for k, t in tensors.items()
        }
        save_file(tensors, file, metadata={"format": "pt"})
    model = river_core.load(tmp_path, **IDENTICAL)
    ids = prompt(by_name(name), 24)
    with torch.no_grad():
        expected = wrapped(input_ids=torch.tensor([ids])).logits[0, -20:]
    assert (forced_logits(model, ids, 20) - expected).abs().max() < 1e-4


def test_a_wrapper_without_its_text_weights_is_an_error(tmp_path: Path) -> None:
    """Never random weights: what a text class would load from such a folder without a word."""
    save_wrapped("mistral3", "ministral3", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {k: t for k, t in load_file(file).items() if "layers.2.mlp.up_proj" not in k}
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelUnavailable, match=r"lack .*layers\.2\.mlp\.up_proj\.weight"):
        river_core.load(tmp_path, **IDENTICAL)
    save_file(tensors | {"stray.weight": torch.zeros(2)}, file, metadata={"format": "pt"})
    with pytest.raises(ModelUnavailable):
        river_core.load(tmp_path, **IDENTICAL)


# --- FP8


def save_fp8(folder: Path, blocks: int | None) -> Path:
    """Ministral 3 with FP8 matrices: a scale each, or one per block; as the hub stores them."""
    config = by_name("ministral3")
    save(config, folder)
    file = folder / "model.safetensors"
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(file).items():
        if not name.endswith("_proj.weight"):
            stored[name] = tensor.bfloat16()
            continue
        grid = (1, 1) if blocks is None else (tensor.shape[0] // blocks, tensor.shape[1] // blocks)
        tiles = tensor.unflatten(1, (grid[1], -1)).unflatten(0, (grid[0], -1))
        scale = tiles.abs().amax((1, 3)) / 448
        coded = (tiles / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        stored[name] = coded.reshape(tensor.shape)
        stored[f"{name}_scale_inv"] = scale[0, 0] if blocks is None else scale
        if blocks is None:
            stored[name.replace("weight", "activation_scale")] = torch.tensor(1.0)
    save_file(stored, file, metadata={"format": "pt"})
    path = folder / "config.json"
    scheme = {"activation_scheme": "static" if blocks is None else "dynamic"}
    shape = None if blocks is None else [blocks, blocks]
    own = {"quant_method": "fp8", "weight_block_size": shape, **scheme}
    settings = json.loads(path.read_text()) | {"quantization_config": own, "dtype": "bfloat16"}
    path.write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("blocks", [None, 16])
def test_fp8_weights_equal_those_transformers_dequantises(tmp_path: Path, blocks: int | None):
    folder = save_fp8(tmp_path, blocks)
    plain = FineGrainedFP8Config(
        dequantize=True, weight_block_size=None if blocks is None else (blocks, blocks)
    )
    reference = AutoModelForCausalLM.from_pretrained(folder, quantization_config=plain)
    reference = reference.float()
    model = river_core.load(folder, **IDENTICAL)
    ids = prompt(by_name("ministral3"), 24)
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0, -20:]
    assert (forced_logits(model, ids, 20) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("fault, words", [("lost", "is missing"), ("wrong", "does not divide")])
def test_fp8_weights_need_their_scales(tmp_path: Path, fault: str, words: str) -> None:
    folder = save_fp8(tmp_path, None)
    tensors = load_file(folder / "model.safetensors")
    name = next(key for key in tensors if key.endswith("_scale_inv"))
    if fault == "lost":
        del tensors[name]
    else:
        tensors[name] = torch.ones(3, 5)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelUnavailable, match=words):
        river_core.load(folder, **IDENTICAL)


def test_a_models_own_code_is_not_needed_for_a_known_type(tmp_path: Path) -> None:
    """Phi's repositories bring their own code for older libraries; transformers' serves."""
    config = by_name("phi3")
    save(config, tmp_path)
    path = tmp_path / "config.json"
    own = {"auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | own))
    (tmp_path / "configuration_phi3.py").write_text("raise SystemExit('this code was run')")
    model = river_core.load(tmp_path, **IDENTICAL)
    assert any("own code is not run" in note for note in model.info.notes)


@pytest.mark.parametrize("same", [True, False])
def test_a_stored_head_counts_where_it_differs(tmp_path: Path, same: bool) -> None:
    """Tied by the configuration, stored all the same: one storage where both are equal."""
    config = by_name("mha-tied")
    reference = save(config, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    head = tensors["model.embed_tokens.weight"].clone() * (1 if same else -1)
    save_file(tensors | {"lm_head.weight": head}, file, metadata={"format": "pt"})
    model = river_core.load(tmp_path, **IDENTICAL)
    assert (model.memory()["head"] == 0) is same
    ids = prompt(config, 12)
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0, -8:]
    assert (forced_logits(model, ids, 8) - (expected if same else -expected)).abs().max() < 1e-4
