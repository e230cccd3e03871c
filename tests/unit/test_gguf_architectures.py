"""Every GGUF architecture becomes a folder with the original model's weights and logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from river_core import gguf_files
from river_core.errors import UnsupportedModel
from river_core.gguf_architectures import ARCHITECTURES
from river_core.hub_folder import read_tokenizer
from tests.unit.tiny_families import FAMILIES
from tests.unit.tiny_gguf import TOKENS


def _convert(path: Path, out: Path) -> dict[str, object]:
    out.mkdir()
    return gguf_files.convert(path, out)


def _refused(path: Path, out: Path) -> str:
    with pytest.raises(UnsupportedModel) as caught:
        _convert(path, out)
    text = str(caught.value)
    assert text.endswith(".") and "\n" not in text and "Traceback" not in text
    return text


def _load(folder: Path) -> Any:
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    return model.eval()


def test_every_architecture_has_a_tiny_model() -> None:
    assert {family.arch for family in FAMILIES.values()} | {"llama"} == set(ARCHITECTURES)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_folder_gives_the_models_logits(tmp_path: Path, name: str, tied: bool) -> None:
    family = FAMILIES[name]
    model = family.model(tied)
    path = family.write(tmp_path / "m.gguf", family.tensors(model))
    assert _convert(path, tmp_path / "out") == {"stored": "F16"}
    loaded = _load(tmp_path / "out")
    assert loaded.config.model_type == family.model_type
    assert loaded.config.architectures == [type(model).__name__]
    ids = torch.randint(3, len(TOKENS), (1, 40), generator=torch.Generator().manual_seed(0))
    for part in (ids, ids[:, :12]):  # beyond and within windows and original lengths
        with torch.no_grad():
            assert torch.equal(loaded(part).logits, model(part).logits)
    theirs = model.state_dict()
    for key, ours in loaded.state_dict().items():
        assert torch.equal(ours, theirs[key]), key
    assert set(loaded.state_dict()) == set(theirs)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_configuration_is_the_models(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    model = family.model(tied=True)
    _convert(family.write(tmp_path / "m.gguf", family.tensors(model)), tmp_path / "out")
    ours, theirs = _load(tmp_path / "out").config.to_dict(), model.config.to_dict()
    ignored = {"architectures", "dtype", "_name_or_path", "transformers_version"}
    ignored |= set() if "head_dim" in theirs else {"head_dim"}
    assert {k: v for k, v in ours.items() if k not in ignored} == {
        k: v for k, v in theirs.items() if k not in ignored
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_a_missing_and_an_unknown_tensor_are_refused(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    tensors = family.tensors(family.model(tied=True))
    for number, lost in enumerate(sorted(n for n in tensors if n.startswith("blk.1."))):
        less = {key: value for key, value in tensors.items() if key != lost}
        path = family.write(tmp_path / f"{number}.gguf", less)
        assert repr(lost) in _refused(path, tmp_path / str(number))
    more = tensors | {"blk.0.ffn_gate_exps.weight": np.zeros((4, 64), dtype=np.float32)}
    path = family.write(tmp_path / "more.gguf", more)
    assert "'blk.0.ffn_gate_exps.weight'" in _refused(path, tmp_path / "more")


@pytest.mark.parametrize(
    "name, key, value",
    [
        ("qwen2", "attention.sliding_window", 16),
        ("qwen3", "attention.scale", 0.5),
        ("qwen3", "rope.dimension_count", 12),
        ("qwen2", "attention.causal", False),
        ("olmo2", "attention.sliding_window", 16),
        ("smollm3", "expert_count", 4),
        ("gemma3", "attention.value_length", 32),
        ("gemma3", "attention.sliding_window_pattern", [True, False]),
        ("gemma3", "attn_logit_softcapping", 50.0),
    ],
)
def test_keys_that_cannot_be_rebuilt_are_named(
    tmp_path: Path, name: str, key: str, value: Any
) -> None:
    family = FAMILIES[name]
    tensors = family.tensors(family.model(tied=True))
    path = family.write(tmp_path / "m.gguf", tensors, {key: value})
    assert f"{name}.{key}" in _refused(path, tmp_path / "out")


@pytest.mark.parametrize(
    "name, changes",
    [
        ("qwen2", {"rope.scaling.type": "dynamic"}),
        ("qwen3", {"rope.scaling.yarn_ext_factor": 0.5}),
        ("phi3", {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}),
        ("mistral3", {"rope.scaling.type": "linear"}),
    ],
)
def test_other_rope_scalings_are_refused(
    tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    family = FAMILIES[name]
    tensors = family.tensors(family.model(tied=True))
    path = family.write(tmp_path / "m.gguf", tensors, changes)
    assert "scales RoPE" in _refused(path, tmp_path / "out")


@pytest.mark.parametrize("arch", ["qwen3moe", "mamba", "bert", "gemma2", "gemma-embedding"])
def test_other_architectures_are_refused_with_a_list(tmp_path: Path, arch: str) -> None:
    family = FAMILIES["qwen3"]
    other = type(family)(arch, family.model_type)
    path = other.write(tmp_path / "m.gguf", {"token_embd.weight": np.zeros((4, 64))})
    text = _refused(path, tmp_path / "out")
    assert repr(arch) in text
    assert all(name in text for name in ARCHITECTURES)


def test_gemmas_pattern_may_be_stated(tmp_path: Path) -> None:
    family = FAMILIES["gemma3"]
    tensors = family.tensors(family.model(tied=True))
    near = [True, False, True, True, False, True]
    cases = {"list": (near, near), "two": (2, [True, False] * 3), "one": (1, [False] * 6)}
    for name, (stated, wanted) in cases.items():
        key = "attention.sliding_window_pattern"
        path = family.write(tmp_path / f"{name}.gguf", tensors, {key: stated})
        _convert(path, tmp_path / name)
        kinds = _load(tmp_path / name).config.layer_types
        assert [kind == "sliding_attention" for kind in kinds] == wanted


def test_digits_are_split_as_each_vocabulary_was_made(tmp_path: Path) -> None:
    for name, pieces in {"qwen2": ["1", "2", "3", "4"], "olmo2": ["1", "2", "3", "4"]}.items():
        family = FAMILIES[name]
        path = family.write(tmp_path / f"{name}.gguf", family.tensors(family.model(tied=True)))
        _convert(path, tmp_path / name)
        tokenizer = read_tokenizer(tmp_path / name)
        assert tokenizer.convert_ids_to_tokens(tokenizer.encode("1234")) == pieces
        parts = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("1234 they'Re\n\nx")
        wanted = pieces if name == "qwen2" else ["123", "4"]
        assert [text for text, _ in parts][: len(wanted)] == wanted
