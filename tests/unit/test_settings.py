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


SPECS = [
    *(QuantSpec(), QuantSpec(3, 32, "gptq"), QuantSpec(bits=16), QuantSpec(4, 64, "awq")),
    *(QuantSpec(4, 128, "awq", {"checkpoint": name}) for name in ("owner/name@main", "./a b:c")),
]


@pytest.mark.parametrize("spec", SPECS)
def test_a_label_is_read_back(spec: QuantSpec) -> None:
    assert QuantSpec.parse(spec.label) == spec


@pytest.mark.parametrize(
    "label", ["", "gptq", "gptq-4bit", "best-4bit-g64", "hqq-5bit-g64", "4", "awq:"]
)
def test_other_labels_are_refused(label: str) -> None:
    with pytest.raises(SettingsError, match=r"use|choose"):
        QuantSpec.parse(label)
