"""Which execution a model runs by may be asked for; what is asked for and cannot be is said."""

from __future__ import annotations

import pytest

from river_core.errors import SettingsError
from river_core.execution import open_execution
from river_core.execution.graph_store import OFTEN
from river_core.settings import LoadSettings
from tests.tiny.graphed import by_graphs, graph_store, run_by  # noqa: F401 (one is a fixture)
from tests.tiny.resident import fresh
from tests.tiny.test_graphs import generate, model, told  # noqa: F401 (one is a fixture)


def test_graphs_of_one_layer_each_may_be_asked_for(model, run_by):  # noqa: F811
    """By the same store, which then has none of several layers, and the same numbers."""
    settings = {"policy": "fixed-exit", "options": {"exit_layer": 2, "fill": "river"}}
    store, layered = graph_store(model), model.running("layer-graphs")
    run_by(by_graphs(store))
    one, _ = generate(layered, **settings, max_new_tokens=2 * OFTEN)
    assert all(key.first == key.last for key in store._graphs)
    assert one.header.kernels["execution"] == "CUDA graphs, one per layer"
    other, _ = generate(model, **settings, max_new_tokens=2 * OFTEN)
    assert any(key.first < key.last for key in store._graphs)
    assert told(one) == told(other)
    (note,) = (n for n in open_execution(layered).notes if "layer-graphs" in n)
    assert note.endswith("and this device has none.")
    assert LoadSettings(execution="layer-graphs").execution == "layer-graphs"


def test_eager_execution_may_be_asked_for(one_tiny):
    assert open_execution(fresh(one_tiny, execution="eager")).name == "eager torch"
    with pytest.raises(SettingsError, match="execution is 'graphs'; choose one of 'auto', 'eager'"):
        LoadSettings(execution="graphs")
