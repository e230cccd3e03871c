"""docs/strategies.jsonl is what the command writes: its tables, and one quality row again."""

from __future__ import annotations

from pathlib import Path

import pytest

from river_core import strategies
from river_core.cell_rows import quality_rows
from river_core.cells import Reference, Setting, quality
from river_core.cli_study import BEGIN, END
from river_core.resumable import Lines
from river_core.sweep import bundled_prompts

STEM = Path(__file__).parents[2] / "docs" / "strategies"
pytestmark = pytest.mark.skipif(
    not STEM.with_suffix(".jsonl").is_file(), reason="docs/strategies.jsonl is not yet measured"
)


@pytest.fixture(scope="module")
def report():
    return Lines(STEM.with_suffix(".jsonl"))


def test_both_parts_are_whole(report):
    quality_head, speed_head = (
        report.of(part, "header")[0] for part in (strategies.QUALITY, strategies.SPEED)
    )
    assert quality_head["dtype"] == "float32"
    assert quality_head["prompts"] == speed_head["prompts"] == bundled_prompts()
    assert strategies.missing() == []
    points = strategies.Points()
    kinds = [
        (strategies.QUALITY, "cell", strategies.quality_settings(points)),
        (strategies.SPEED, "time", strategies.speed_settings(points)),
    ]
    for part, kind, settings in kinds:
        measured = [Setting.of(line) for line in report.of(part, kind)]
        assert set(measured) == set(settings)
        assert len({measured.count(setting) for setting in settings}) == 1
        assert report.of(part, "skipped") == []


def test_the_tables_in_the_document_are_the_files(report):
    text = STEM.with_suffix(".md").read_text(encoding="utf-8")
    shown = text.split(BEGIN)[1].split(END)[0].strip().split("\n")
    assert shown == list(strategies.report(report, strategies.Points()))


def test_one_row_again(report, load_packaged):
    head = report.of(strategies.QUALITY, "header")[0]
    stored = next(
        line
        for line in report.of(strategies.QUALITY, "cell")
        if (line["policy"], line.get("exit_layer"), line["prompt"]) == ("state-propagation", 16, 0)
    )
    model, prompt = load_packaged("float32"), head["prompts"][0]
    reference = Reference.of(model, prompt, head["tokens_per_prompt"])
    again = quality(model, prompt, reference, Setting.of(stored))
    assert again["match"] == pytest.approx(stored["match"], abs=1.01 / stored["tokens"])
    assert again["kl"] == pytest.approx(stored["kl"], abs=2e-3)
    assert again["mean_exit_layer"] == stored["mean_exit_layer"]


def test_the_caches_separate_as_the_paper_says(report):
    """A prototype's match at exits 2 and 16: river .854, .896; propagated .379, .669; mask less."""
    rows = {
        (row["setting"].policy, row["setting"].exit_layer): row["match"]
        for row in quality_rows(report.of(strategies.QUALITY, "cell"))
    }
    for layer in (2, 16):
        ours = [rows[name, layer] for name in ("river", "state-propagation", "kv-mask")]
        assert ours == sorted(ours, reverse=True)
