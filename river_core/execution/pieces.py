"""The pieces of a pass for a single row, as operations on static buffers: what graphs are made of.

A piece takes everything from the device: token id, position, step and threshold too, so that one
capture serves every token. They are block.py's own functions but for the position, which is a
tensor here. Knows nothing of graphs, or of which piece runs when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..block import Rope, add_attended, project, rms_norm, run_feed_forward, similarity
from ..layer import BlockShape
from ..model import RiverModel
from .device import Device, Mailbox, pack

SHORTEST = 256  # slots that the shortest masked attention reads


@dataclass(frozen=True, eq=False)
class State:
    """What pieces work on, allocated before any capture.

    inputs int64 [3]: token id, position, step; threshold fp32 [1]; hidden fp32 [1, d] is the
    residual stream, before what it was at the last piece's start; logits fp32 [1, V]; attended
    fp32 [1, H * D] is room for a kernel's result; keys, values [kv_heads, capacity, D] by layer.
    """

    inputs: Tensor
    threshold: Tensor
    hidden: Tensor
    before: Tensor
    logits: Tensor
    attended: Tensor
    mailbox: Mailbox
    keys: Sequence[Tensor]
    values: Sequence[Tensor]

    @classmethod
    def on(
        cls, device: Device, model: RiverModel, keys: Sequence[Tensor], values: Sequence[Tensor]
    ) -> State:
        """Fresh buffers over these keys and values."""
        shape, real = model.shape, torch.float32
        return cls(
            inputs=device.static((3,), torch.int64),
            threshold=device.static((1,), real),
            hidden=device.static((1, shape.hidden), real),
            before=device.static((1, shape.hidden), real),
            logits=device.static((1, model.vocab), real),
            attended=device.static((1, shape.heads * shape.head_dim), real),
            mailbox=device.mailbox(model.num_layers),
            keys=keys,
            values=values,
        )

    def tensors(self) -> list[Tensor]:
        """What stands on the device and is this state's own: the mailbox is the host's."""
        real = [self.threshold, self.hidden, self.before, self.logits, self.attended]
        return [self.inputs, *real]

    @property
    def position(self) -> Tensor:
        """Where the row stands, int64 [1]."""
        return self.inputs[1:2]


class Attention(Protocol):
    """Attention of one row over slots 0..its position, or the last `window` of them."""

    def reach(self, position: int, capacity: int) -> int:
        """Slots that a graph has to be made for to serve a row at `position`."""
        ...

    def __call__(
        self, state: State, q: Tensor, layer: int, shape: BlockShape, reach: int
    ) -> Tensor:
        """q [1, H, D] over the first `reach` slots of 1-based `layer` -> fp32 [1, H * D]."""
        ...


class MaskedAttention:
    """In plain torch: all of the first `reach` slots are read, those after the position masked.

    What it costs: a reach of 256, 512 ... slots, so up to twice the slots that are valid; and each
    is widened to fp32, masked and read again, some nine times its bytes in the cache: at 4096 slots
    more than an int4 layer of an 8B model, at 256 a twelfth of one. And one set of graphs for each
    reach. Slots that are masked count as zeros, whatever an earlier run left there.
    """

    def reach(self, position: int, capacity: int) -> int:
        """The first of 256, 512 ... that holds the position, at most the capacity."""
        slots = SHORTEST
        while slots <= position:
            slots *= 2
        return min(slots, capacity)

    def __call__(
        self, state: State, q: Tensor, layer: int, shape: BlockShape, reach: int
    ) -> Tensor:
        """q [1, H, D] over the first `reach` slots of 1-based `layer` -> fp32 [1, H * D]."""
        slots = torch.arange(reach, device=q.device)
        seen = slots <= state.position
        if shape.window is not None:
            seen = seen & (slots > state.position - shape.window)
        k, v = (
            side[layer - 1][:, :reach].float().masked_fill(~seen[:, None], 0.0)
            for side in (state.keys, state.values)
        )
        shared = shape.heads // shape.kv_heads
        grouped = q.view(1, shape.kv_heads, shared, shape.head_dim)
        mask = seen.repeat(shared, 1)
        out = F.scaled_dot_product_attention(
            grouped, k[None], v[None], attn_mask=mask, scale=shape.scale
        )
        return out.reshape(1, shape.heads * shape.head_dim)


@dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces of one model, on one state."""

    model: RiverModel
    state: State
    attention: Attention

    def buffers(self) -> list[Tensor]:
        """Tensors on the device that stay for as long as the pieces do, for the memory ledger."""
        return self.state.tensors()

    def embed(self) -> None:
        """The token's row becomes the hidden state."""
        self.state.hidden.copy_(self.model.embed(self.state.inputs[:1]))

    def backbone(self, first: int, last: int, reach: int) -> None:
        """Backbone layers first..last, each of which posts its similarity."""
        state, ropes = self.state, self._ropes()
        for layer in range(first, last + 1):
            state.before.copy_(state.hidden)
            self._layer(layer, True, ropes, reach)
            value = similarity(state.before, state.hidden)
            word = pack(state.inputs[2:3], value, state.threshold)
            state.mailbox.post(layer - 1, word)

    def river(self, first: int, last: int, reach: int) -> None:
        """River layers first..last."""
        state, ropes = self.state, self._ropes()
        state.before.copy_(state.hidden)
        for layer in range(first, last + 1):
            self._layer(layer, False, ropes, reach)

    def undo(self) -> None:
        """The hidden state is what it was before the last piece of layers."""
        self.state.hidden.copy_(self.state.before)

    def tail(self) -> None:
        """Final norm and head."""
        model, state = self.model, self.state
        normed = rms_norm(state.hidden, model.final_norm, model.shape.eps)
        state.logits.copy_(model.head(normed))

    def _ropes(self) -> tuple[Rope, ...]:
        return tuple(rope.at(self.state.position) for rope in self.model.ropes)

    def _layer(self, layer: int, backbone: bool, ropes: tuple[Rope, ...], reach: int) -> None:
        """One layer on the hidden state; its keys and values go where the row stands."""
        model, state = self.model, self.state
        weights = model.layer(layer) if backbone else model.twin(layer)
        shape = model.shapes[layer - 1]
        turned, values = project(state.hidden, weights, shape, ropes)
        for side, new in ((state.keys, turned[:, shape.heads :]), (state.values, values)):
            cached = side[layer - 1]
            cached.index_copy_(1, state.position, new.transpose(0, 1).to(cached.dtype))
        q = turned[:, : shape.heads].contiguous()
        attended = self.attention(state, q, layer, shape, reach)
        x = add_attended(state.hidden, attended, weights, shape)
        state.hidden.copy_(run_feed_forward(x, weights, shape))
