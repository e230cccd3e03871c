"""The GGUF files that are written for llama.cpp: read back, they are the model that was loaded."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import river_core
from river_core import gguf_files, llama_cpp_peer
from river_core.errors import ModelUnavailable, SettingsError, UnsupportedModel
from river_core.gguf_export import BITS, exported, rope_base, rope_divisors, write
from river_core.gguf_metadata import model_settings
from river_core.gguf_reader import open_gguf
from river_core.random_model import random_model
from river_core.settings import QuantSpec
from tests.tiny.tiny_models import TINY, TinyConfig, build, prompt

WRITTEN = ["mqa-wide-heads", "gqa-untied", "qwen2", "qwen3"]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SCALED = TinyConfig("llama3-rope", seed=21, options={"rope_parameters": LLAMA3})
CONFIGS = {config.name: config for config in [*TINY, SCALED]}


def read_back(path: Path) -> tuple[str, torch.nn.Module]:
    """The file's architecture, and transformers' model of it by our own reader, fp32."""
    source = open_gguf(path)
    plan = gguf_files._plan(source)
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    rows = int(plan.tensors[embedding].shape[1])
    settings = model_settings(source, rows, head not in plan.tensors, plan.factors)
    config = AutoConfig.for_model(source.architecture.model_type, **settings)
    if plan.factors.freqs is not None:
        gguf_files.apply_llama3_rope(config, plan.factors.freqs)
    gguf_files._check_shapes(plan, config, path)
    layout = gguf_files._Layout(source, config)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    state = {
        name: torch.tensor(gguf_files._values(name, tensor, layout)).float()
        for name, tensor in plan.tensors.items()
    }
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert unexpected == [] and set(missing) <= {head}
    model.tie_weights()
    return source.architecture.name, model


def saved(config: TinyConfig, folder: Path) -> torch.nn.Module:
    """The tiny model with weights that fp16 holds exactly, saved as a folder."""
    model = build(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.half().float())
    model.save_pretrained(folder)
    return model


def loaded(folder: Path):
    return river_core.load(str(folder), device="cpu", dtype="float32", river=QuantSpec(bits=16))


@pytest.mark.parametrize("name", [*WRITTEN, "llama3-rope"])
def test_the_f16_file_gives_the_logits_of_the_model(name, tmp_path):
    config = CONFIGS[name]
    reference = saved(config, tmp_path)
    path = exported(loaded(tmp_path), "F16")
    architecture, model = read_back(path)
    assert architecture == (config.family if config.family != "llama" else "llama")
    ids = torch.tensor([prompt(config, 40)])
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, reference(ids).logits, atol=1e-4)


def test_the_logits_would_show_rows_in_another_order(tmp_path, monkeypatch):
    config = CONFIGS["gqa-untied"]
    reference = saved(config, tmp_path)
    monkeypatch.setattr("river_core.gguf_export._placed", lambda name, rows, **_: rows.contiguous())
    write(loaded(tmp_path), "F16", tmp_path / "wrong.gguf")
    _, model = read_back(tmp_path / "wrong.gguf")
    ids = torch.tensor([prompt(config, 40)])
    with torch.no_grad():
        assert (model(ids).logits - reference(ids).logits).abs().max() > 1e-2


@pytest.mark.parametrize(("kind", "error"), [("Q8_0", 0.01), ("Q4_0", 0.12)])
def test_quantised_files_hold_the_same_weights(kind, error, tmp_path):
    saved(CONFIGS["gqa-untied"], tmp_path)
    model = loaded(tmp_path)
    whole, coded = (
        {t.name: t for t in gguf.GGUFReader(exported(model, k)).tensors} for k in ("F16", kind)
    )
    assert list(whole) == list(coded)
    for name, tensor in coded.items():
        one = tensor.tensor_type.name
        assert one == ("F32" if name.endswith("norm.weight") else kind)
        read = gguf.dequantize(tensor.data, tensor.tensor_type)
        expected = gguf.dequantize(whole[name].data, whole[name].tensor_type)
        assert abs(read - expected).max() <= error * 2.2 * abs(expected).max()
        assert tensor.n_bytes == tensor.n_elements * (32 if one == "F32" else BITS[kind]) / 8


def test_a_file_is_written_once_and_found_by_its_weights(tmp_path):
    saved(CONFIGS["mha-tied"], tmp_path / "a")
    path = exported(loaded(tmp_path / "a"), "Q8_0")
    stamp = path.stat().st_mtime_ns
    assert exported(loaded(tmp_path / "a"), "Q8_0") == path
    assert path.stat().st_mtime_ns == stamp
    assert not list(path.parent.glob("*.part"))
    other = TinyConfig("mha-tied-2", heads=4, kv_heads=4, seed=22)
    saved(other, tmp_path / "b")
    assert exported(loaded(tmp_path / "b"), "Q8_0") != path


def test_random_weights_are_written_too(tmp_path):
    model = random_model("tiny", capacity=64)
    assert rope_base(model) == 10000.0
    assert rope_divisors(model) is None
    architecture, read = read_back(exported(model, "F16"))
    assert architecture == "llama"
    assert read.config.num_hidden_layers == model.num_layers
    weight = read.model.layers[2].mlp.down_proj.weight
    assert torch.allclose(weight, model.layer(3).down.dense(), atol=1e-3)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("gemma3", "GELU"),
        ("olmo2", "norms after each half"),
        ("ministral3", "queries|differ"),
        ("smollm3", "no RoPE|differ"),
        ("phi3", "window|turn"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(name, word, tiny_by_name):
    with pytest.raises(UnsupportedModel, match="leave llama") as caught:
        exported(tiny_by_name(CONFIGS[name]).load(), "F16")
    assert "\n" not in str(caught.value)


def test_an_unknown_kind_is_one_sentence(one_tiny):
    with pytest.raises(SettingsError, match="'Q2_K' is not written"):
        exported(one_tiny.load(), "Q2_K")


@pytest.mark.skipif(llama_cpp_peer.installed(), reason="llama-cpp-python is installed")
def test_without_llama_cpp_python_it_says_how_to_install_it(tmp_path):
    with pytest.raises(ModelUnavailable, match="pip install llama-cpp-python"):
        llama_cpp_peer.LlamaCpp(tmp_path / "x.gguf", "F16", 1, 64, False)


@pytest.mark.skipif(not llama_cpp_peer.installed(), reason="llama-cpp-python is not installed")
@pytest.mark.parametrize("name", WRITTEN)
def test_llama_cpp_gives_our_backbones_tokens(name, tmp_path):
    config = CONFIGS[name]
    saved(config, tmp_path)
    model = loaded(tmp_path)
    ids = prompt(config, 20)
    peer = llama_cpp_peer.LlamaCpp(exported(model, "F16"), "F16", 1, 64, False)
    found = [peer.generate(ids, 12) for _ in range(2)]
    peer.close()
    settings = {"policy": "backbone", "max_new_tokens": 12, "full_trace": False}
    run = river_core.generate(model.endless(), ids, **settings)
    assert found[0].token_ids == found[1].token_ids == tuple(t.token_id for t in run.tokens)
    assert found[0].tokens_per_second > 0 < found[0].prefill_seconds
