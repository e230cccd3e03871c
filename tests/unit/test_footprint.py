"""Bytes from sizes: against a made model's ledger, method.md's tables, the paper's Table 6."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from river_core.errors import SettingsError
from river_core.footprint import (
    BACKBONE,
    GIB,
    Layout,
    bits_per_weight,
    footprint,
    full_quantization,
    kv_bytes,
    layer_weights,
    parameters,
)
from river_core.paper_table6 import (
    CONTEXTS,
    MORE,
    PAPER_RIVER,
    PRINTED,
    STRUCTURES,
    Row,
    Structure,
    computed,
    lines,
)
from river_core.random_model import random_model
from river_core.settings import QuantSpec
from river_core.shapes import SHAPES, ShapeSpec

TINY, LLAMA = SHAPES["tiny"], SHAPES["llama-3.1-8b"]
FULL = full_quantization(Layout())


# -- a model that is there


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("tied", "options", "entry_layer", "bits", "group_size"),
    [
        (True, {}, 2, 4, 64),
        (False, {}, 3, 4, 32),
        (False, {"qkv_bias": True, "qk_norm": True}, 2, 4, 128),
        (True, {}, 3, 8, 64),
        (True, {}, 2, 16, 64),
    ],
)
def test_parts_are_those_of_a_made_models_ledger(
    dtype: str, tied: bool, options: dict[str, bool], entry_layer: int, bits: int, group_size: int
) -> None:
    spec = replace(TINY, tied=tied, block=replace(TINY.block, **options))  # type: ignore[arg-type]
    river = QuantSpec(bits=bits, group_size=group_size)
    model = random_model(spec, dtype=dtype, river=river, entry_layer=entry_layer, capacity=96)
    size = footprint(spec, Layout(river, entry_layer), tokens=96)
    ledger = model.memory()
    assert list(size.parts) == list(ledger)
    assert size.parts == ledger
    assert size.total == sum(ledger.values())


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_what_the_bytes_stand_for(tied: bool) -> None:
    spec = replace(TINY, tied=tied)
    size = footprint(spec)
    assert parameters(spec) == (size.weights - size.norms) // 2 + size.norms // 4


# -- what the paper and method.md say of sizes


def gib(spec: ShapeSpec, layout: Layout) -> float:
    return footprint(spec, layout).weights / GIB


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (BACKBONE, 14.96),
        (full_quantization(PAPER_RIVER, quantized_head=True), 4.47),
        (PAPER_RIVER, 6.73),
        (Layout(metadata_bits=0), 18.11),
        (Layout(), 18.50),
        (FULL, 5.61),
        (Layout(resident=4), 7.12),
    ],
)
def test_parameter_memory_of_llama_8b(layout: Layout, expected: float) -> None:
    """In GiB; half a unit of the last place for rounding, and 0.0005 for our norms in fp32."""
    assert gib(LLAMA, layout) == pytest.approx(expected, abs=0.0056)


@pytest.mark.parametrize(
    ("name", "billions", "whole", "layer", "kv_kib", "resident", "offloaded"),
    [
        ("llama-3.2-1b", 1.236, 2.302, (0.1133, 0.0283, 0.0319), 32, 2.78, 1.42),
        ("llama-3.1-8b", 8.030, 14.958, (0.4063, 0.1016, 0.1143), 128, 18.50, 7.12),
        ("phi-4-mini", 3.836, 7.145, (0.1875, 0.0469, 0.0527), 128, 8.78, 3.53),
        ("ministral-3-8b", 8.490, 15.813, (0.4063, 0.1016, 0.1143), 136, 19.58, 7.40),
    ],
)
def test_rows_of_the_papers_models(
    name: str,
    billions: float,
    whole: float,
    layer: tuple[float, float, float],
    kv_kib: int,
    resident: float,
    offloaded: float,
) -> None:
    """method.md 4.1: parameters, GiB in fp16, one layer at 16, 4 and 4.5 bits, KV, both Rivers."""
    spec = SHAPES[name]
    assert parameters(spec) / 1e9 == pytest.approx(billions, abs=0.0005)
    assert gib(spec, BACKBONE) == pytest.approx(whole, abs=0.0011)  # 0.0006 of it: norms in fp32
    for bits, expected in zip((16, 4, 4.5), layer, strict=True):
        found = layer_weights(spec.block) * bits / 8 / GIB
        assert found == pytest.approx(expected, abs=0.00006)
    assert kv_bytes(spec) == kv_kib * 1024
    assert gib(spec, Layout()) == pytest.approx(resident, abs=0.0056)
    assert gib(spec, Layout(resident=4)) == pytest.approx(offloaded, abs=0.0056)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("smollm2-135m", 134.5),
        ("gemma-3-270m", 268.1),
        ("smollm2-1.7b", 1711.4),
        ("mistral-small-24b", 23572.4),
        ("llama-3.1-70b", 70553.7),
    ],
)
def test_other_shapes_have_their_models_number_of_parameters(name: str, millions: float) -> None:
    """As the models' own pages count them; gemma's further norms are 0.03 M."""
    assert parameters(SHAPES[name]) / 1e6 == pytest.approx(millions, abs=0.06)


# -- Table 6


@pytest.mark.parametrize("name", ["Backbone", "Balcony", "Full Quantize", "River"])
def test_table_6_is_the_formula_to_the_digits_printed(name: str) -> None:
    ours, paper = computed(STRUCTURES[name]), PRINTED[name]
    digits = 1 if name == "Balcony" else 2  # the paper prints its parameters as 17.4
    assert round(ours.parameters, digits) == paper.parameters
    assert ours.kv == paper.kv
    assert tuple(round(total, 2) for total in ours.total) == paper.total


def test_table_6_of_ee_llm_is_near_five_more_layers() -> None:
    """Parameters within 0.01 GiB; KV 1.2 to 2.5 % under the printed one; totals within 1.3 %."""
    ours, paper = computed(STRUCTURES["EE-LLM"]), PRINTED["EE-LLM"]
    assert ours.parameters == pytest.approx(paper.parameters, abs=0.01)
    for found, printed in zip(ours.kv, paper.kv, strict=True):
        assert 0.975 < found / printed < 0.988
    for found, printed in zip(ours.total, paper.total, strict=True):
        assert found == pytest.approx(printed, rel=0.013)


def test_no_other_whole_number_of_layers_is_nearer_to_ee_llm() -> None:
    def distance(layers: int) -> float:
        row = computed(replace(STRUCTURES["EE-LLM"], extra_layers=layers))
        return abs(row.parameters - PRINTED["EE-LLM"].parameters)

    assert min(range(12), key=distance) == 5


def test_the_saved_states_that_would_explain_ee_llm_are_those_of_some_tokens() -> None:
    """What the remark says: the rest over five layers' KV, in states of 8 KiB per token."""
    ours, paper = computed(STRUCTURES["EE-LLM"]), PRINTED["EE-LLM"]
    rest = [p - o for o, p in zip(ours.kv, paper.kv, strict=True)]
    shares = [round(100 * r * 1024 / 8 / n) for r, n in zip(rest, CONTEXTS, strict=True)]
    assert (min(shares), max(shares)) == (23, 45)


def own_sum(row: Row) -> list[float]:
    """Parameters, KV and 1.25 MB of activations, as the table's caption adds them, in GiB."""
    return [row.parameters + (kv + 1.25) / 1024 for kv in row.kv]


def test_the_one_total_that_its_own_row_does_not_give() -> None:
    wrong = [
        (name, context // 1024, round(total - own, 2))
        for name, row in PRINTED.items()
        for context, own, total in zip(CONTEXTS, own_sum(row), row.total, strict=True)
        if abs(total - own) > 0.021  # the row's two roundings, and 16.98 for 16.99
    ]
    assert wrong == [("EE-LLM", 16, 0.23)]


def test_rows_that_the_table_leaves_out() -> None:
    found = [round(computed(Structure(layout)).parameters, 2) for layout in MORE.values()]
    assert found == [5.61, 7.12, 18.11, 18.5]


def test_the_printed_table_shows_both_and_the_reason() -> None:
    text = "\n".join(lines())
    for row in (*PRINTED.values(), *map(computed, STRUCTURES.values())):
        assert f"{row.parameters:.2f}" in text and f"{row.total[-1]:.2f}" in text
        assert f"{row.kv[-1]:.0f}" in text
    assert "16.98 is printed" in text and "16K" in text


# -- README.md

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_models_of_the_readme() -> None:
    rows = re.findall(r"^\| ([\w.-]+) \|((?: [\d.]+ \|){5})$", README, re.MULTILINE)
    assert len(rows) == 6
    layouts = (BACKBONE, FULL, Layout(), Layout(resident=4))
    for name, cells in rows:
        spec = SHAPES[name.lower()]
        sizes = [f"{gib(spec, layout):.2f}" for layout in layouts]
        assert cells.replace("|", "").split() == [*sizes, f"{1000 * kv_bytes(spec) / 2**20:.1f}"]


@pytest.mark.parametrize("name", PRINTED)
def test_table_6_of_the_readme(name: str) -> None:
    def cells(row: Row) -> str:
        return " | ".join(f"{value:.2f}" for value in (row.parameters, *row.total))

    structure = STRUCTURES[name]
    paper = f"| {name} | {structure.words} | paper | {cells(PRINTED[name])} |"
    assert f"\n{paper}\n| | | ours | {cells(computed(structure))} |\n" in README


# -- layouts


def test_bits_per_weight() -> None:
    assert bits_per_weight(QuantSpec()) == 4.5
    assert bits_per_weight(QuantSpec(), 0) == 4.0
    assert bits_per_weight(QuantSpec(), 32) == 5.0
    assert bits_per_weight(QuantSpec(bits=8)) == 8.5
    assert bits_per_weight(QuantSpec(group_size=32)) == 5.0
    assert bits_per_weight(QuantSpec(bits=16), 32) == 16.0
    with pytest.raises(SettingsError, match="metadata_bits is 8"):
        bits_per_weight(QuantSpec(), 8)


def test_residency_moves_only_the_backbone() -> None:
    whole, four = (footprint(LLAMA, Layout(resident=k), tokens=10) for k in (32, 4))
    assert whole == footprint(LLAMA, Layout(), tokens=10)
    assert four.backbone * 8 == whole.backbone
    assert replace(four, backbone=whole.backbone) == whole


def test_an_identical_river_takes_only_what_the_backbone_gave_up() -> None:
    twin = QuantSpec(bits=16)
    assert footprint(TINY, Layout(twin)) == footprint(TINY)
    three = footprint(TINY, Layout(twin, resident=3))
    assert three.river + three.backbone == footprint(TINY).backbone
    assert three.river > 0


def test_more_tokens_take_more_cache_and_tables_alone() -> None:
    one, two = (footprint(TINY, Layout(), tokens=n) for n in (100, 200))
    assert (two.kv, two.buffers) == (2 * one.kv, 2 * one.buffers)
    assert one.weights == two.weights
    assert footprint(TINY).kv == 0


@pytest.mark.parametrize(
    ("layout", "tokens", "words"),
    [
        (Layout(resident=0), 0, "0 resident layers cannot run tiny: use 1 to 8"),
        (Layout(resident=9), 0, "9 resident layers"),
        (Layout(entry_layer=4, resident=2), 0, "use 3 to 8"),
        (Layout(river=None, resident=4), 0, "use 8 to 8"),
        (Layout(entry_layer=0), 0, "entry_layer is 0"),
        (Layout(entry_layer=9), 0, "has 8 layers"),
        (Layout(), -1, "tokens is -1"),
        (Layout(), True, "tokens is True"),
        (Layout(), 1.5, "tokens is 1.5"),
        (Layout(metadata_bits=8), 0, "metadata_bits is 8"),
    ],
)
def test_impossible_layouts_are_refused(layout: Layout, tokens: int, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        footprint(TINY, layout, tokens=tokens)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_a_group_that_straddles_rows_is_refused() -> None:
    with pytest.raises(SettingsError, match="group_size 128 does not divide the 576 columns"):
        footprint(SHAPES["smollm2-135m"], Layout(QuantSpec(group_size=128)))


@pytest.mark.parametrize("bits, stored", [(2, 4.5), (3, 4.5), (4, 4.5), (16, 16.0)])
def test_short_codes_lie_in_four_bits(bits: int, stored: float) -> None:
    assert bits_per_weight(QuantSpec(bits=bits)) == stored
