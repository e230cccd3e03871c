"""A model over several devices: what goes where, and that the loop gives the same.

The devices are labels of this processor: nothing moves, but every move is asked for and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

import river_core
from river_core.cache import SharedCache
from river_core.errors import RiverError, SettingsError
from river_core.execution import open_execution
from river_core.execution.split import SplitExecution
from river_core.footprint import Layout, footprint
from river_core.model import RiverModel
from river_core.placement import layer_bytes, place, placement_of
from river_core.settings import QuantSpec
from river_core.shapes import SHAPES

TOKENS = 10
SPEC = SHAPES["llama-3.1-8b"]
GIB = 2**30


def over(model: RiverModel, numbers: Sequence[int]) -> RiverModel:
    """The same model with a device label per layer; the first is where the embedding is."""
    labels = (torch.device("cpu"), torch.device("cpu", 1), torch.device("cpu", 2))
    placement = tuple(labels[number] for number in numbers)
    shape = model.shape
    heads = (shape.kv_heads, shape.head_dim)
    cache = SharedCache(len(numbers), model.capacity, heads, model.cache.dtype, placement)
    return replace(model, placement=placement, cache=cache)


SETTINGS = [
    {"policy": "backbone"},
    {"threshold": 0.5},
    {"threshold": -1.0, "prefill": "full"},
    {"policy": "full-quant"},
    {"policy": "batch-recompute", "threshold": 0.5},
    {"policy": "batch-recompute", "head": "lens", "threshold": 0.5},
    {"policy": "state-propagation", "threshold": 0.5},
    {"policy": "kv-mask", "threshold": 0.5},
    {"policy": "river-verified", "threshold": 0.5, "options": {"draft": 3}},
    {"policy": "adaskip", "options": {"halves": 2}},
    {"policy": "fixed-exit", "options": {"exit_layer": 2}},
]


@pytest.mark.few
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_records_are_those_of_one_device(tiny, settings):
    model = tiny.load(bits=4)
    split = over(model, [n // 2 for n in range(model.num_layers)])
    assert isinstance(open_execution(split), SplitExecution)
    one, other = (
        river_core.generate(m, tiny.prompt, max_new_tokens=TOKENS, **settings)
        for m in (model, split)
    )
    assert [t.token_id for t in one.tokens] == [t.token_id for t in other.tokens]
    for name in ("exit_layer", "path", "kv_source", "similarities", "logprob"):
        for a, b in zip(one.tokens, other.tokens, strict=True):
            assert getattr(a, name) == pytest.approx(getattr(b, name), abs=1e-5)
    assert one.kv_final == other.kv_final
    traces = [torch.tensor(run.full_trace) for run in (one, other)]
    assert torch.allclose(*traces, atol=1e-5)


def test_a_pass_moves_once_per_boundary_and_once_for_the_head(one_tiny, monkeypatch):
    model = over(one_tiny.load(bits=4), [0, 0, 1, 1, 2])
    engines = []
    monkeypatch.setattr(
        "river_core.passes.open_execution",
        lambda m: engines.append(SplitExecution(m)) or engines[0],
    )
    river_core.generate(
        model, one_tiny.prompt, policy="backbone", max_new_tokens=6, full_trace=False
    )
    assert engines[0].hops == 6 * 3


def test_the_caches_layers_stand_apart(one_tiny):
    model = over(one_tiny.load(bits=4), [0, 0, 1, 1, 1])
    storages = {tensor.untyped_storage().data_ptr() for tensor in model.cache.tensors()}
    assert len(storages) == 2 * model.num_layers
    assert model.memory()["kv"] == one_tiny.load(bits=4).memory()["kv"]
    with pytest.raises(RiverError, match="several devices"):
        model.cache.k  # noqa: B018
    run = river_core.generate(model, one_tiny.prompt, policy="backbone", max_new_tokens=3)
    with pytest.raises(SettingsError, match="on one device"):
        river_core.earliest_safe_exits(model, run)


def test_layer_bytes_add_up() -> None:
    for layout in (Layout(), Layout(resident=4), Layout(river=None), Layout(entry_layer=5)):
        ends, layers = layer_bytes(SPEC, layout, 4096)
        whole = footprint(SPEC, layout, tokens=4096)
        assert len(layers) == SPEC.layers
        assert ends + sum(layers) == pytest.approx(whole.total, rel=1e-6)
    assert layer_bytes(SPEC, Layout(resident=4), 0)[1][3] > layer_bytes(SPEC, Layout(), 0)[1][0]


@pytest.mark.parametrize("sizes", [(12, 12), (8, 8, 8), (6, 20), (20, 4), (5, 5, 5, 5, 5)])
def test_layers_follow_each_other_and_fit(sizes: tuple[int, ...]) -> None:
    """18.5 GiB over GPUs that are each too small."""
    free = {number: size * GIB for number, size in enumerate(sizes)}
    ends, layers = layer_bytes(SPEC, Layout(), 4096)
    placed = place(ends, layers, free)
    assert len(placed) == SPEC.layers and list(placed) == sorted(placed)
    for number, room in free.items():
        here = sum(size for size, where in zip(layers, placed, strict=True) if where == number)
        assert here + (ends if number == 0 else 0) <= 0.9 * room


@pytest.mark.parametrize("sizes", [(8, 8), (1, 40), (10, 10)])
def test_gpus_that_are_too_small_together_are_refused(sizes: tuple[int, ...]) -> None:
    """Also where the first cannot hold embedding and head."""
    free = {number: size * GIB for number, size in enumerate(sizes)}
    with pytest.raises(SettingsError, match=r"this model needs 19\.\d GiB, and the 2 GPUs have"):
        place(*layer_bytes(SPEC, Layout(), 4096), free)


def test_one_gpu_that_is_large_enough_is_taken_alone() -> None:
    assert placement_of(SPEC, Layout(), 4096, {0: 40 * GIB, 1: 40 * GIB}) == ()
    assert placement_of(SPEC, Layout(), 4096, {0: 12 * GIB}) == ()  # the load says what is missing
    split = placement_of(SPEC, Layout(), 4096, {0: 12 * GIB, 1: 12 * GIB})
    assert {device.index for device in split} == {0, 1}
    offloaded = Layout(river=QuantSpec(), resident=4)
    assert placement_of(SPEC, offloaded, 4096, {0: 12 * GIB, 1: 12 * GIB}) == ()
