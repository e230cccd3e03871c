"""The packaged Gemma 3 270M, where it is cached: its folder, and that transformers runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

from river_core import packaged
from river_core.hub_folder import read_tokenizer

PIECES = {  # as llama.cpp's rules make them: highest score first, bytes for what has no token
    "  two spaces": [138, 13498, 9952],
    "2026 3.14": [236778, 236771, 236778, 236825, 236743, 236800, 236761, 236770, 236812],
    "a\n\nb\t1": [236746, 108, 236763, 255968, 236770],
    "\U0001f600 \uc548\ub155": [242398, 17031, 239888],
    "\U000f0000": [481, 414, 366, 366],
    "<start_of_turn>user\nhi<end_of_turn>\n": [105, 2364, 107, 2202, 106, 107],
    "<table><td>1": [168, 175, 236770],
    "\r\n\x00": [251, 107, 238],
}


@pytest.fixture(scope="module")
def folder() -> Path:
    if not packaged.is_ready(packaged.GEMMA3):
        pytest.skip(
            "Gemma 3 270M is not in the cache; run 'python -m river_core fetch "
            f"{packaged.GEMMA3.name}', which asks to accept its terms"
        )
    return packaged.packaged_folder(packaged.GEMMA3)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return read_tokenizer(folder)


def test_configuration(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["dtype"]) == ("gemma3_text", "bfloat16")
    assert (config["hidden_size"], config["intermediate_size"]) == (640, 2048)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 1)
    assert (config["head_dim"], config["query_pre_attn_scalar"]) == (256, 256)
    assert (config["sliding_window"], config["max_position_embeddings"]) == (512, 32768)
    full = [n for n, kind in enumerate(config["layer_types"], 1) if kind == "full_attention"]
    assert (len(config["layer_types"]), full) == (18, [6, 12, 18])
    bases = {kind: rope["rope_theta"] for kind, rope in config["rope_parameters"].items()}
    assert bases == {"full_attention": 1e6, "sliding_attention": 1e4}
    assert config["tie_word_embeddings"] and config["vocab_size"] == 262144
    assert "Gemma Terms of Use" in (folder / "NOTICE").read_text()


def test_tensors(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    assert len(tensors) == 18 * 13 + 2 and "lm_head.weight" not in tensors
    assert {str(value.dtype) for value in tensors.values()} == {"float16"}  # norms lose nothing
    largest = max(abs(value).max() for name, value in tensors.items() if "norm" in name)
    assert largest == 1656.0  # the scale of this model's residual stream


@pytest.mark.parametrize("text", PIECES)
def test_tokenizer(tokenizer: Any, text: str) -> None:
    assert tokenizer.encode(text, add_special_tokens=False) == PIECES[text]
    assert tokenizer.decode(PIECES[text]) == text
    assert tokenizer.encode(text) == [2, *PIECES[text]]
    assert tokenizer.chat_template is None  # trained on text, not on conversations
    assert len(tokenizer) == 262144


@pytest.mark.slow
def test_transformers_runs_it(folder: Path, tokenizer: Any) -> None:
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    text = "The capital of France is"
    ids = tokenizer(text, return_tensors="pt").input_ids
    made = model.generate(ids, max_new_tokens=12, do_sample=False)
    assert "France" in tokenizer.decode(made[0, ids.shape[1] :])
    long = "The sun rises in the east and sets in the west. " * 60  # beyond the window of 512
    ids = tokenizer(long, return_tensors="pt").input_ids
    assert ids.shape[1] > 600
    with torch.no_grad():
        loss = model(ids, labels=ids).loss
    assert loss < 0.5
