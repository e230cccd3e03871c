"""Bad settings are one sentence that names the setting and the value."""

from __future__ import annotations

import math

import pytest

from river_core.errors import RiverError, SettingsError
from river_core.settings import DecodeSettings, LoadSettings, QuantSpec


@pytest.mark.parametrize(
    "bad",
    [
        {"threshold": math.nan},
        {"threshold": 5},
        {"threshold": -1.01},
        {"threshold": "high"},
        {"target_match": -0.1},
        {"target_match": 1.1},
        {"target_match": "auto"},
        {"target_match": True},
        {"threshold": True},
        {"max_new_tokens": 0},
        {"max_new_tokens": 1.5},
        {"temperature": -1},
        {"temperature": math.inf},
        {"top_p": 0},
        {"top_p": 1.1},
        {"seed": -1},
        {"seed": "1"},
        {"chat": 1},
        {"stop": ("",)},
        {"stop": 3},
        {"options": [1]},
        {"exit": "entropy"},
        {"head": "leaf"},
        {"prefill": "half"},
        {"policy": None},
        {"no_such_setting": 1},
    ],
    ids=str,
)
def test_bad_decode_settings(bad):
    with pytest.raises(SettingsError) as caught:
        DecodeSettings.from_keywords(bad)
    text = str(caught.value)
    assert next(iter(bad)) in text
    assert text.endswith(".")
    assert "\n" not in text


@pytest.mark.parametrize(
    "bad",
    [
        {"bits": 5},
        {"bits": 6},
        {"bits": True},
        {"group_size": 48},
        {"method": "best"},
        {"options": {"a": 1}},
        {"options": {"checkpoint": "x"}},
        {"options": {"checkpoint": "x"}, "method": "gptq"},
        {"options": {"checkpoint": ""}, "method": "awq"},
        {"options": {"checkpoint": 3}, "method": "awq"},
        {"options": {"checkpoint": "x", "a": 1}, "method": "awq"},
        {"options": {"checkpoint": "x"}, "method": "awq", "bits": 3},
        {"options": ["checkpoint"], "method": "awq"},
        {"options": {"budget": 4.6}, "method": "awq"},
        {"options": {"budget": 4.6, "checkpoint": "x"}, "method": "gptq"},
        {"options": {"budget": 4.6}, "bits": 8},
        {"options": {"budget": 4.6}, "bits": 16},
    ],
    ids=str,
)
def test_bad_quantisation(bad):
    with pytest.raises(SettingsError):
        QuantSpec(**bad)


@pytest.mark.parametrize(
    "bad",
    [
        {"device": "tpu"},
        {"device": None},
        {"dtype": "int8"},
        {"river": 4},
        {"entry_layer": 1},
        {"resident_layers": 0},
        {"resident_layers": True},
        {"resident_layers": 2.0},
        {"resident_layers": "all"},
        {"capacity": 0},
    ],
    ids=str,
)
def test_bad_load_settings(bad):
    with pytest.raises(SettingsError, match=next(iter(bad))):
        LoadSettings(**bad)


def test_resident_layers():
    assert [LoadSettings(resident_layers=k).resident_layers for k in (1, "auto")] == [1, "auto"]


def test_auto_is_a_threshold():
    assert DecodeSettings(threshold="auto").threshold == "auto"


def test_one_stop_string_is_a_list_of_one():
    assert DecodeSettings(stop="end").stop == ("end",)


def test_every_error_is_a_river_error():
    assert issubclass(SettingsError, RiverError)
    assert issubclass(SettingsError, ValueError)


@pytest.mark.parametrize("group, low, high", [(32, 5, 9), (64, 4.5, 8.5), (128, 4.25, 8.25)])
def test_a_budget_is_between_all_in_4_bits_and_all_in_8(group, low, high):
    for budget in (low, high):
        assert QuantSpec(4, group, "rtn", {"budget": budget}).budget == budget
    for budget in (low - 0.01, high + 0.01, math.nan, True, "4.6", None):
        with pytest.raises(SettingsError, match=f"use {low:g} .* to {high:g} ") as caught:
            QuantSpec(4, group, "rtn", {"budget": budget})
        assert str(caught.value).endswith("bits per weight.")


def test_a_budget_has_two_forms():
    mixed = QuantSpec(4, 32, "gptq", {"budget": 5})
    assert mixed.label == mixed.stem == "gptq-5.0bit-g32"
    assert mixed.forms == (QuantSpec(4, 32, "gptq"), QuantSpec(8, 32, "gptq"))
    assert QuantSpec(3).forms == (QuantSpec(3),)
    assert QuantSpec(3).budget is None


SPECS = [
    *(QuantSpec(4, 64, "gptq", {"budget": bits}) for bits in (4.6, 5, 8.5)),
    *(QuantSpec(), QuantSpec(3, 32, "gptq"), QuantSpec(bits=16), QuantSpec(4, 64, "awq")),
    *(QuantSpec(4, 128, "awq", {"checkpoint": name}) for name in ("owner/name@main", "./a b:c")),
]


@pytest.mark.parametrize("spec", SPECS)
def test_a_label_is_read_back(spec: QuantSpec) -> None:
    assert QuantSpec.parse(spec.label) == spec


@pytest.mark.parametrize(
    "label",
    [
        *("", "gptq", "gptq-4bit", "best-4bit-g64", "hqq-5bit-g64", "4", "awq:", "hqq-.5bit-g64"),
        *("gptq-3.6bit-g64", "gptq-8.6bit-g64", "awq-4.6bit-g64", "gptq-4.6bit-g64:a"),
    ],
)
def test_other_labels_are_refused(label: str) -> None:
    with pytest.raises(SettingsError, match=r"use|choose"):
        QuantSpec.parse(label)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("owner/model-AWQ", "owner/model-AWQ"),
        ("/home/somebody/models/mine", "mine"),
        ("C:\\Users\\somebody\\mine", "mine"),
        ("../mine/", "mine"),
        ("mine", "mine"),
    ],
)
def test_what_is_shown_of_a_checkpoint_tells_no_folders(name: str, shown: str) -> None:
    spec = QuantSpec.parse(f"awq:{name}")
    assert spec.shown == f"awq-4bit-g128:{shown}"
    assert QuantSpec().shown == "hqq-4bit-g64"
