"""docs/thresholds-gemma3.md is its file's table, and its byte bounds are computed."""

from __future__ import annotations

import re
from pathlib import Path

from river_core.bandwidth import ReadBytes
from river_core.cli_study import BEGIN, END
from river_core.loading import THRESHOLDS
from river_core.shapes import SHAPES
from river_core.sweep import load_lines, table

STEM = Path(__file__).parents[2] / "docs" / "thresholds-gemma3"
PAGE = STEM.with_suffix(".md").read_text(encoding="utf-8")
HEAD, ROWS = load_lines(STEM.with_suffix(".jsonl"))


def test_the_table_is_the_files() -> None:
    assert HEAD["model"] == "gemma3-270m-packaged" and HEAD["dtype"] == "float32"
    assert PAGE.split(BEGIN)[1].split(END)[0].strip().split("\n") == list(table(ROWS))
    assert f"--tokens {HEAD['tokens_per_prompt']} --prompts {len(HEAD['prompts'])}" in PAGE


def test_the_default_threshold_is_one_of_the_rows() -> None:
    spec = SHAPES["gemma-3-270m"]
    default = THRESHOLDS[spec.block.hidden, spec.layers, spec.vocab]
    assert default in {row.threshold for row in ROWS}
    assert f"default threshold is {default}" in PAGE


def test_the_byte_bounds_are_computed() -> None:
    spec = SHAPES["gemma-3-270m"]
    reads = ReadBytes.of_shape(spec.block, spec.layers, spec.vocab)
    rows = re.findall(
        r"^\| (\d+)(?: \(backbone\))? \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE
    )
    assert [int(exit_layer) for exit_layer, _, _ in rows] == [18, 2, 4, 8]
    for exit_layer, megabytes, bound in rows:
        read = reads.at(int(exit_layer))
        assert float(megabytes) == round(read / 1e6, 1)
        assert float(bound) == round(reads.at(spec.layers) / read, 2)
