"""The pieces of a pass by our fused Triton kernels: five launches per layer, six with a decision.

A layer runs so where its block has no options and its four products are kernels that fuse what
stands around them; any other layer runs as pieces.py has it. The reference of each launch is plain
torch (kernels/torch_step.py). Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..kernels import torch_step
from ..kernels.base import Linear
from ..kernels.gemv_plan import Fused, FusedLinear
from ..layer import LayerWeights
from ..model import Bank, RiverModel
from .device import Device, KernelCall
from .kernel_attention import KernelAttention
from .pieces import Attention, Pieces, State


@dataclass(frozen=True, eq=False)
class Room:
    """What passes from launch to launch within a layer, and holds nothing between layers.

    qkv fp32 [1, (H + 2 kv_heads) * D]; middle and fresh fp32 [1, d], the stream after each half;
    gated fp32 [1, F]; arrived int32 [kv_heads], zeros.
    """

    qkv: Tensor
    middle: Tensor
    fresh: Tensor
    gated: Tensor
    arrived: Tensor

    @classmethod
    def on(cls, device: Device, model: RiverModel) -> Room:
        """Fresh buffers."""
        shape, real = model.shape, torch.float32
        return cls(
            qkv=device.static((1, shape.matrices["qkv"][0]), real),
            middle=device.static((1, shape.hidden), real),
            fresh=device.static((1, shape.hidden), real),
            gated=device.static((1, shape.ffn), real),
            arrived=device.static((shape.kv_heads,), torch.int32),
        )


@dataclass(frozen=True, eq=False)
class KernelPieces(Pieces):
    """Fused kernels where a layer allows it."""

    device: Device
    room: Room

    def buffers(self) -> list[Tensor]:
        """Tensors on the device that stay for as long as the pieces do, for the memory ledger."""
        room = self.room
        own = [room.qkv, room.middle, room.fresh, room.gated, room.arrived]
        return [*super().buffers(), *own]

    def backbone(self, first: int, last: int, reach: int) -> None:
        """Backbone layers first..last, each of which posts its similarity."""
        for layer in range(first, last + 1):
            weights = self.model.layer(layer)
            if why_not(self.model, layer, weights) is not None:
                super().backbone(layer, layer, reach)
                continue
            self._fused(layer, weights, self.room.fresh)
            self._end(layer)

    def river(self, first: int, last: int, reach: int) -> None:
        """River layers first..last."""
        state = self.state
        state.before.copy_(state.hidden)
        for layer in range(first, last + 1):
            weights = self.model.twin(layer)
            if why_not(self.model, layer, weights) is None:
                self._fused(layer, weights, state.hidden)
            else:
                self._layer(layer, False, self._ropes(), reach)

    def tail(self) -> None:
        """Final norm and head."""
        model, state = self.model, self.state
        if not isinstance(model.head, FusedLinear):
            super().tail()
            return
        norm = Fused(norm=model.final_norm, eps=model.shape.eps)
        self._product(model.head, state.hidden, state.logits, norm)

    def _fused(self, layer: int, weights: LayerWeights, out: Tensor) -> None:
        """One layer on the hidden state, in five launches, its result into `out` [1, d]."""
        state, room, eps = self.state, self.room, self.model.shape.eps
        before = Fused(norm=weights.attn_norm, eps=eps)
        self._product(weights.qkv, state.hidden, room.qkv, before)
        self._attend(layer)
        self._product(weights.out, state.attended, room.middle, Fused(residual=state.hidden))
        gate = Fused(norm=weights.ffn_norm, eps=eps, gated=True)
        self._product(weights.gate_up, room.middle, room.gated, gate)
        self._product(weights.down, room.gated, out, Fused(residual=room.middle))

    def _product(self, linear: Linear, x: Tensor, out: Tensor, fused: Fused) -> None:
        assert isinstance(linear, FusedLinear)
        run = partial(_void, partial(linear.project, x, out, fused))
        reference = partial(_void, partial(torch_step.product, linear, x, out, fused))
        self.device.kernel(KernelCall("product", run, reference, [out], linear.tensors()))

    def _attend(self, layer: int) -> None:
        """RoPE, the write of keys and values, and attention."""
        state, room, shape = self.state, self.room, self.model.shape
        cached = state.keys[layer - 1], state.values[layer - 1]
        rope = self.model.ropes[0].cos, self.model.ropes[0].sin
        out = state.attended.view(shape.heads, shape.head_dim)
        tensors = (room.qkv.view(-1), rope, state.position, cached, room.arrived, out)
        self._step("turn_and_attend", tensors, [*cached, out, room.arrived], shape.head_dim**-0.5)

    def _end(self, layer: int) -> None:
        """Post the similarity; what the layer made becomes the hidden state."""
        state = self.state
        stream = state.before, state.hidden, self.room.fresh
        words = state.mailbox.words
        tensors = (stream, state.inputs, state.threshold, words, layer - 1)
        self._step("end_layer", tensors, [*stream[:2], words])

    def _step(
        self, name: str, tensors: tuple[Any, ...], writes: list[Tensor], scale: float | None = None
    ) -> None:
        """A launch of one of the functions that triton_step.py and torch_step.py both have."""
        more = {} if scale is None else {"scale": scale}
        reference = partial(getattr(torch_step, name), *tensors, **more)
        self.device.kernel(
            KernelCall(name, partial(_launch, name, tensors, more), reference, writes)
        )


def _launch(name: str, tensors: tuple[Any, ...], more: dict[str, float]) -> None:
    from ..kernels import triton_step  # imports triton, which a CPU has no use for

    getattr(triton_step, name)(*tensors, **more)


def _void(call: Callable[[], object]) -> None:
    call()


def why_not(model: RiverModel, layer: int, weights: LayerWeights) -> str | None:
    """Why a layer with these weights is not for the fused kernels, or None."""
    shape = model.shapes[layer - 1]
    if shape.options:
        return f"their block has {' and '.join(shape.options)}"
    if model.ropes[0].queries is not None:
        return "their queries are scaled by position"
    other = next((x.name for x in weights.linears.values() if not isinstance(x, FusedLinear)), None)
    return None if other is None else f"{other} fuses nothing with its product"


def pieces_on(model: RiverModel, device: Device, state: State, attention: Attention) -> Pieces:
    """Fused kernels where our attention kernel runs; the device's notes say which layers have none.

    Where it does not run, all is plain torch, and its own note has said why.
    """
    if not isinstance(attention, KernelAttention):
        return Pieces(model, state, attention)
    for name, bank in (("backbone layers", model.backbone), ("river layers", model.river)):
        device.notes = (*device.notes, *_notes(model, name, bank))
    return KernelPieces(model, state, attention, device, Room.on(device, model))


def _notes(model: RiverModel, name: str, bank: Bank) -> list[str]:
    """A sentence for each reason why layers of a bank do not run by fused kernels."""
    found: dict[str, list[int]] = {}
    there = [(n, weights) for n, weights in enumerate(bank, start=1) if weights is not None]
    for n, weights in there:
        reason = why_not(model, n, weights)
        if reason is not None:
            found.setdefault(reason, []).append(n)
    return [
        f"{len(layers)} of {len(there)} {name} run operation by operation within their "
        f"graphs, not by fused kernels: {reason}."
        for reason, layers in found.items()
    ]
