"""Rows, intervals and tables of an evaluation's file; the paper's numbers as printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from river_core import cli_evaluate, eval_report, paper_tables
from river_core.__main__ import main
from river_core.errors import RecordError
from river_core.resumable import Lines


def answer(**more: Any) -> dict[str, Any]:
    base = {"loglikelihood": -1.0, "greedy": False, "tokens": 2, "mean_exit_layer": 4.0}
    return base | {"counted": 2, "prompt_depth": 3, "truncated": 0, "seconds": 0.5} | more


def header(part: str, **more: Any) -> dict[str, Any]:
    return {
        "part": part,
        "type": "header",
        "model": "m",
        "origin": "made",
        "revision": None,
        "num_layers": 8,
        "dtype": "float32",
        "quantisation": "hqq-4bit-g64",
        "kernels": {},
        "settings": {"policy": "river", "threshold": 0.5},
        "scoring": "sequence",
        "note": "",
        "harness": "lm-eval 0",
        "task": "river_choice",
        "limit": None,
        "seed": 0,
        "chat": False,
        **more,
    }


def result(right: list[float], **more: Any) -> dict[str, Any]:
    score = sum(right) / len(right)
    base = {"metric": "acc,none", "score": score, "stderr": 0.1, "n": len(right), "right": right}
    return base | {"shots": [0], "task": "river_choice", "network": ""} | more


@pytest.fixture
def file(tmp_path: Path) -> Lines:
    lines = [
        header("a", note="one pass"),
        {"part": "a", "type": "item", "task": "t", "doc": 0, "asked": "x", "answers": [answer()]},
        {
            "part": "a",
            "type": "item",
            "task": "t",
            "doc": 1,
            "asked": "y",
            "answers": [answer(mean_exit_layer=8.0, counted=6)],
        },
        {"part": "a", "type": "result", **result([1, 0])},
        header(
            "b",
            task="river_code",
            settings={"policy": "backbone"},
        ),
        {
            "part": "b",
            "type": "item",
            "task": "t",
            "doc": 0,
            "asked": "z",
            "answers": [answer(text="7", mean_exit_layer=8.0)],
        },
        {
            "part": "b",
            "type": "result",
            **result([0.25, 0.5], task="river_code", network="namespace"),
        },
        {"part": "c", "type": "skipped", "reason": "no such thing."},
        header("unfinished"),
    ]
    path = tmp_path / "made.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Lines(path)


def test_wilson_is_the_published_interval() -> None:
    low, high = eval_report.wilson(81, 263)  # R: prop.test(81, 263, correct = FALSE)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    low, high = eval_report.wilson(0, 20)
    assert low == 0.0
    assert round(high, 4) == 0.1611
    assert eval_report.wilson(20, 20) == pytest.approx((1 - high, 1.0))
    assert eval_report.wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="not a proportion"):
        eval_report.wilson(3, 2)


def test_rows(file: Lines) -> None:
    choice, code = eval_report.rows(file)
    assert (choice["scoring"], code["scoring"]) == ("sequence", "text")
    assert choice["mean_exit_layer"] == (4 * 2 + 8 * 6) / 8
    assert (choice["tokens"], choice["seconds"], choice["prompt_depth"]) == (4, 1.0, 3)
    assert (choice["low"], choice["high"]) == eval_report.wilson(1, 2)
    assert code["high"] == pytest.approx(0.375 + 1.959964 * 0.1)
    assert (choice["threshold"], code["threshold"]) == (0.5, None)


def test_table_says_what_was_measured_and_what_was_not(file: Lines) -> None:
    text = "\n".join(eval_report.table(file))
    assert "| river_choice | river, threshold 0.5 | sequence | 50.0 | 9.5 to 90.5 | 2 |" in text
    assert "river, scoring sequence: one pass." in text
    assert "network off by namespace" in text
    assert "Left out: c: no such thing." in text
    assert "unfinished" not in text


def test_a_result_without_items_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    lines = [header("a"), {"part": "a", "type": "result", **result([1])}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RecordError, match="no items"):
        eval_report.rows(Lines(path))


def test_paper_tables_hold_the_papers_numbers_beside_ours(file: Lines) -> None:
    lines = list(paper_tables.tables(eval_report.rows(file)))
    boolq = next(line for line in lines if line.startswith("| BoolQ | 69.4"))
    assert boolq.startswith("| BoolQ | 69.4 | 67.5 | 69.2 | 3.90 | 15.02 | 84.1 |")
    assert any(line.startswith("| *river_choice* | - ") and "50.0" in line for line in lines)
    assert any(line.startswith("| Llama-3.1-8B, τ 0.5 | GSM8K | 78.2 | 69.8 |") for line in lines)
    tables = [line for line in lines if line.startswith("|")]
    assert len({line.count("|") for line in tables}) == 2  # accuracy tables alike, speed its own


def test_paper_tables_agree_with_each_other() -> None:
    """Table 3's River columns are Table 2's and 5's; its one other backbone is a known oddity."""
    order = list(paper_tables.BENCHMARKS)
    blocks = {block.model: block for block in (*paper_tables.TABLE_2, *paper_tables.TABLE_5)}
    odd = set()
    for (model, threshold), tasks in paper_tables.TABLE_3.items():
        block = blocks[model]
        for task, (backbone, _, river, *rates) in tasks.items():
            numbers = block.numbers[order.index(task)]
            assert numbers[1 + block.thresholds.index(threshold)] == river
            assert rates[0] < rates[2] < rates[1]
            odd |= {(model, task)} if numbers[0] != backbone else set()
    assert odd == {("Llama-3.2-1B", "GSM8K")}
    for block in blocks.values():
        assert len(block.numbers) == len(order)
        assert all(1 < exit_layer < block.layers for row in block.numbers for exit_layer in row[3:])


def test_the_papers_names_are_the_harnesss_tasks() -> None:
    assert cli_evaluate._tasks("paper")[0] == "boolq"
    assert len(cli_evaluate._tasks("paper")) == 8
    assert cli_evaluate._tasks("GSM8K, river_math,ARC-c") == [
        "gsm8k",
        "river_math",
        "arc_challenge",
    ]


def test_without_the_extra_one_sentence_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "river_core.harness", raising=False)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert main(["evaluate", "--report", str(tmp_path / "e")]) == 2
    said = capsys.readouterr().err
    assert "pip install" in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--policy", "rivr"], "unknown policy 'rivr'"),
        (["--threshold", "2"], "threshold is 2"),
        (["--threshold", "high"], "give numbers with commas"),
        (["--limit", "0"], "use 1 or more"),
        (["--tasks", " "], "--tasks is empty"),
        (["--scoring", "word"], "use sequence, token, or both"),
        (["--report", "/no/such/folder/e"], "does not exist"),
    ],
)
def test_wrong_arguments_are_refused_before_a_model_is_loaded(
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "river_core.harness", sys.modules[__name__])
    assert main(["evaluate", *arguments]) == 2
    assert sentence in capsys.readouterr().err
