"""Values at the edge of what a setting allows, and models whose logits are not finite."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

import river_core
from river_core.errors import RiverError, SettingsError
from river_core.records import RunRecord


@pytest.mark.parametrize(
    "settings", [{"temperature": 1e-320}, {"temperature": 1.0, "top_p": 1e-300}], ids=str
)
def test_the_smallest_temperature_and_nucleus_are_greedy(one_tiny, settings):
    model = one_tiny.load(bits=4)
    greedy = river_core.generate(model, one_tiny.prompt, max_new_tokens=4)
    run = river_core.generate(model, one_tiny.prompt, max_new_tokens=4, **settings)
    assert [t.token_id for t in run.tokens] == [t.token_id for t in greedy.tokens]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logits_that_are_not_finite(one_tiny, temperature):
    model = one_tiny.load(bits=4)
    broken = replace(model, final_norm=model.final_norm * float("nan"))
    with pytest.raises(RiverError, match="logits are not finite"):
        river_core.generate(broken, one_tiny.prompt, temperature=temperature)


@pytest.mark.parametrize("name", ["threshold", "temperature", "top_p"])
def test_whole_numbers_beyond_any_float(one_tiny, name):
    for value in (10**400, -(10**400)):
        with pytest.raises(SettingsError, match=name):
            river_core.generate(one_tiny.load(), one_tiny.prompt, **{name: value})


@pytest.mark.parametrize("layers", [b"\x03\x02", range(3, 1, -1), (3, 2)], ids=repr)
def test_any_sequence_of_exit_layers_can_be_saved(one_tiny, layers):
    options = MappingProxyType({"exit_layers": layers})
    keys: dict[str, Any] = {"exit": "schedule", "options": options, "max_new_tokens": 2}
    run = river_core.generate(one_tiny.load(), one_tiny.prompt, **keys)
    loaded = RunRecord.from_lines(run.lines())
    assert loaded.header == run.header
    assert loaded.header.settings["options"] == {"exit_layers": [3, 2]}


def test_a_decay_takes_no_exit_rule(one_tiny):
    keys: dict[str, Any] = {"policy": "mono-decreasing", "exit": "fixed"}
    with pytest.raises(SettingsError, match="leave exit out"):
        river_core.generate(
            one_tiny.load(), one_tiny.prompt, options={"decay": 1, "exit_layer": 2}, **keys
        )
