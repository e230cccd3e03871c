"""What graphs cost in memory, and what happens where a card has no room for one more."""

from __future__ import annotations

import pytest
import torch

import river_core
from river_core.errors import KernelUnavailable
from river_core.execution.eager import EagerExecution
from river_core.execution.fake_device import FakeDevice
from river_core.execution.graph_store import OFTEN, GraphStore, Key
from river_core.execution.graphs import KEPT, open_graphs
from river_core.execution.kernel_attention import KernelAttention
from river_core.execution.pieces import MaskedAttention
from river_core.random_model import random_model
from tests.tiny.graphed import by_graphs, of_torch, run_by  # noqa: F401 (one is a fixture)

FULL = "no room (as a card would say it); steps run operation by operation."


class Small(FakeDevice):
    """A device on which some captures fail."""

    def __init__(self, fails) -> None:
        super().__init__()
        self.fails = fails

    def capture(self, key, fn, **more):
        if isinstance(key, Key) and self.fails(key):
            raise KernelUnavailable(FULL)
        return super().capture(key, fn, **more)


def store_on(model, fails):
    return GraphStore(model, Small(fails), MaskedAttention())


@pytest.fixture(scope="module")
def model():
    return of_torch(random_model("tiny", dtype="float32", capacity=600))


def nearly(found, plain):
    assert [t.exit_layer for t in found.tokens] == [t.exit_layer for t in plain.tokens]
    assert [t.token_id for t in found.tokens] == [t.token_id for t in plain.tokens]
    for mine, other in zip(found.tokens, plain.tokens, strict=True):
        assert mine.similarities == pytest.approx(other.similarities, abs=1e-5)


@pytest.mark.parametrize("part", ["start", "b", "r"])
def test_a_longer_bucket_that_cannot_be_captured_runs_in_eager_torch(model, run_by, part):  # noqa: F811
    prompt, settings = list(range(1, 253)), {"threshold": 0.8, "max_new_tokens": 9}
    settings["full_trace"] = False
    run_by(EagerExecution)
    plain = river_core.generate(model, prompt, **settings)
    store = store_on(model, lambda key: key.reach == 512 and key.kind == part)
    run_by(by_graphs(store))
    found = river_core.generate(model, prompt, **settings)
    nearly(found, plain)
    assert any(key.reach == 256 for key in store._graphs)
    (note,) = store.device.notes
    assert note == f"Some steps with 512 slots run without the graphs that they would need: {FULL}"
    captures = store.captures
    again = river_core.generate(model, prompt, **settings)
    assert store.captures <= captures + 2, "it is not tried again, but for spans asked often"
    assert note in again.header.notes


def test_a_span_without_room_for_its_graph_runs_layer_by_layer(model, run_by):  # noqa: F811
    settings = {"policy": "fixed-exit", "options": {"exit_layer": 2, "fill": "river"}}
    settings |= {"max_new_tokens": OFTEN + 3, "full_trace": False}
    run_by(EagerExecution)
    plain = river_core.generate(model, [5, 3, 90], **settings)
    store = store_on(model, lambda key: key.first < key.last)
    run_by(by_graphs(store))
    nearly(river_core.generate(model, [5, 3, 90], **settings), plain)
    assert all(key.first == key.last for key in store._graphs)
    (note,) = store.device.notes
    assert note.startswith("Some steps of 6 layers run without")


@pytest.mark.parametrize(
    "settings", [{"policy": "full-quant"}, {"policy": "backbone"}, {"threshold": 0.8}], ids=str
)
def test_a_layer_whose_graph_is_refused_in_mid_run_leaves_the_graphs(model, run_by, settings):  # noqa: F811
    settings = {"max_new_tokens": 5, "full_trace": False} | settings
    run_by(EagerExecution)
    plain = river_core.generate(model, [5, 3, 90], **settings)
    store = store_on(model, lambda key: False)
    store.prepare(256)
    for gone in (Key("b", 5, 5, 256), Key("r", 6, 6, 256)):
        del store._graphs[gone]
    store.device.fails = lambda key: key.first <= 6 <= key.last or key.first <= 5 <= key.last
    run_by(by_graphs(store))
    nearly(river_core.generate(model, [5, 3, 90], **settings), plain)
    assert store.device.notes


@pytest.mark.parametrize("fused", [False, True])
def test_the_ledger_counts_the_static_buffers(fused):
    model = of_torch(random_model("tiny", dtype="float32", capacity=64))
    before = model.memory()
    attention = (lambda m, d: KernelAttention(d)) if fused else (lambda m, d: MaskedAttention())
    open_graphs(model, FakeDevice, attention)
    shape = model.shape
    d, wide = shape.hidden, shape.heads * shape.head_dim
    qkv = wide + 2 * shape.kv_heads * shape.head_dim
    own = 3 * 8 + 4 * (1 + 2 * d + model.vocab + wide)  # inputs; threshold, stream, logits, heads
    room = 4 * (qkv + 2 * d + shape.ffn + shape.kv_heads)
    wanted = {**before, "buffers": before["buffers"] + own + (room if fused else 0)}
    assert model.memory() == wanted
    assert model.eagerly().memory() == wanted, "they are there whoever runs"
    assert isinstance(model.kept[KEPT], GraphStore)


def test_no_memory_for_the_buffers_is_said_in_a_sentence(model):
    class Full(FakeDevice):
        def static(self, shape, dtype):
            raise torch.OutOfMemoryError("CUDA out of memory")

    given = of_torch(model)
    with pytest.raises(KernelUnavailable, match="out of memory"):
        open_graphs(given, Full)
    assert given.memory() == of_torch(model).memory()
