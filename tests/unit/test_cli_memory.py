"""`memory`: bytes of a model that is not loaded, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import constants

from river_core import cli_memory, machine
from river_core.__main__ import main
from river_core.footprint import Layout, footprint
from river_core.machine import FreeMemory
from river_core.shapes import SHAPES
from tests.unit.made_folders import fill

NEEDED = footprint(SHAPES["smollm2-135m"], Layout(), tokens=4096).total


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty caches, and a machine with room for just one SmolLM2-135M."""
    monkeypatch.setenv("RIVER_CACHE", str(tmp_path / "river"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(machine, "free_memory", lambda: FreeMemory("RAM", NEEDED))


def _memory(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, list[float]]:
    """Row's title -> its numbers, of the table that `memory` prints."""
    assert main(["memory", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = lines[3 : lines.index("", 3)]
    width = cli_memory.TITLE
    return {line[:width].strip(): [float(v) for v in line[width:].split()] for line in table[1:]}


def test_memory_of_a_shape(capsys: pytest.CaptureFixture[str]) -> None:
    rows = _memory(capsys, "--shape", "llama-3.1-8b")
    assert list(rows) == [
        "backbone alone",
        "full quantization",
        "River, all 32 layers resident",
        *(f"River, first {k} resident" for k in (2, 4, 8, 16)),
    ]
    assert rows["backbone alone"] == [0.98, 0.98, 13.0, 0, 0, 0.5, 0, 15.46]
    assert rows["River, all 32 layers resident"][-1] == 19.0
    assert rows["River, first 4 resident"] == [0.98, 0.98, 1.62, 3.54, 0, 0.5, 0, 7.63]


def test_memory_as_the_paper_counts(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--metadata-bits", "0", "--resident", "4", "--tokens", "0"]
    rows = _memory(capsys, "--shape", "llama-3.1-8b", *options)
    assert list(rows) == ["backbone alone", "full quantization", "River, first 4 resident"]
    assert rows["River, first 4 resident"][-1] == 6.73


def test_memory_says_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "--model", "smollm2-135m"]) == 0
    assert capsys.readouterr().out.endswith(
        "Free here now: 404 MiB of RAM, enough for all of these.\n"
    )
    assert main(["memory", "--shape", "llama-3.1-8b"]) == 0
    assert capsys.readouterr().out.endswith("not enough for any of these.\n")
    assert main(["memory", "--tokens", "5000"]) == 0
    fitting = capsys.readouterr().out.splitlines()[-1]
    assert "enough for: backbone alone; full quantization; River, first 2 resident;" in fitting
    assert "all 30" not in fitting


def test_unknown_memory_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "free_memory", lambda: FreeMemory("GPU memory", None))
    assert main(["memory", "--shape", "tiny"]) == 0
    assert capsys.readouterr().out.endswith("so whether any of these fits is unknown.\n")


def test_memory_of_a_folder_reads_only_its_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = fill(tmp_path / "own", num_hidden_layers=4)
    (folder / "model.safetensors").unlink()
    assert main(["memory", "--model", str(folder), "--json", "--tokens", "100"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tokens"], found["free"]) == (100, NEEDED)
    assert [row["what"] for row in found["rows"]][2:] == [
        "River, all 4 layers resident",
        "River, first 2 resident",
    ]
    for row in found["rows"]:
        assert row["total"] == sum(v for k, v in row.items() if k not in ("what", "total"))


def test_table_6(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "--table6"]) == 0
    text = capsys.readouterr().out
    assert "EE-LLM, paper" in text and "16.98" in text and "16.99" in text
    assert main(["memory", "--table6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["paper"]["River"]["parameters"] == 6.73
    assert found["computed"]["River"]["parameters"] == pytest.approx(6.73, abs=0.005)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shape", "llama-9"], "known are smollm2-135m"),
        (["--model", "some/model"], "is not on this machine"),
        (["--model", "own.gguf"], "is a GGUF file; convert it"),
        (["--shape", "tiny", "--bits", "5"], "bits is 5"),
        (["--shape", "tiny", "--group-size", "48"], "group_size is 48"),
        (["--shape", "smollm2-135m", "--group-size", "128"], "does not divide the 576"),
        (["--shape", "tiny", "--metadata-bits", "8"], "metadata_bits is 8"),
        (["--shape", "tiny", "--entry-layer", "1"], "entry_layer is 1"),
        (["--shape", "tiny", "--entry-layer", "9"], "has 8 layers"),
        (["--shape", "tiny", "--resident", "9"], "9 resident layers"),
        (["--shape", "tiny", "--resident", "0"], "0 resident layers"),
        (["--shape", "tiny", "--tokens", "-1"], "tokens is -1"),
        (["--shape", "tiny", "--table6"], "--table6 is about llama-3.1-8b"),
    ],
)
def test_bad_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["memory", *arguments]) == 2
    text = capsys.readouterr().err
    assert words in text and text.startswith("river: ") and text.endswith(".\n")
    assert text.count("\n") == 1


def test_more_tokens_than_positions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = fill(tmp_path / "own", max_position_embeddings=512)
    assert main(["memory", "--model", str(folder), "--tokens", "513"]) == 2
    assert "takes at most 512" in capsys.readouterr().err
