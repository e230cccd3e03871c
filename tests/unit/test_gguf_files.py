"""Tiny GGUF files, written here, become folders that transformers runs to the same logits."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from river_core import gguf_files
from river_core.errors import ModelUnavailable, RiverError, UnsupportedModel
from river_core.families import block_shapes
from river_core.hub_folder import eos_ids, read_config, read_tokenizer
from river_core.sources import resolve
from tests.unit.tiny_gguf import FFN, HIDDEN, LAYERS, TOKENS, gguf_tensors, tiny_model, write_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return write_gguf(path, gguf_tensors(tiny_model(tied=True)))


def _convert(path: Path, out: Path) -> dict[str, object]:
    out.mkdir()
    return gguf_files.convert(path, out)


def _refused(path: Path, out: Path, error: type[RiverError]) -> str:
    with pytest.raises(error) as caught:
        _convert(path, out)
    text = str(caught.value)
    assert text.endswith(".") and "\n" not in text and "Traceback" not in text
    return text


@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_gives_the_logits_of_the_model(tmp_path: Path, tied: bool) -> None:
    model = tiny_model(tied)
    path = write_gguf(tmp_path / "m.gguf", gguf_tensors(model))
    assert _convert(path, tmp_path / "out") == {"stored": "F16"}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    ids = torch.randint(3, len(TOKENS), (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(loaded(ids).logits, model(ids).logits, atol=1e-4)
    for (name, ours), (_, theirs) in zip(
        loaded.state_dict().items(), model.state_dict().items(), strict=True
    ):
        assert torch.equal(ours, theirs), name
    names = set(load_file(tmp_path / "out" / "model.safetensors"))
    assert ("lm_head.weight" in names) is not tied


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F32", "BF16"])
def test_tensors_equal_those_of_transformers(tmp_path: Path, kind: str) -> None:
    tensors = gguf_tensors(tiny_model(tied=True))
    path = write_gguf(tmp_path / "m.gguf", tensors, gguf.GGMLQuantizationType[kind])
    assert _convert(path, tmp_path / "out") == {"stored": kind}
    ours = load_file(tmp_path / "out" / "model.safetensors")
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="m.gguf", dtype=torch.float32
    ).state_dict()
    assert set(theirs) - set(ours) == {"lm_head.weight"}
    for name, value in ours.items():
        assert np.array_equal(value, theirs[name].numpy().astype(np.float16)), name


def test_configuration_and_tokenizer(tiny: Path, tmp_path: Path) -> None:
    _convert(tiny, tmp_path / "out")
    config = read_config(tmp_path / "out")
    shape = block_shapes(config)[0]
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (64, 4, 2, 16)
    assert (shape.ffn, shape.eps, config.num_hidden_layers) == (96, 1e-5, 2)
    assert config.rope_parameters["rope_theta"] == 50000.0
    assert config.vocab_size == len(TOKENS) and config.tie_word_embeddings
    assert config.dtype == torch.float16
    raw = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "quantization_config" not in raw and raw["architectures"] == ["LlamaForCausalLM"]
    tokenizer = read_tokenizer(tmp_path / "out")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert eos_ids(tmp_path / "out", config, tokenizer) == (2,)
    for text in (
        "hello  world",
        " lead",
        "\n\n1. a\tb",
        "\U0001f600 é",
        "<|im_start|>he<|im_end|>",
    ):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    chat = [{"role": "user", "content": "he"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "<|im_start|>he"


def test_two_spaces_before_a_digit_stay_one_token(tiny: Path, tmp_path: Path) -> None:
    _convert(tiny, tmp_path / "out")  # digits are split off before words are looked for
    tokenizer = read_tokenizer(tmp_path / "out")
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("  12")) == ["ĠĠ", "1", "2"]  # no BOS


def test_norms_stay_exact(tmp_path: Path) -> None:
    tensors = gguf_tensors(tiny_model(tied=True))
    exact = np.full(HIDDEN, 1.0 + 2**-20, dtype=np.float32)
    tensors["output_norm.weight"] = exact
    _convert(write_gguf(tmp_path / "m.gguf", tensors), tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found["model.norm.weight"].dtype == np.float32
    assert np.array_equal(found["model.norm.weight"], exact)
    assert found["model.layers.0.input_layernorm.weight"].dtype == np.float16


def test_large_models_are_written_in_shards(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _convert(tiny, tmp_path / "one")
    monkeypatch.setattr(gguf_files, "_SHARD_BYTES", 40_000)
    _convert(tiny, tmp_path / "many")
    assert len(list((tmp_path / "many").glob("model-*-of-*.safetensors"))) > 2
    one, many = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict()
        for name in ("one", "many")
    )
    assert all(torch.equal(one[name], many[name]) for name in one)


def test_a_file_cut_anywhere_is_one_sentence(tiny: Path, tmp_path: Path) -> None:
    content = tiny.read_bytes()
    last = gguf.GGUFReader(tiny).tensors[-1]
    end = int(last.data_offset + last.n_bytes)
    header = int(gguf.GGUFReader(tiny).tensors[0].data_offset)
    cuts = {1, 3, 4, 7, 8, 20, 24, 30, header - 1, header, end - 1}
    cuts |= set(range(40, header, 331)) | set(range(header, end, 20011))
    cut = tmp_path / "cut.gguf"
    for size in sorted(cuts):
        cut.write_bytes(content[:size])
        with pytest.raises(ModelUnavailable, match=r"cut off or damaged; download it again\.$"):
            gguf_files.open_gguf(cut)


def test_files_that_are_no_gguf(tmp_path: Path) -> None:
    cases = {"missing.gguf": "does not exist", "empty.gguf": "not a GGUF", "zip.gguf": "not a GGUF"}
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "zip.gguf").write_bytes(b"PK\x03\x04" + b"0" * 100)
    for number, (name, words) in enumerate(cases.items()):
        assert words in _refused(tmp_path / name, tmp_path / str(number), ModelUnavailable)
    (tmp_path / "old.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0))
    assert "version" in _refused(tmp_path / "old.gguf", tmp_path / "o", UnsupportedModel)
    (tmp_path / "many.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60))
    assert "damaged" in _refused(tmp_path / "many.gguf", tmp_path / "m", ModelUnavailable)


def _without(tensors: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize(
    "case, words",
    [
        ("arch", "'qwen2moe'"),
        ("bias", "'blk.0.attn_q.bias'"),
        ("lacks", "'blk.1.ffn_up.weight'"),
        ("shape", "shape (96, 32)"),
        ("overflow", "not finite in 16 bits"),
        ("pre", "'chameleon'"),
        ("no pre", "None"),
        ("yarn", "RoPE"),
        ("factors", "RoPE"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(tmp_path: Path, case: str, words: str) -> None:
    tensors = gguf_tensors(tiny_model(tied=True))
    settings: dict[str, Any] = {}
    if case == "arch":
        settings["arch"] = "qwen2moe"
    elif case == "bias":
        tensors["blk.0.attn_q.bias"] = np.zeros(HIDDEN, dtype=np.float32)
    elif case == "lacks":
        tensors = _without(tensors, "blk.1.ffn_up.weight")
    elif case == "shape":
        tensors["blk.0.ffn_gate.weight"] = np.zeros((FFN, 32), dtype=np.float32)
    elif case == "overflow":
        tensors["blk.0.ffn_gate.weight"] = np.full((FFN, HIDDEN), 1e6, dtype=np.float32)
        settings["kind"] = gguf.GGMLQuantizationType.F32
    elif case in ("pre", "no pre"):
        settings["pre"] = "chameleon" if case == "pre" else None
    elif case == "yarn":
        settings["extra"] = {"llama.rope.scaling.type": "yarn"}
    else:
        tensors["rope_freqs.weight"] = np.linspace(1, 3, 8, dtype=np.float32)
    path = write_gguf(tmp_path / "m.gguf", tensors, **settings)
    assert words in _refused(path, tmp_path / "out", UnsupportedModel)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_factors_are_recognised(tmp_path: Path, factor: float) -> None:
    angles = 50000.0 ** (-np.arange(0, 16, 2) / 16)
    waves, low, high = 2 * np.pi / angles, 8192 / 1.0, 8192 / 4.0
    smooth = (8192 / waves - 1.0) / 3.0
    middle = 1 / ((1 - smooth) / factor + smooth)
    factors = np.where(waves < high, 1.0, np.where(waves > low, factor, middle))
    tensors = gguf_tensors(tiny_model(tied=True)) | {
        "rope_freqs.weight": factors.astype(np.float32)
    }
    path = write_gguf(tmp_path / "m.gguf", tensors, pre="llama-bpe")
    _convert(path, tmp_path / "out")
    rope = read_config(tmp_path / "out").rope_parameters
    assert (rope["rope_type"], rope["factor"], rope["rope_theta"]) == ("llama3", factor, 50000.0)
    tokenizer = read_tokenizer(tmp_path / "out")
    pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode("he 1234"))
    assert pieces == ["<|im_start|>", "he", "Ġ", "1", "2", "3", "4"]  # Llama 3 begins with BOS


def test_a_users_file_is_converted_once(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIVER_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "Mine.GGUF"
    path.write_bytes(tiny.read_bytes())
    said: list[str] = []
    source = resolve(str(path), progress=lambda text, fraction: said.append(text))
    assert source.origin == "GGUF file Mine.GGUF, stored as F16" and not source.packaged
    assert any("converting" in text for text in said)
    said.clear()
    assert resolve(str(path), progress=lambda text, fraction: said.append(text)) == source
    assert not said
    write_gguf(path, gguf_tensors(tiny_model(tied=False)))
    assert resolve(str(path)).folder == source.folder
    assert "lm_head.weight" in load_file(source.folder / "model.safetensors")


_KILLED = """
import sys, time
from pathlib import Path
from river_core.gguf_files import convert_cached

def progress(text, fraction):
    print(text, fraction, flush=True)
    if fraction is not None and fraction > 0.3:
        time.sleep(60)

convert_cached(Path(sys.argv[1]), progress)
"""


def test_a_killed_conversion_leaves_nothing_that_looks_complete(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIVER_CACHE", str(tmp_path))
    root = Path(gguf_files.__file__).parents[1]
    command = [sys.executable, "-c", _KILLED, str(tiny)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("converting") and float(line.split()[-1]) > 0.3:
                break
        process.send_signal(signal.SIGKILL)
    models = tmp_path / "models"
    assert [p.name for p in models.iterdir() if p.name.startswith(".")]
    assert not list(models.glob("gguf-*/river.json"))
    folder, _ = gguf_files.convert_cached(tiny)
    assert read_config(folder).num_hidden_layers == LAYERS
    assert not [p.name for p in models.iterdir() if p.name.startswith(".")]
