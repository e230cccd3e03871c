"""Graphs of the fused kernels, interpreted, on the fake device: test_triton_interpreted.py runs it.

Arithmetic is fp32 on both sides, so that tokens and exit layers are eager torch's; with a cache of
16 bits a key may be rounded the other way, which similarities may show up to 2e-3.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from triton.runtime import interpreter

import river_core
from river_core.cache import SharedCache
from river_core.execution.device import Graph
from river_core.execution.eager import EagerExecution
from river_core.execution.fake_device import FakeDevice, FakeGraph
from river_core.execution.graph_store import GraphStore, Key
from river_core.execution.kernel_attention import KernelAttention
from river_core.kernels.gemv_plan import Cut
from river_core.kernels.micro import random_matrix
from river_core.kernels.triton_linear import TritonDense, TritonInt4
from river_core.layer import BlockShape, LayerWeights
from river_core.model import RiverModel
from river_core.random_model import random_model
from river_core.shapes import ShapeSpec
from tests.tiny.graphed import by_graphs, of_torch, run_by  # noqa: F401 (one is a fixture)

# one program for each product: the interpreter's time is per operation
SMALL = ShapeSpec("small", BlockShape(64, 4, 2, 16, 64, 1e-5), 3, 128, True, 10_000.0)
PROMPT = [5, 90]
TOKENS = 4
# dtype of the cache, splits of the backbone's products, slots (over 256 are split), bound
WAYS = [(torch.float32, 1, 32, 1e-5), (torch.float16, 2, 300, 2e-3)]
RIVER, BACKBONE = 5, 6  # launches of a layer: what may not grow


def of_triton(model: RiverModel, splits: int) -> RiverModel:
    """The same shape with Triton's products: 16-bit backbone, in `splits`, and 4-bit river."""

    def dense(weights: LayerWeights | None) -> LayerWeights:
        assert weights is not None
        linears = weights.linears.items()
        made = {
            n: TritonDense(x.dense().half(), Cut(128, 64 // splits, splits)) for n, x in linears
        }
        return weights.with_linears(made)

    def coded(layer: int, weights: LayerWeights) -> LayerWeights:
        made = {}
        for n, (name, x) in enumerate(weights.linears.items()):
            codes = random_matrix(x.shape, 64, seed=4 * layer + n)
            made[name] = TritonInt4(codes, Cut(128, 1, 1))
        return weights.with_linears(made)

    backbone = [dense(w) for w in model.backbone]
    river = [None, *(coded(n, w) for n, w in enumerate(backbone[1:], start=2))]
    head = TritonDense(model.head.dense().half(), Cut(128, 64 // splits, splits))
    return replace(model, backbone=backbone, river=river, head=head, build_twin=coded, kept={})


def opened(model: RiverModel) -> GraphStore:
    device = FakeDevice(3, interpreted=True)
    store = GraphStore(model, device, KernelAttention(device))
    assert not device.notes
    return store


@pytest.fixture(scope="module")
def drawn() -> RiverModel:
    return random_model(SMALL, dtype="float32", capacity=300)


@pytest.fixture(scope="module", params=WAYS, ids=str)
def both(
    request: pytest.FixtureRequest, drawn: RiverModel
) -> tuple[RiverModel, RiverModel, GraphStore, float]:
    """The model with Triton's kernels, with torch's over the same weights, graphs, and a bound."""
    dtype, splits, capacity, bound = request.param
    cache = SharedCache(3, capacity, (2, 16), dtype, drawn.device)
    model = of_triton(replace(drawn, cache=cache), splits)
    return model, of_torch(model), opened(model), bound


@pytest.mark.parametrize(
    ("both", "settings"),
    [
        *((way, {"threshold": 0.75}) for way in WAYS),
        (WAYS[0], {"exit": "schedule", "options": {"exit_layers": [3, 1, 3, 2]}}),
    ],
    indirect=["both"],
    ids=str,
)
def test_graphs_choose_as_eager_torch_does(both, run_by, settings) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    model, plain, store, bound = both
    settings = {"max_new_tokens": TOKENS, "full_trace": False} | settings
    run_by(EagerExecution)
    wanted = river_core.generate(plain, PROMPT, **settings)
    run_by(by_graphs(store))
    found = river_core.generate(model, PROMPT, **settings)
    for mine, other in zip(found.tokens, wanted.tokens, strict=True):
        assert mine.similarities == pytest.approx(other.similarities, abs=bound)
        assert (mine.token_id, mine.exit_layer) == (other.token_id, other.exit_layer)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of kernels as they are launched."""
    found: list[str] = []
    launch = interpreter.GridExecutor.__call__

    def counted(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        found.append(self.fn.__name__)
        return launch(self, *args, **kwargs)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", counted)
    return found


def test_launches_of_a_layer_do_not_grow(both, launches: list[str]) -> None:  # type: ignore[no-untyped-def]
    """A product whose columns are split, as small matrices' are, takes two launches."""
    _, _, store, bound = both
    splits = 0 if bound < 1e-4 else 4
    store.prepare(store.reach(0))

    def count(graph: Graph) -> int:
        assert isinstance(graph, FakeGraph)
        launches.clear()
        graph.replay()
        return len(launches)

    assert count(store.find(Key("r", 3, 3, store.reach(0)))) == RIVER
    assert count(store.find(Key("b", 3, 3, store.reach(0)))) == BACKBONE + splits
