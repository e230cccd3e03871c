"""A model that cannot be had never leaves the page without one, and the sentence is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

import river_core
from app.runner import Runner
from river_core.sources import DEFAULT
from tests.unit.fake_hub import SENTENCES, fake_hub
from tests.unit.test_app_runner import Engine, last


class Real(Engine):
    """The real `load`, but for the default model."""

    def load(self, name: str, *, progress: Any, **settings: Any) -> Any:
        if name == DEFAULT:
            return super().load(name, progress=progress, **settings)
        return river_core.load(name, progress=progress, **settings)


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVER_CACHE", str(tmp_path / "river"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


def shown(name: str) -> str:
    """What the page says of a model once loading has ended: the default one is ready, and why."""
    runner = Runner(name, engine=Real())
    runner.start()
    card = last(runner.cards())
    assert card["state"] == "ready" and card["status"] == "Ready, with the default model"
    assert (
        last(runner.run({"prompt": "hello", "threshold": 0.9, "max_new_tokens": 2}, "s"))["phase"]
        == "done"
    )
    runner.close()
    origin: str = card["origin"]
    before, _, sentence = origin.partition(". Used because ")
    assert before == "packaged" and sentence.endswith(".")
    assert "\n" not in sentence and "Traceback" not in sentence and "Error:" not in sentence
    return sentence


@pytest.mark.parametrize("name, words", SENTENCES.items())
def test_each_refusal_of_the_hub(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_hub() as (address, _):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        assert words in shown(name)


def test_no_hub_and_nothing_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "the Hugging Face hub does not answer" in shown("some/model")


def _config(folder: Path, **content: Any) -> None:
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "model.safetensors").write_bytes(b"")


FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda f: None, "config.json is missing"),
    "pickle": (
        lambda f: ((f / "config.json").write_text("{}"), (f / "pytorch_model.bin").touch()),
        "pickle files, which are never loaded",
    ),
    "experts": (lambda f: _config(f, model_type="mixtral"), "'mixtral' are not supported"),
    "code": (lambda f: _config(f, model_type="x", auto_map={"A": "b"}), "is never run"),
    "quantised": (
        lambda f: _config(f, model_type="llama", quantization_config={"quant_method": "awq"}),
        "already quantised",
    ),
    "damaged": (
        lambda f: _config(f, model_type="llama", hidden_size=64, intermediate_size=64),
        "is damaged",
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_each_folder_that_is_no_model(case: str, tmp_path: Path) -> None:
    make, words = FOLDERS[case]
    folder = tmp_path / case
    folder.mkdir()
    make(folder)
    assert words in shown(str(folder))


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\0\0\0" + b"\xff" * 40, b"PK\x03\x04"])
def test_a_file_that_is_no_gguf(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert "GGUF file" in shown(str(path))
