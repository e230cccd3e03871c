"""What the tests of captured graphs share: models of torch operations alone, on a fake device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor

from river_core.block import attend
from river_core.cache import Rows
from river_core.execution.device import KernelCall
from river_core.execution.eager import EagerExecution
from river_core.execution.fake_device import FakeDevice
from river_core.execution.graph_store import GraphStore
from river_core.execution.graphs import GraphExecution
from river_core.execution.pieces import Attention, MaskedAttention, State
from river_core.kernels.torch_dense import TorchDense
from river_core.layer import BlockShape, LayerWeights
from river_core.model import RiverModel


def of_torch(model: RiverModel) -> RiverModel:
    """The same model with dense torch kernels, whose calls the dispatcher sees; evictable."""

    def copied(weights: LayerWeights | None) -> LayerWeights | None:
        if weights is None:
            return None
        made = {name: TorchDense(x.dense().clone()) for name, x in weights.linears.items()}
        return weights.with_linears(made)

    backbone = [copied(w) for w in model.backbone]
    whole = [copied(w) for w in backbone]
    return replace(
        model,
        backbone=backbone,
        river=[copied(w) for w in model.river],
        head=TorchDense(model.head.dense().clone()),
        restore_layer=lambda layer, twin: copied(whole[layer - 1]),
        build_twin=lambda layer, own: copied(own),
        kept={},
    )


class LengthKernel:
    """Attention as a kernel that reads the length on the device; its reference is eager's own."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device

    def reach(self, position: int, capacity: int) -> int:
        return capacity

    def __call__(
        self, state: State, q: Tensor, layer: int, shape: BlockShape, reach: int
    ) -> Tensor:
        def reference() -> None:
            position = int(state.position)
            first = 0 if shape.window is None else max(0, position + 1 - shape.window)
            k, v = (side[layer - 1][:, first : position + 1] for side in (state.keys, state.values))
            state.attended.copy_(attend(q, k, v, Rows((0,), (position,)), shape))

        call = KernelCall("attention", lambda: None, reference, [state.attended])
        self._device.kernel(call)
        return state.attended


def graph_store(
    model: RiverModel, *, seed: int = 0, attention: Callable[[FakeDevice], Attention] = LengthKernel
) -> GraphStore:
    """Graphs on a fake device; by default they do what eager torch does, number for number."""
    device = FakeDevice(seed)
    return GraphStore(model, device, attention(device))


def masked(device: FakeDevice) -> Attention:
    """What serves where our kernel cannot."""
    return MaskedAttention()


Engines = Callable[[RiverModel], EagerExecution]


@pytest.fixture
def run_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Engines], None]:
    """Say what opens the engine of every run from here on."""
    return lambda engines: monkeypatch.setattr("river_core.passes.open_execution", engines)


def by_graphs(store: GraphStore) -> Engines:
    return lambda model: GraphExecution(model, store)
