"""A sentencepiece vocabulary in a GGUF file: digits, spaces, bytes, special tokens, turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig

from river_core import gguf_files
from river_core.errors import UnsupportedModel
from river_core.hub_folder import eos_ids, read_tokenizer
from tests.unit import tiny_families
from tests.unit.tiny_families import FAMILIES

_CONTROL, _OWN, _BYTE, _NORMAL = 3, 4, 6, 1
_START = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
_USER = ["\n", "\n\n", "  ", "   "]  # spaces are stored as spaces, elsewhere as U+2581
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_WORDS = ["\u2581", *"0123456789", *"abcdehlorwx", "he", "ll", "\u2581w", "\u2581wo"]
_TOKENS = [*_START, *_USER, *_BYTES, *_WORDS]
_KINDS = [_CONTROL] * len(_START) + [_OWN] * len(_USER) + [_BYTE] * 256 + [_NORMAL] * len(_WORDS)
_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}"
    "<end_of_turn>\n{% endfor %}"
)


def _file(path: Path, rows: int = len(_TOKENS)) -> Path:
    settings: dict[str, Any] = {
        "model": "llama",
        "pre": "default",
        "tokens": _TOKENS,
        "scores": [-float(number) for number in range(len(_TOKENS))],
        "token_type": _KINDS,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "unknown_token_id": 3,
        "padding_token_id": 0,
        "add_bos_token": True,
        "add_space_prefix": False,
    }
    keys = {f"tokenizer.ggml.{key}": value for key, value in settings.items()}
    keys["tokenizer.chat_template"] = _TEMPLATE
    family = FAMILIES["gemma3"]
    tensors = family.tensors(family.model(tied=True))
    tensors["token_embd.weight"] = np.zeros((rows, tiny_families.HIDDEN))
    return family.write(path, tensors, tokenizer=keys)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gemma")
    gguf_files.convert(_file(out / "m.gguf"), out)
    return out


@pytest.mark.parametrize(
    "text, pieces",
    [
        ("120", ["1", "2", "0"]),
        ("hello world", ["he", "ll", "o", "\u2581wo", "r", "l", "d"]),
        (" wo", ["\u2581wo"]),
        ("x  wo", ["x", "\u2581\u2581", "w", "o"]),
        ("x   x", ["x", "\u2581\u2581\u2581", "x"]),
        ("a\n\nb\n", ["a", "\n\n", "b", "\n"]),
        ("\u00e9", ["<0xC3>", "<0xA9>"]),
        ("\uc548", ["<0xEC>", "<0x95>", "<0x88>"]),
        ("\U0001f600", ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]),
        ("<end_of_turn>x<eos>", ["<end_of_turn>", "x", "<eos>"]),
    ],
)
def test_text_becomes_the_pieces_that_llama_cpp_makes(
    folder: Path, text: str, pieces: list[str]
) -> None:
    tokenizer = read_tokenizer(folder)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(ids) == pieces
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == len(_TOKENS)


def test_bos_comes_first_and_turns_end_answers(folder: Path) -> None:
    tokenizer = read_tokenizer(folder)
    assert tokenizer.encode("x")[0] == 2
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    assert chat == "<bos><start_of_turn>user\nx<end_of_turn>\n"
    assert json.loads((folder / "generation_config.json").read_text()) == {
        "bos_token_id": 2,
        "eos_token_id": [1, 6],
        "pad_token_id": 0,
    }
    assert eos_ids(folder, AutoConfig.from_pretrained(folder), tokenizer) == (1, 6)


def test_a_token_beyond_the_embedding_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path / "m.gguf", rows=290)
    with pytest.raises(UnsupportedModel, match=r"tokenizer has 293 .* for 290 .* of this model\.$"):
        gguf_files.convert(path, tmp_path)
