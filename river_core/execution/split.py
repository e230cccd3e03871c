"""Eager torch over several devices: the rows go where the next layer is. For capacity, not speed.

Layers stand in order (placement.py), so a pass changes device once per boundary, and once more for
the head, which is with the embedding on the first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..block import BlockRows, Rope
from ..cache import Rows, SharedCache
from ..model import RiverModel
from .eager import EagerExecution


class SplitExecution(EagerExecution):
    """EagerExecution of a model with a placement; `hops` counts how often the rows moved."""

    name = "eager torch over several devices"

    def __init__(self, model: RiverModel, cache: SharedCache | None = None) -> None:
        super().__init__(model, cache)
        self.hops = 0
        self._where = self._home = model.device
        self._ropes: dict[torch.device, tuple[Rope, ...]] = {self._home: model.ropes}

    def start(self, rows: Rows) -> None:
        """Embed the rows' token ids: the residual stream becomes fp32 [R, d]."""
        self._where = self._home
        super().start(rows)

    def _stand(self, rows: Rows) -> None:
        where = self._where
        if where not in self._ropes:
            self._ropes[where] = tuple(rope.to(where) for rope in self._model.ropes)
        self._at = BlockRows.of(rows, self._ropes[where])

    def _go(self, where: torch.device) -> None:
        """Move the rows; what was to be compared later is compared before."""
        if where != self._where:
            self.trace(len(self._host) + len(self._pairs))
            self._x, self._where = self._x.to(where), where
            self.hops += 1
            self._stand(self._at.rows)

    def backbone(self, first: int, last: int) -> None:
        """Run backbone layers first..last on the rows, in place, and note their similarities."""
        for layer in range(first, last + 1):
            self._go(self._model.placement[layer - 1])
            super().backbone(layer, layer)

    def open_layer(self) -> None:
        """A backbone layer begins that runs in halves: the one after those that were noted."""
        self._go(self._model.placement[len(self._host) + len(self._pairs)])
        super().open_layer()

    def river(self, first: int, last: int) -> None:
        """Run river layers first..last on the rows, in place."""
        for layer in range(first, last + 1):
            self._go(self._model.placement[layer - 1])
            super().river(layer, layer)

    def propagate(self, state: Tensor, first: int, last: int) -> None:
        """Write keys and values of backbone layers first..last as `state` [1, d] gives them."""
        for layer in range(first, last + 1):
            self._go(self._model.placement[layer - 1])
            super().propagate(state.to(self._where), layer, layer)

    def logits(self) -> Tensor:
        """Scores of the last row, fp32 [V]."""
        self._go(self._home)
        return super().logits()

    def every_logits(self) -> Tensor:
        """Scores of all rows, fp32 [R, V]."""
        self._go(self._home)
        return super().every_logits()
