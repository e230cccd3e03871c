"""docs/thresholds.jsonl is what the command writes: one of its numbers, computed again."""

from __future__ import annotations

from pathlib import Path

import pytest

from river_core.cli_study import BEGIN, END
from river_core.sweep import bundled_prompts, load_lines, measure, reference_run, table

STEM = Path(__file__).parents[2] / "docs" / "thresholds"


@pytest.fixture(scope="module")
def report():
    return load_lines(STEM.with_suffix(".jsonl"))


def test_the_report_is_as_large_as_it_says(report):
    head, rows = report
    assert head["tokens_per_prompt"] >= 96
    assert head["dtype"] == "float32"
    assert head["prompts"] == bundled_prompts()
    assert len(head["prompts"]) >= 8
    assert {r.prefill for r in rows} == {"exit", "full"}
    assert {0.5, 0.98, 1.0} <= {r.threshold for r in rows}
    assert all(len(r.per_prompt) == len(head["prompts"]) for r in rows)


def test_the_table_in_the_document_is_the_files(report):
    text = STEM.with_suffix(".md").read_text(encoding="utf-8")
    shown = text.split(BEGIN)[1].split(END)[0].strip().split("\n")
    assert shown == list(table(report[1]))


def test_one_row_again(report, load_packaged):
    head, rows = report
    row = next(r for r in rows if r.threshold == 0.98 and r.prefill == "full")
    model = load_packaged("float32", river=head["quantisation"])
    prompt = head["prompts"][0]
    reference = reference_run(model, prompt, head["tokens_per_prompt"])
    again = measure(model, prompt, reference, row.threshold, row.prefill)
    stored = row.per_prompt[0]
    assert again["match"] == pytest.approx(stored["match"], abs=0.011)  # one near tie
    assert again["kl"] == pytest.approx(stored["kl"], abs=2e-3)
    assert again["mean_exit_layer"] == pytest.approx(stored["mean_exit_layer"], abs=0.3)


def test_the_default_threshold_is_one_of_the_rows(report, load_packaged):
    head, rows = report
    assert head["default_threshold"] == load_packaged().info.default_threshold
    assert head["default_threshold"] in {r.threshold for r in rows}


def test_the_numbers_are_near_the_prototypes(report):
    """An earlier prototype's figures with other prompts: within 0.04 (exit layers within 2)."""
    expected = {0.5: (0.86, 0.14, 2.0), 0.98: (0.91, 0.058, 16.8), 0.99: (0.98, 0.007, 28.7)}
    for row in report[1]:
        if row.prefill == "full" and row.threshold in expected:
            match, kl, depth = expected[row.threshold]
            assert row.match == pytest.approx(match, abs=0.04)
            assert row.kl == pytest.approx(kl, abs=0.04)
            assert row.mean_exit_layer == pytest.approx(depth, abs=2.0)
