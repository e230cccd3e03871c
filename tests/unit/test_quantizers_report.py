"""docs/quantizers.md is its file's table, and what it says of the table is so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from river_core.back_ends import EXIT_LAYERS, SPECS, table
from river_core.cell_rows import quality_rows
from river_core.cli_study import BEGIN, END
from river_core.resumable import Lines
from river_core.settings import DEFAULT_RIVER

STEM = Path(__file__).parents[2] / "docs" / "quantizers"
FILE = Lines(STEM.with_suffix(".jsonl"))
PAGE = STEM.with_suffix(".md").read_text(encoding="utf-8")


def test_the_table_is_the_files() -> None:
    assert PAGE.split(BEGIN)[1].split(END)[0].strip().split("\n") == list(table(FILE, SPECS))


def found(method: str) -> dict[int | None, dict[str, Any]]:
    rows = quality_rows(FILE.of(f"{method}-4bit-g64", "cell"))
    return {row["setting"].exit_layer: row for row in rows}


def test_what_the_page_says_of_the_default() -> None:
    assert DEFAULT_RIVER.label == "gptq-4bit-g64"
    hqq, gptq = found("hqq"), found("gptq")
    left = [gptq[e]["kl"] / hqq[e]["kl"] for e in EXIT_LAYERS]
    assert (round(min(left), 2), round(max(left), 2)) == (0.38, 0.41)
    wrong = [100 * (1 - gptq[e]["match"]) for e in EXIT_LAYERS]
    assert {round(w) for w in wrong} == {10}
    assert {round(100 * (1 - hqq[e]["match"])) for e in EXIT_LAYERS} <= {15, 16}
    assert round(gptq[4]["match"], 3) == 0.901
    (made,) = FILE.of("gptq-4bit-g64", "made")
    assert made["bits"] <= 4.6 and made["seconds"] < 60


def test_no_other_back_end_within_the_bits_is_better() -> None:
    others = [found(method)[4]["kl"] for method in ("rtn", "hqq", "awq")]
    assert found("gptq")[4]["kl"] < 0.5 * min(others)
