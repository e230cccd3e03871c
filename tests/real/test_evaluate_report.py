"""docs/evaluate.jsonl is what the command writes: its tables, and a few of its scores again."""

from __future__ import annotations

from pathlib import Path

import pytest

from river_core import eval_report, paper_tables
from river_core.cli_study import BEGIN, END
from river_core.evaluate import Scorer
from river_core.resumable import Lines
from river_core.sandbox import run_code
from river_core.tasks import local

STEM = Path(__file__).parents[2] / "docs" / "evaluate"
THRESHOLDS = (0.5, 0.98, 0.99)


@pytest.fixture(scope="module")
def report():
    return Lines(STEM.with_suffix(".jsonl"))


def test_every_setting_was_run(report):
    rows = eval_report.rows(report)
    found = {(row["task"], row["policy"], row["threshold"], row["scoring"]) for row in rows}
    settings = [("backbone", None), ("full-quant", None), ("river-verified", 0.98)]
    settings += [("river", threshold) for threshold in THRESHOLDS]
    for policy, threshold in settings:
        for task, scoring in (("math", "text"), ("code", "text"), ("choice", "sequence")):
            assert (f"river_{task}", policy, threshold, scoring) in found
        token = ("river_choice", policy, threshold, "token") in found
        assert token == (policy != "river-verified")


def test_the_tables_in_the_document_are_the_files(report):
    text = STEM.with_suffix(".md").read_text(encoding="utf-8")
    shown = text.split(BEGIN)[1].split(END)[0].strip()
    own = "\n".join(eval_report.table(report))
    beside = "\n".join(paper_tables.tables(eval_report.rows(report)))
    assert shown.startswith(own)
    assert shown.endswith(beside)


def test_verified_text_is_nearly_the_backbones(report):
    """In fp32 it is (test_policies); in 16 bits passes over several rows round differently."""
    texts = {
        policy: [x["answers"][0]["text"] for x in report.of(f"river_math, {policy}", "item")]
        for policy in ("backbone", "river-verified, threshold 0.98")
    }
    pairs = list(zip(*texts.values(), strict=True))
    assert sum(a == b for a, b in pairs) > len(pairs) / 2


def test_what_the_document_says_of_questions(report):
    """Where no prompt leaves, sequence scores are the backbone's; token scores are ordered."""

    def scores(part):
        lines = report.of(part, "item")
        return [answer["loglikelihood"] for line in lines for answer in line["answers"]]

    for policy in (
        "river, threshold 0.98",
        "river, threshold 0.99",
        "river-verified, threshold 0.98",
    ):
        assert scores(f"river_choice, {policy}") == scores("river_choice, backbone")
    rows = [row for row in eval_report.rows(report) if row["scoring"] == "token"]
    by_depth = sorted(rows, key=lambda row: row["mean_exit_layer"])
    right = [sum(row["right"]) for row in by_depth]
    assert right == sorted(right) == [31, 31, 33, 35, 35]


def test_choices_again_in_fp32(report, load_packaged):
    """The file's run was in bfloat16: the same option, nearly the same scores."""
    model = load_packaged("float32")
    scorer, tokenizer = Scorer(model, {"policy": "backbone"}), model.tokenizer
    items = local.read_items("river_choice")
    for line in report.of("river_choice, backbone", "item")[:3]:
        item = items[line["doc"]]
        context = tokenizer.encode(f"Question: {item['question']}\nAnswer:")
        stored = [answer["loglikelihood"] for answer in line["answers"]]
        again = []
        for option in item["choices"]:
            wanted = tokenizer.encode(f" {option}", add_special_tokens=False)
            again.append(scorer.loglikelihood(context, wanted).loglikelihood)
        assert again == pytest.approx(stored, abs=0.5)
        assert again.index(max(again)) == stored.index(max(stored))


def test_code_that_passed_passes_again(report):
    items = local.read_items("river_code")
    for head in report.lines:
        if head["type"] != "header" or head["task"] != "river_code":
            continue
        (result,) = report.of(head["part"], "result")
        lines = report.of(head["part"], "item")
        for line, right in list(zip(lines, result["right"], strict=True))[:4]:
            program = local.program(items[line["doc"]], line["answers"][0]["text"])
            assert run_code(program).passed == bool(right)
