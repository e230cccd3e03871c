"""Byte arithmetic, schedules, interleaving, rows and reports."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import pytest
import torch

from river_core import bench, bench_report, cli_bench, contenders
from river_core.bandwidth import ReadBytes, read_bandwidth
from river_core.errors import SettingsError
from river_core.kernels.choose import KernelPlan
from river_core.layer import BlockShape
from river_core.random_model import random_model
from river_core.settings import QuantSpec
from river_core.shapes import SHAPES

SMOL = SHAPES["smollm2-135m"]
SMOL_BYTES = ReadBytes.of_shape(SMOL.block, SMOL.layers, SMOL.vocab)
LLAMA_8B = BlockShape(4096, 32, 8, 128, 14336, 1e-5)
LLAMA_BYTES = ReadBytes.of_shape(LLAMA_8B, 32, 128256)


@pytest.mark.parametrize(
    ("found", "megabytes"),
    [
        (SMOL_BYTES.layer, 7.08),
        (SMOL_BYTES.twin, 1.99),
        (SMOL_BYTES.head, 56.6),
        (SMOL_BYTES.at(30), 269.0),
        (SMOL_BYTES.at(0), 116.0),
        (SMOL_BYTES.at(4), 137.0),
        (LLAMA_BYTES.layer, 436.2),
        (LLAMA_BYTES.twin, 122.7),
        (LLAMA_BYTES.head, 1050.7),
        (LLAMA_BYTES.at(32), 15009.0),
        (LLAMA_BYTES.at(0), 4977.0),
        (LLAMA_BYTES.at(3.79), 6165.0),
        (LLAMA_BYTES.at(8), 7485.0),
    ],
)
def test_bytes_per_token_are_those_worked_out_by_hand(found: float, megabytes: float) -> None:
    assert found / 1e6 == pytest.approx(megabytes, rel=3e-3)


def test_byte_bounds_of_river_over_the_backbone() -> None:
    assert SMOL_BYTES.at(30) / SMOL_BYTES.at(4) == pytest.approx(1.97, abs=0.01)
    assert LLAMA_BYTES.at(32) / LLAMA_BYTES.at(3.79) == pytest.approx(2.43, abs=0.01)


def test_bytes_of_a_model_are_those_of_its_kernels() -> None:
    spec = SHAPES["tiny"]
    model = random_model(spec, dtype="bfloat16", capacity=64, river=QuantSpec(bits=16))
    expected = ReadBytes.of_shape(spec.block, spec.layers, spec.vocab, int4=16)
    assert ReadBytes.of_model(model) == expected
    assert model.memory()["backbone"] == expected.layer * spec.layers


@pytest.mark.parametrize(("mean", "tokens"), [(3.79, 64), (4.0, 9), (1.5, 2), (2.25, 200)])
def test_schedule_has_the_mean_that_was_asked_for(mean: float, tokens: int) -> None:
    layers = contenders.exit_schedule(mean, tokens, range(1, 31))
    assert len(layers) == tokens
    assert mean - 1 / (tokens - 1) < fmean(layers[1:]) <= mean
    assert max(layers) - min(layers) <= 1


def test_schedule_stays_within_the_layers() -> None:
    assert set(contenders.exit_schedule(9.5, 5, range(1, 9))) == {8}
    assert set(contenders.exit_schedule(0.2, 5, range(3, 9))) == {3}


@dataclass
class Fake:
    """A contender that says when it ran; its rates are given."""

    name: str
    log: list[str] = field(default_factory=list)
    rates: list[float] = field(default_factory=lambda: [1.0])
    exit_layer: float = 30.0

    def run(self, tokens: int) -> bench.Sample:
        self.log.append(f"{self.name} {tokens}")
        return bench.Sample(self.rates[0], self.exit_layer)

    peer = False

    def reads(self) -> ReadBytes | None:
        return SMOL_BYTES

    def kernels(self, exit_layer: float) -> str:
        return f"kernels of {self.name}"

    def detail(self, tokens: int) -> bench.Detail:
        return bench.Detail({"backbone": 1.5, "head": 0.25}, 0.5, 3 << 20)


def test_rounds_are_interleaved_after_a_warm_up() -> None:
    log: list[str] = []
    contenders = [Fake(name, log) for name in "abc"]
    samples = bench.interleave(contenders, 40, 3)
    assert log[:3] == ["a 16", "b 16", "c 16"]
    assert [entry[0] for entry in log[3:]] == [*"abc", *"bca", *"cab"]
    assert {entry[2:] for entry in log[3:]} == {"40"}
    assert {name: len(found) for name, found in samples.items()} == {"a": 3, "b": 3, "c": 3}


def three_rows() -> list[bench_report.Row]:
    """Backbone, a River that is faster in the middle round, and one that is slower."""
    contenders = [
        Fake("backbone"),
        Fake("River", exit_layer=4.0),
        Fake("slow River", exit_layer=4.0),
    ]
    rates = {"backbone": [10, 20, 40], "River": [30, 30, 40], "slow River": [9, 10, 38]}
    samples = {
        c.name: [bench.Sample(rate, c.exit_layer) for rate in rates[c.name]] for c in contenders
    }
    details = {"River": contenders[1].detail(8)}
    return bench.rows(contenders, samples, 10.0, details)


def test_rows_take_medians_and_ratios_round_by_round() -> None:
    base, river, slow = three_rows()
    assert (base.tokens_per_second, base.slowest, base.fastest) == (20, 10, 40)
    assert base.ms_per_token == 50
    assert base.to_backbone == base.byte_bound == 1
    assert river.to_backbone == 1.5  # of 3, 1.5 and 1
    assert river.byte_bound == pytest.approx(1.97, abs=0.01)
    assert slow.to_backbone == pytest.approx(0.9)
    assert base.gigabytes_per_second == pytest.approx(0.269 * 20, rel=1e-2)
    assert base.share_of_read == pytest.approx(0.538, rel=1e-2)
    assert base.to_peer is None


def report() -> bench_report.Report:
    head = {
        "model": "m",
        "origin": "o",
        "processor": "p",
        "threads": 2,
        "versions": {"torch": "2"},
        "prompt_tokens": 5,
        "tokens": 8,
        "rounds": 3,
        "read_gigabytes_per_second": [30.0, 31.5],
        "device": "cpu",
        "peak_bytes": 5 << 20,
        "left_out": ["llama.cpp is left out."],
    }
    return bench_report.Report(head, three_rows())


def test_report_text_shows_bandwidth_rows_and_parts() -> None:
    lines = list(report().text())
    assert "read bandwidth 30.0 GB/s before, 31.5 after" in lines
    title, *rows = lines[lines.index("") + 1 :]
    slow = next(line for line in rows if line.startswith("slow River"))
    end = title.index("x backbone") + len("x backbone")
    assert slow[:end].endswith(" 0.90")  # a slow-down is shown
    assert "memory at its peak, everything together: 5 MiB" in lines
    assert "llama.cpp is left out." in lines
    river = [line.split() for line in lines if line.startswith("River ")]
    assert river[0][-5:-3] == ["0.500", "3"]
    assert river[1] == ["River", "1.50", "0.25"]
    assert len([line for line in lines if line.startswith("slow River")]) == 1  # no parts


def test_kernel_times_are_shown_by_kind_and_shape() -> None:
    plan = KernelPlan(
        torch.float16,
        {(6, 4): "native-fp16"},
        {(4, 6, 4): "aten-int4"},
        {"torch-fp16 6x4": 9.0, "native-fp16 6x4": 7.0, "aten-int4 6x4": 3.0},
    )
    title, *lines = bench_report.kernel_table(bench.kernel_times(plan))
    assert title.startswith("micro-test")
    times = [line.split() for line in lines]
    assert times[0] == ["6x4", "dense", "7.0", "native-fp16", "chosen"]
    assert times[1] == ["6x4", "dense", "9.0", "torch-fp16"]
    assert times[2] == ["6x4", "int4", "3.0", "aten-int4", "chosen"]


def test_report_lines_are_a_header_and_rows(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    bench_report.save_lines(path, report().lines())
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["type"] for line in lines] == ["bench"] + ["row"] * 3
    assert lines[2]["to_backbone"] == 1.5
    with pytest.raises(SettingsError, match="cannot be written"):
        bench_report.save_lines(tmp_path / "none" / "x.jsonl", [])


def test_engines_force_the_mean_exit_and_decode_through_stop_ids() -> None:
    model = random_model("tiny", capacity=64)
    model.eos_ids = tuple(range(model.vocab))
    found = contenders.engines(model, (1, 2, 3), 9, [1.0], [3.79, 6])
    samples = {c.name: c.run(9) for c in found}
    assert [s.mean_exit_layer for s in samples.values()] == [8, 0, 8, 3.75, 6]
    assert samples["River, threshold 1"].decision_microseconds is not None
    assert {s.execution for s in samples.values()} <= {"fused C++ steps", "eager torch"}
    shown = [found[0].kernels(exit_layer) for exit_layer in (8, 3.75, 0)]
    assert ["int4" in names for names in shown] == [False, True, True]
    with pytest.raises(SettingsError, match="tokens is 1"):
        contenders.engines(model, (1, 2, 3), 1, [], [])
    with pytest.raises(SettingsError, match="threshold is 7"):
        contenders.engines(model, (1, 2, 3), 9, [0.5, 7], [])
    with pytest.raises(SettingsError, match="mean exit layer is nan"):
        contenders.engines(model, (1, 2, 3), 9, [], [float("nan")])
    with pytest.raises(SettingsError, match="rounds is 0"):
        bench.measure(found, 8, 0, {})


def test_read_bandwidth_is_a_rate() -> None:
    assert 0.05 < read_bandwidth(torch.device("cpu"), 8 << 20, 2) < 5000


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--save", "/nowhere/at/all.jsonl"], "does not exist"),
        (["--dry-run"], "belongs to --gpu-report"),
        (["--threads", "0"], "use 1 or more"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments: list[str], word: str) -> None:
    parser = ArgumentParser()
    cli_bench.add_arguments(parser)
    with pytest.raises(SettingsError, match=word):
        cli_bench.main(parser.parse_args(arguments))
