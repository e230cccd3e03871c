"""docs/quantizers.md is its file's table, and what it says of the table is so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from river_core.back_ends import EXIT_LAYERS, SPECS, table
from river_core.cells import quality_rows
from river_core.cli_study import BEGIN, END
from river_core.resumable import Lines

STEM = Path(__file__).parents[2] / "docs" / "quantizers"
FILE = Lines(STEM.with_suffix(".jsonl"))
PAGE = STEM.with_suffix(".md").read_text(encoding="utf-8")


def test_the_table_is_the_files() -> None:
    assert PAGE.split(BEGIN)[1].split(END)[0].strip().split("\n") == list(table(FILE, SPECS))


APART = (2, 5, 7)  # prompts without a near relative in the bundled text


def split(method: str, exit_layer: int, apart: bool) -> dict[str, Any]:
    cells = [
        cell
        for cell in FILE.of(f"{method}-4bit-g64", "cell")
        if cell.get("exit_layer") == exit_layer and (cell["prompt"] in APART) is apart
    ]
    (row,) = quality_rows(cells)
    return row


def test_prompts_near_the_bundled_text_gain_more() -> None:
    """The page says by how much, so that nobody takes the mean for more than it is."""
    gains = {}
    for apart in (True, False):
        pairs = [(split("gptq", e, apart), split("hqq", e, apart)) for e in EXIT_LAYERS]
        found = [round(a["match"] - b["match"], 3) for a, b in pairs]
        gains[apart] = min(found), max(found)
    left = [split("gptq", e, True)["kl"] / split("hqq", e, True)["kl"] for e in EXIT_LAYERS]
    assert gains == {True: (0.024, 0.040), False: (0.075, 0.088)}
    assert (round(min(left), 2), round(max(left), 2)) == (0.40, 0.44)


def test_what_the_page_says_of_it() -> None:
    found = {
        method: {
            row["setting"].exit_layer: row
            for row in quality_rows(FILE.of(f"{method}-4bit-g64", "cell"))
        }
        for method in ("hqq", "gptq")
    }
    gains = [found["gptq"][e]["match"] - found["hqq"][e]["match"] for e in EXIT_LAYERS]
    assert (round(min(gains), 3), round(max(gains), 3)) == (0.058, 0.066)
    left = [found["gptq"][e]["kl"] / found["hqq"][e]["kl"] for e in EXIT_LAYERS]
    assert (round(min(left), 2), round(max(left), 2)) == (0.36, 0.41)
    assert round(found["gptq"][4]["match"], 3) == 0.912
