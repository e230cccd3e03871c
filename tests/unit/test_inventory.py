"""`models`: what is here, what it takes, whether it fits. No weights are read, no network used."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from huggingface_hub import constants

from river_core import gguf_files, inventory, machine, packaged
from river_core.__main__ import main
from river_core.errors import ModelUnavailable, UnsupportedModel
from river_core.footprint import Layout, footprint
from river_core.inventory import Listed, find_sizes, sizes_of
from river_core.machine import FreeMemory
from river_core.model_store import publish
from river_core.shapes import SHAPES
from tests.unit.fake_hub import SHA
from tests.unit.made_folders import fill

OTHER = "f" * 40
NEEDED = footprint(SHAPES["smollm2-135m"], Layout(), tokens=4096).total
FREE = FreeMemory("RAM", NEEDED)


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty caches, a machine with room for just one model, and no way to the network."""

    def refuse(*args: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setenv("RIVER_CACHE", str(tmp_path / "river"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(machine, "free_memory", lambda: FREE)


def _snapshot(tmp_path: Path, repo: str, sha: str = SHA, **changes: object) -> Path:
    store = tmp_path / "hub" / f"models--{repo.replace('/', '--')}"
    if sha == SHA:
        (store / "refs").mkdir(parents=True, exist_ok=True)
        (store / "refs" / "main").write_text(sha)
    return fill(store / "snapshots" / sha, **changes)


def _packaged() -> Path:
    def build(out: Path) -> dict[str, object]:
        fill(out)
        return {}

    publish(packaged.packaged_folder(), packaged.SMOLLM2.key, build)
    return packaged.packaged_folder()


def _converted(name: str) -> Path:
    def build(out: Path) -> dict[str, object]:
        fill(out, num_hidden_layers=31)
        return {"stored": "Q8_0"}

    folder = packaged.packaged_folder().with_name(name)
    publish(folder, f"gguf {gguf_files.FORMAT} 1 2", build)
    return folder


def _listed() -> dict[str, Listed]:
    return {listed.name: listed for listed in inventory.inventory(FREE)}


NAMED = ["smollm2-135m", "smollm2-135m-packaged", "gemma3-270m-packaged"]

# -- what is listed


def test_known_names_before_anything_was_fetched() -> None:
    models = _listed()
    assert list(models) == NAMED
    for listed in models.values():
        assert not listed.cached and listed.size > 90_000_000 and listed.problem == ""
    smol = [models[name] for name in NAMED[:2]]
    assert all((listed.needed, listed.fits) == (NEEDED, True) for listed in smol)
    gemma = models["gemma3-270m-packaged"]
    assert gemma.needed is not None and gemma.needed > NEEDED and gemma.fits is False
    assert "under the Gemma Terms of Use" in gemma.description


def test_known_names_once_they_are_here(tmp_path: Path) -> None:
    hub = _snapshot(tmp_path, "HuggingFaceTB/SmolLM2-135M-Instruct", num_hidden_layers=31)
    _packaged()
    models = _listed()
    assert list(models) == NAMED  # the repository only once
    assert [models[name].cached for name in NAMED] == [True, True, False]
    default = models["smollm2-135m"]
    assert default.size == sum(f.stat().st_size for f in hub.iterdir())
    assert default.needed is not None and default.needed > NEEDED and default.fits is False


def test_converted_files_are_listed_by_their_folder() -> None:
    _packaged()
    folder = _converted("gguf-some-model-0123456789ab")
    broken = _converted("gguf-broken-0123456789ab")
    (broken / "model.safetensors").write_bytes(b"cut")
    (folder.parent / "gguf-odd").mkdir()
    (folder.parent / "gguf-odd" / "river.json").write_text("[]")
    models = _listed()
    assert list(models)[3:] == [str(folder)]
    assert models[str(folder)].description == "converted from a GGUF file, stored as Q8_0"
    assert models[str(folder)].cached and models[str(folder)].fits is False


def test_the_hugging_face_cache(tmp_path: Path) -> None:
    _snapshot(tmp_path, "some/model")
    _snapshot(tmp_path, "some/model", OTHER)
    _snapshot(tmp_path, "other/family", model_type="mamba")
    _snapshot(tmp_path, "some/quantised", quantization_config={"quant_method": "gptq"})
    (_snapshot(tmp_path, "some/part") / "model.safetensors").unlink()
    (_snapshot(tmp_path, "some/damaged") / "config.json").write_text("{")
    (tmp_path / "hub" / "models--odd--one").mkdir()
    (tmp_path / "hub" / "datasets--a--b").mkdir()
    models = _listed()
    assert list(models)[3:] == ["some/model", f"some/model@{OTHER}", "some/quantised"]
    assert models["some/model"].needed == NEEDED
    refused = models["some/quantised"]
    assert refused.needed is None and refused.fits is None and "quantised" in refused.problem


def test_the_default_capacity_ends_at_the_models_positions(tmp_path: Path) -> None:
    _snapshot(tmp_path, "some/short", max_position_embeddings=512)
    expected = footprint(SHAPES["smollm2-135m"], Layout(), tokens=512).total
    assert _listed()["some/short"].needed == expected


def test_sizes_of_a_folder_come_from_its_configuration_alone(tmp_path: Path) -> None:
    folder = fill(tmp_path / "own")
    for name in ("tokenizer.json", "model.safetensors"):
        (folder / name).unlink()
    spec, longest = sizes_of(folder, "smollm2-135m")
    assert (spec, longest) == (SHAPES["smollm2-135m"], 8192)
    assert find_sizes(str(folder))[0].block == spec.block


@pytest.mark.parametrize("name", ["some/model", "nothing", "./nowhere", "a/b/c", ""])
def test_what_is_not_here_is_not_asked_for(name: str) -> None:
    with pytest.raises(ModelUnavailable, match="is not on this machine"):
        find_sizes(name)


def test_damaged_and_foreign_configurations(tmp_path: Path) -> None:
    folder = fill(tmp_path / "own", model_type="mamba")
    with pytest.raises(UnsupportedModel, match="'mamba'"):
        find_sizes(str(folder))
    (folder / "config.json").write_text("[")
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        find_sizes(str(folder))


# -- the command line


def test_models_for_a_person(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _packaged()
    _snapshot(tmp_path, "some/larger", num_hidden_layers=31)
    _snapshot(tmp_path, "some/quantised", quantization_config={"quant_method": "gptq"})
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines if line and not line.startswith(" ")}
    assert rows["smollm2-135m"].split()[1:3] == ["to", "download"]
    assert rows["smollm2-135m"].endswith("404 MiB  yes")
    assert "cached" in rows["smollm2-135m-packaged"]
    assert rows["some/larger"].endswith("no")
    assert rows["some/quantised"].split()[-2:] == ["unknown", "unknown"]
    assert lines[-1] == "Free here now: 404 MiB of RAM."


def test_models_for_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert first["name"] == "smollm2-135m" and first["needed"] == NEEDED and first["fits"] is True
    assert set(first) == set(Listed.__dataclass_fields__)


def test_unknown_memory_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "free_memory", lambda: FreeMemory("GPU memory", None))
    assert main(["models"]) == 0
    assert capsys.readouterr().out.endswith(
        "How much GPU memory is free here cannot be found out.\n"
    )
