"""The memory tables of the page: every sum that the page can show is `footprint`'s."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from app.views.ledger import BY_LAYER, CONTEXTS, HUB, PARTS, ledger, listed, view
from app.views.wording import dictionary
from river_core.footprint import BACKBONE, Layout, footprint, full_quantization
from river_core.settings import DEFAULT_RIVER, QuantSpec
from river_core.shapes import SHAPES


def shown(table: dict[str, Any], row: int, context: int) -> dict[str, int]:
    """Part -> bytes, looked up as the page's script does."""
    moved = dict(zip(BY_LAYER, table["rows"][row], strict=True))
    cached = {"kv": table["kv"][context], "buffers": table["buffers"][context]}
    return {**table["fixed"], **moved, **cached}


@pytest.mark.parametrize("table", listed(), ids=list(HUB))
def test_every_choice_of_a_listed_model_is_the_formula(table: dict[str, Any]) -> None:
    spec, usual = SHAPES[table["shape"]], Layout(DEFAULT_RIVER)
    assert table["resident"] == list(range(1, spec.layers + 1))
    assert table["tokens"] == list(CONTEXTS)
    for context, tokens in enumerate(CONTEXTS):
        for row in {0, 1, spec.layers // 2, spec.layers - 1}:
            layout = replace(usual, resident=table["resident"][row])
            expected = footprint(spec, layout, tokens=tokens)
            assert shown(table, row, context) == expected.parts
            assert set(expected.parts) == set(PARTS)
        marks = {name: sizes[context] for name, sizes in table["marks"].items()}
        assert marks == {
            "alone": footprint(spec, BACKBONE, tokens=tokens).total,
            "all": footprint(spec, usual, tokens=tokens).total,
            "river": footprint(spec, full_quantization(usual), tokens=tokens).total,
        }
        assert table["kv_per_thousand"] * tokens == 1000 * table["kv"][context]


@pytest.mark.parametrize(
    "river", [QuantSpec(), QuantSpec(8, 32), QuantSpec(16), QuantSpec(4, 64, "awq")]
)
def test_a_loaded_model_has_its_own_river_entry_layer_and_cache(river: QuantSpec) -> None:
    spec, layout = SHAPES["tiny"], Layout(river, 4)
    table = ledger(spec, layout, "folder/of mine", 512)
    assert table["resident"] == [3, 4, 5, 6, 7, 8]
    assert table["tokens"] == [*CONTEXTS, 512]
    for row, resident in enumerate(table["resident"]):
        expected = footprint(spec, replace(layout, resident=resident), tokens=512)
        assert shown(table, row, -1) == expected.parts
    assert table["name"] == "folder/of mine" and "layer 4" in table["about"]


def test_the_page_gets_words_for_all_that_it_is_sent() -> None:
    sent = view()
    assert sent["loaded"] is None and len(sent["models"]) == 6
    words = dictionary()
    assert {f"ledger.model.{table['shape']}" for table in sent["models"]} <= set(words)
    assert {f"memory.{part}" for part in sent["parts"]} <= set(words)
    assert {f"ledger.mark.{mark}" for mark in sent["models"][0]["marks"]} <= set(words)


def test_the_formula_needs_no_torch() -> None:
    code = (
        "import sys, app.views.ledger, app.views.charts, app.studies, river_core.footprint\n"
        "print([m for m in ('torch', 'gradio', 'transformers', 'plotly') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("resident", [8, 5, 1])
def test_the_row_of_evicted_layers_is_what_the_engine_then_holds(resident: int) -> None:
    """And the backbone, refused, says on the page how to get the layers back."""
    from app.views.english import told
    from river_core import RiverError, generate
    from river_core.random_model import random_model

    model = random_model("tiny")
    layout = Layout(model.info.quant, model.info.entry_layer)
    table = ledger(SHAPES["tiny"], layout, "tiny", model.capacity)
    model.set_resident(resident)
    held = model.memory()
    row = shown(table, table["resident"].index(resident), -1)
    assert {part: row[part] for part in BY_LAYER} == {part: held[part] for part in BY_LAYER}
    if resident < model.num_layers:
        with pytest.raises(RiverError) as refused:
            generate(model, [3, 1, 4], policy="backbone", max_new_tokens=2)
        assert told(refused.value) == (
            f"policy 'backbone' needs all 8 backbone layers, but {resident} are resident. To get "
            "them back, open “Settings”, set “Resident backbone layers” to 8 and press “Keep so "
            "many”."
        )
