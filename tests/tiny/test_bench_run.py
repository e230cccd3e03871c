"""`bench` from end to end on tiny models: prompt lengths, random shapes, the figure, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest

from river_core import bench, bench_run, cli_bench, llama_cpp_peer
from river_core.errors import CacheFull, SettingsError
from river_core.machine import peak_memory
from river_core.random_model import random_model
from river_core.settings import QuantSpec
from river_core.shapes import SHAPES

ROOT = Path(__file__).parents[2]
QUICK = ["--tokens", "4", "--rounds", "1", "--threads", "1"]


@pytest.fixture(autouse=True)
def _given_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "read_bandwidth", lambda device: 20.0)


def command(*arguments: str) -> int:
    parser = ArgumentParser()
    cli_bench.add_arguments(parser)
    return cli_bench.main(parser.parse_args(list(arguments)))


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_random_shape_is_labelled_and_forced(tmp_path, capsys):
    saved, figure = tmp_path / "b.jsonl", tmp_path / "b.html"
    shape = ["--shape", "tiny", "--device", "cpu", *QUICK]
    places = ["--save", str(saved), "--figure", str(figure)]
    assert command(*shape, "--context", "8", "--context", "24", *places) == 0
    printed = capsys.readouterr().out
    assert printed.count("random weights: similarities have no meaning, exits forced") == 2
    assert bench_run.NO_FOLDER in printed
    found = lines(saved)
    heads = [line for line in found if line["type"] == "bench"]
    assert [head["prompt_tokens"] for head in heads] == [8, 24]
    assert all(head["label"] == bench_run.RANDOM for head in heads)
    rows = [line for line in found if line["type"] == "row"]
    ours = [row["name"] for row in rows[: len(rows) // 2] if "llama" not in row["name"]]
    forced = ["River, forced exits 3.79", "River, forced exits 8"]
    assert ours == ["backbone", "full quantization", *forced]
    assert {row["agreement"] for row in rows if row["name"] in ours} == {None}
    assert [line["type"] for line in found[-8:]] == ["kernel"] * 8
    assert "Plotly.newPlot" in figure.read_text(encoding="utf-8")
    drawn = json.loads(figure.with_suffix(".json").read_text(encoding="utf-8"))
    names = [trace["name"] for trace in drawn["data"]]
    assert set(ours) <= set(names) and "head" in names
    assert bench_run.RANDOM in drawn["layout"]["title"]["text"]


def test_a_loaded_model_at_lengths_that_fit(one_tiny, monkeypatch, capsys, tmp_path):
    """The model has 512 positions; its tokenizer is missing, so the ids are given."""
    monkeypatch.setattr("river_core.prompts.encode", lambda *_: (tuple(one_tiny.prompt), False))
    model = ["--model", str(one_tiny.folder), "--device", "cpu", "--dtype", "float32"]
    model += ["--peer-dtype", "float32", "--threshold", "0.3", "--json"]
    lengths = ["--context", "20", "--context", "600"]
    assert command(*model, *QUICK, *lengths, "--save", str(tmp_path / "b.jsonl")) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines(tmp_path / "b.jsonl") == found
    (head,) = (line for line in found if line["type"] == "bench")
    assert head["prompt_tokens"] == 20
    assert head["label"] is None
    assert head["peak_bytes"] > 1 << 20
    assert "context 600 is left out: with 4 tokens it needs 604 positions" in head["left_out"][0]
    assert bench_run.NOT_COMPILED in head["left_out"]
    assert (llama_cpp_peer.MISSING in head["left_out"]) != llama_cpp_peer.installed()
    rows = {line["name"]: line for line in found if line["type"] == "row"}
    peer = rows["Hugging Face generate, float32"]
    assert peer["agreement"] == rows["backbone"]["agreement"] == 1
    assert peer["parts"] is None
    assert set(rows["backbone"]["parts"]) == {"backbone", "river", "fill", "head", "decision"}
    verified = next(row for name, row in rows.items() if name.startswith("river-verified"))
    assert verified["agreement"] == 1
    assert verified["byte_bound"] is None


def test_prompts_go_round_and_lengths_are_checked():
    assert bench_run.prompt_of((1, 2, 3), 7) == (1, 2, 3, 1, 2, 3, 1)
    assert bench_run.prompt_of((1, 2, 3), 2) == (1, 2)
    assert bench_run.fitting([8, 100], 8, 64)[0] == [8]
    assert bench_run.fitting([], 8, 64) == ([], [])
    with pytest.raises(SettingsError, match="100 is left out"):
        bench_run.fitting([100], 8, 64)
    with pytest.raises(SettingsError, match="context is 0"):
        bench_run.fitting([0], 8, 64)
    with pytest.raises(CacheFull):
        next(bench_run.run(random_model("tiny", capacity=32), [(1,) * 40], bench_run.Wanted()))


def test_a_shape_that_does_not_fit_is_one_sentence(monkeypatch):
    monkeypatch.setattr(bench_run, "free_ram", lambda: 3 << 30)
    with pytest.raises(SettingsError, match=r"takes \d+\.\d GiB, and 3.0 GiB of RAM are free"):
        bench_run.check_room(SHAPES["llama-3.2-1b"], QuantSpec(), 4096, "auto", False)
    bench_run.check_room(SHAPES["smollm2-135m"], QuantSpec(), 4096, "auto", False)
    monkeypatch.setattr(bench_run, "free_ram", lambda: None)  # unknown: tried
    bench_run.check_room(SHAPES["llama-3.1-70b"], QuantSpec(), 4096, "auto", False)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--shape", "llama-9b"], "unknown shape 'llama-9b'"),
        (["--shape", "tiny", "--threshold", "0.5"], "means nothing to random weights"),
        (["--shape", "tiny", "--model", "x"], "leave --model and --prompt out"),
        (["--figure", "/nowhere/at/all.html"], "does not exist"),
        (["--rounds", "0"], "--rounds is 0"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(arguments, word):
    with pytest.raises(SettingsError, match=word):
        command(*arguments)


def test_the_peak_is_at_least_what_this_process_has():
    assert peak_memory("cpu") is None or peak_memory("cpu") > 50 << 20


def test_importing_river_core_leaves_the_libraries_of_peers_and_figures_out():
    heavy = ["gguf", "llama_cpp", "plotly", "transformers", "triton"]
    code = f"""
import sys, river_core, river_core.bench_run, river_core.contenders, river_core.figures
print([name for name in {heavy} if name in sys.modules])"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
