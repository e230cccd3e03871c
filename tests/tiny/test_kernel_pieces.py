"""Property 6 for the fused kernels in graphs: their references, on the fake device, equal eager.

The kernels themselves, interpreted, run in tests/unit/interpreted_graphs.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import river_core
from river_core.execution.eager import EagerExecution
from river_core.execution.fake_device import FakeDevice
from river_core.execution.graph_store import Key
from river_core.execution.kernel_attention import KernelAttention
from river_core.execution.kernel_pieces import KernelPieces, pieces_on
from river_core.execution.pieces import Pieces
from river_core.kernels import torch_step
from river_core.kernels.gemv_plan import PLAIN, Fused
from river_core.kernels.torch_dense import TorchDense
from river_core.random_model import random_model
from tests.tiny.graphed import (  # noqa: F401 (one is a fixture)
    by_graphs,
    graph_store,
    masked,
    of_torch,
    run_by,
)
from tests.tiny.test_graphs import POLICIES, PROMPT, TOKENS

LAUNCHES = {"r": 5, "b": 6}  # kernels of a layer: what may not grow


class Fusing(TorchDense):
    """Torch's product, which also does what stands around it."""

    def project(self, x: torch.Tensor, out: torch.Tensor, fused: Fused = PLAIN) -> torch.Tensor:
        return torch_step.product(self, x, out, fused)


def fusing(model):
    """The same model with such products, where there are torch's."""

    def made(weights):
        if weights is None:
            return None
        return weights.with_linears({n: Fusing(x.weight) for n, x in weights.linears.items()})

    banks = ([made(w) for w in bank] for bank in model.banks)
    backbone, river = banks
    head = Fusing(model.head.weight)
    restore = model.restore_layer
    return replace(
        model,
        backbone=backbone,
        river=river,
        head=head,
        restore_layer=lambda layer, twin: made(restore(layer, twin)),
        build_twin=lambda layer, own: made(own),
        kept={},
    )


@pytest.fixture(scope="module")
def model():
    return fusing(of_torch(random_model("tiny", dtype="float32", capacity=64)))


@pytest.fixture(scope="module")
def store(model):
    return graph_store(model, seed=5, attention=KernelAttention)


def close(run, plain):
    """The same choices, and numbers nearly."""
    for mine, other in zip(run.tokens, plain.tokens, strict=True):
        for name in ("token_id", "exit_layer", "path", "kv_source"):
            assert getattr(mine, name) == getattr(other, name)
        assert mine.similarities == pytest.approx(other.similarities, abs=1e-5)
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-4)


@pytest.mark.parametrize("settings", POLICIES[::3], ids=str)
def test_policies_choose_as_in_eager_torch(model, store, run_by, settings):  # noqa: F811
    assert isinstance(store._pieces, KernelPieces)
    settings = {"max_new_tokens": TOKENS, "full_trace": False} | settings
    run_by(EagerExecution)
    plain = river_core.generate(model, PROMPT, **settings)
    run_by(by_graphs(store))
    for side in (model.cache.k, model.cache.v):
        side[:, :, len(PROMPT) + TOKENS - 1 :] = torch.nan  # not to be seen
    close(river_core.generate(model, PROMPT, **settings), plain)


def test_launches_of_a_layer_do_not_grow(store, model):
    reach = store.reach(0)
    store.prepare(reach)
    for kind, launches in LAUNCHES.items():
        graph = store.find(Key(kind, 3, 3, reach))
        assert len(graph.kernels) == launches
        beside = len(graph.nodes) - launches
        assert beside == (1 if kind == "r" else 0), "a copy of the stream, for undoing"
    whole = store.find(Key("r", 3, 8, reach))
    assert (len(whole.kernels), len(whole.nodes)) == (6 * LAUNCHES["r"], 6 * LAUNCHES["r"] + 1)
    assert store.find(Key("tail")).kernels == ["product"]


def test_graphs_of_evicted_layers_are_dropped_and_name_what_they_read(run_by):  # noqa: F811
    model = fusing(of_torch(random_model("tiny", dtype="float32", capacity=64)))
    store = graph_store(model, attention=KernelAttention)
    model.engines.add(store)
    run_by(by_graphs(store))
    settings = {"threshold": 0.9, "max_new_tokens": 4, "full_trace": False}
    before = river_core.generate(model, PROMPT, **settings)
    graph = store.find(Key("b", 5, 5, store.reach(0)))
    weight = model.layer(5).down.weight.untyped_storage().data_ptr()
    assert {weight} <= graph.touched & graph.reads
    model.set_resident(3)
    assert graph.dropped
    model.set_resident(model.num_layers)
    close(river_core.generate(model, PROMPT, **settings), before)


def test_what_does_not_fit_runs_in_plain_pieces_and_the_notes_say_why(model):
    def noted(given, attention=KernelAttention):
        device = FakeDevice()
        store = graph_store(given)
        made = pieces_on(given, device, store.state, attention(device))
        return type(made), device.notes

    assert noted(model) == (KernelPieces, ())
    assert noted(model, masked) == (Pieces, ())
    options = tuple(replace(shape, scale=0.3) for shape in model.shapes)
    kind, notes = noted(replace(model, shapes=options))
    assert kind is KernelPieces
    assert notes == (
        "8 of 8 backbone layers run operation by operation within their graphs, not by fused "
        "kernels: their block has an attention scale of its own.",
        "7 of 7 river layers run operation by operation within their graphs, not by fused "
        "kernels: their block has an attention scale of its own.",
    )
    plain = of_torch(model)
    mixed = replace(model, backbone=[*model.backbone[:6], *plain.backbone[6:]])
    (note,) = noted(mixed)[1]
    assert note.startswith("2 of 8 backbone layers")
    assert note.endswith("torch-fp32 fuses nothing with its product.")


def test_layers_of_both_kinds_follow_each_other(model, run_by):  # noqa: F811
    plain = of_torch(model)
    halves = [
        w if n % 2 else other
        for n, (w, other) in enumerate(zip(model.backbone, plain.backbone, strict=True))
    ]
    mixed = replace(model, backbone=halves, kept={})
    settings = {"threshold": 0.8, "max_new_tokens": TOKENS, "full_trace": False}
    run_by(EagerExecution)
    wanted = river_core.generate(mixed, PROMPT, **settings)
    run_by(by_graphs(graph_store(mixed, attention=KernelAttention)))
    close(river_core.generate(mixed, PROMPT, **settings), wanted)
