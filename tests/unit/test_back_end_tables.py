"""Tables of back ends: the page's own, with what was not measured as a dash, and Table 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from river_core import back_end_speed, back_ends, paper_table4
from river_core.eval_report import _rate
from river_core.paper_table4 import FULL, NONE, RIVER
from river_core.resumable import Lines
from river_core.settings import QuantSpec

HQQ, RTN = QuantSpec(4, 64, "hqq"), QuantSpec(4, 64, "rtn")
COUNTS = dict.fromkeys(("slots_missing", "extra_rows", "drafted", "accepted"), 0)


def cell(part: str, match: float, depth: float, **more: Any) -> dict[str, Any]:
    numbers = {"match": match, "kl": 0.1, "top5_overlap": 1.0, "mean_exit_layer": depth}
    base = {"policy": "river", "prefill": "full", "mode": "forced", "first_difference": None}
    place = {"part": part, "type": "cell", "prompt": 0, "tokens": 4, "prompt_depth": 30}
    return place | base | numbers | COUNTS | more


def made(part: str) -> dict[str, Any]:
    numbers = {"bits": 4.5, "seconds": 1.0, "weight_error": 0.1}
    return {"part": part, "type": "made", **numbers, "key_cosine": 0.99, "value_cosine": 0.98}


def rate(name: str, middle: float) -> dict[str, Any]:
    return {"name": name, "tokens_per_second": middle, "slowest": middle - 1, "fastest": middle + 1}


def back_end_file(path: Path) -> Lines:
    """HQQ with all phases, RTN with fixed exits only."""
    file = Lines(path)
    for line in (
        *(made(HQQ.label), cell(HQQ.label, 0.9, 4.0, exit_layer=4)),
        cell(HQQ.label, 0.95, 12.5, threshold=0.98),
        {"part": HQQ.label, "type": "threshold", "threshold": 0.98, "origin": "default"},
        *(made(RTN.label), cell(RTN.label, 0.8, 4.0, exit_layer=4)),
    ):
        file.append(line)
    return file


def test_what_was_not_measured_is_a_dash(tmp_path: Path) -> None:
    lines = list(back_ends.table(back_end_file(tmp_path / "a.jsonl"), [HQQ, RTN]))
    assert lines[0].endswith(
        "| match at 4 | KL at 4 | match at default | mean exit layer | tok/s |"
    )
    assert lines[2].endswith("| 0.900 | 0.1000 | 0.950 | 12.50 | - |")
    assert lines[3].endswith("| 0.800 | 0.1000 | - | - | - |")
    assert lines[4:] == [
        "",
        "Threshold of policy river, the prompt after the last layer: 0.98 (default).",
    ]


def test_thresholds_that_differ_are_named_by_back_end(tmp_path: Path) -> None:
    file = back_end_file(tmp_path / "a.jsonl")
    file.append(cell(RTN.label, 0.85, 20.0, threshold=0.99))
    origin = {"threshold": 0.99, "origin": "auto, target_match 0.98"}
    file.append({"part": RTN.label, "type": "threshold", **origin})
    lines = list(back_ends.table(file, [HQQ, RTN]))
    assert "match at threshold" in lines[0]
    assert lines[3].endswith("| 0.850 | 20.00 | - |")
    assert lines[-1].endswith(
        "`hqq-4bit-g64` 0.98 (default), `rtn-4bit-g64` 0.99 (auto, target_match 0.98)."
    )


def test_speed_is_a_column_and_the_backbones_a_line_below(tmp_path: Path) -> None:
    file = back_end_file(tmp_path / "a.jsonl")
    place = {"dtype": "bfloat16", "device": "cpu", "processor": "P", "threads": 2}
    file.append({"part": back_end_speed.PART, "type": "header", "prompt_tokens": 9, **place})
    run = {"tokens": 48, "rounds": 5, "exit_layer": 4, "read": [30.0, 31.0]}
    rows = [rate("backbone", 50.0), rate(HQQ.label, 100.0)]
    file.append({"part": back_end_speed.PART, "type": "run", **run, "rows": rows})
    lines = list(back_ends.table(file, [HQQ, RTN]))
    assert lines[2].endswith("| 100.0 (99.0 to 101.0) |")
    assert lines[3].endswith("| - |")
    assert lines[-1] == (
        "tok/s: backbone 50.0 (49.0 to 51.0) tok/s in the same run. Median (slowest to fastest) of "
        "5 rounds over all rows, interleaved after a warm-up each: 48 tokens after 9, each leaving "
        "after layer 4; bfloat16, device cpu (P), 2 threads; read bandwidth 30.0 GB/s before, 31.0 "
        "after."
    )


def row(policy: str, back_end: str | None, **more: Any) -> dict[str, Any]:
    base = {"model": "m", "task": "river_math", "threshold": None, "score": 0.5, "items": 4}
    numbers = {"low": 0.15, "high": 0.85, "mean_exit_layer": 8.0, "tokens_per_second": 10.0}
    return {"policy": policy, "back_end": back_end, **base, **numbers, **more}


def test_table_4_holds_the_papers_rows_beside_ours() -> None:
    lines = list(
        paper_table4.tables(
            [
                row("backbone", NONE),
                row("river", "hqq-4bit-g64", threshold=0.9, tokens_per_second=None),
                row("full-quant", "hqq-4bit-g64", low=None, high=None),
                row("river", "gptq-4bit-g64", threshold=0.98),
                row("river", "hqq-3bit-g64", threshold=0.9),
                row("river", None, threshold=0.5),
            ]
        )
    )
    assert lines[0] == "#### Table 4: Llama-3.1-8B on GSM8K, and m on river_math"
    assert lines[4:11] == [
        "| Backbone | - | 25.3 | 78.2 | - | 10.0 | 50.0 | 15.0 to 85.0 | 8.00 | 4 |",
        "| River + `hqq-4bit-g64` | 0.5 | 45.0 | 74.4 | 0.9 | - | 50.0 | 15.0 to 85.0 | 8.00 | 4 |",
        "| `hqq-4bit-g64`, full | - | 47.5 | 69.8 | - | 10.0 | 50.0 | - | 8.00 | 4 |",
        "| River + `gptq-4bit-g64` | - | - | - | 0.98 | 10.0 | 50.0 | 15.0 to 85.0 | 8.00 | 4 |",
        "| River + `hqq-3bit-g64` | - | - | - | 0.9 | 10.0 | 50.0 | 15.0 to 85.0 | 8.00 | 4 |",
        "| River + AWQ | 0.5 | 46.9 | 77.3 | - | - | - | - | - | - |",
        "| AWQ, full | - | 48.1 | 76.2 | - | - | - | - | - | - |",
    ]
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_table_4_agrees_with_table_3() -> None:
    from river_core.paper_tables import TABLE_3

    backbone, full, river, *rates = TABLE_3["Llama-3.1-8B", 0.5]["GSM8K"]
    printed = (paper_table4.BACKBONE, FULL["hqq"], RIVER["hqq"])
    assert [p.score for p in printed] == [backbone, full, river]
    assert [p.tokens_per_second for p in printed] == rates


def test_a_rate_is_the_median_of_the_answers_that_decoded() -> None:
    times = [(10, 1.0), (0, 0.0), (40, 2.0), (30, 1.0)]
    answers = [{"counted": n, "decode_seconds": took} for n, took in times]
    assert _rate(answers) == 20.0
    assert _rate(answers[1:2]) is None
    assert _rate([*answers, {"counted": 3}]) is None
