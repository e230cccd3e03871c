"""One row at a time through the C++ steps of native.py; many rows go through eager torch.

For models on the CPU whose linears are all native kernels. Both ways write the same cache, so a
prompt pass in torch and decode passes in C++ follow each other freely.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..block import similarity
from ..cache import Rows
from ..kernels.native import Native
from ..model import RiverModel
from ..sampling import ALTERNATIVES, Choice, checked
from .eager import EagerExecution, check_finite
from .native import ATTENTION, FEED_FORWARD, NativeBank, NativeLayer, NativeStep


def can_fuse(model: RiverModel) -> bool:
    """Whether all linears are native kernels and all sizes such as the C++ step takes."""
    layers = [w for bank in model.banks for w in bank if w is not None]
    linears = [model.head, *(linear for w in layers for linear in w.linears.values())]
    return model.shape.in_eights and all(isinstance(linear, Native) for linear in linears)


class FusedExecution(EagerExecution):
    """Eager for many rows; for a single row, one C++ call for any number of layers."""

    name = "fused C++ steps"

    def __init__(self, model: RiverModel) -> None:
        super().__init__(model)
        self._step = NativeStep(model.ropes)
        self._single = False
        self._h = torch.empty(model.shape.hidden)
        self._scores = torch.empty(model.vocab)
        self._cached = model.cache.k.unbind(0), model.cache.v.unbind(0)
        self._banks: dict[tuple[bool, int], NativeBank] = {}

    def start(self, rows: Rows) -> None:
        """Embed the rows' token ids: the residual stream becomes fp32 [R, d]."""
        self._single = len(rows) == 1
        if not self._single:
            super().start(rows)
            return
        self._h.copy_(self._model.embedding[rows.token_ids[0]])
        if self._model.embedding_scale != 1.0:
            self._h.mul_(self._model.embedding_scale)
        self._rows, self._position = rows, rows.positions[0]
        self._host = []

    def _bank(self, twins: bool, first: int) -> NativeBank:
        """The layers of one bank from `first` on, bound to their cache slots."""
        key = twins, first
        if key not in self._banks:
            model = self._model
            weights, last = (
                (model.twin, model.num_layers) if twins else (model.layer, model.resident)
            )
            shapes = model.shapes[first - 1 : last]
            native = [NativeLayer(weights(n), own) for n, own in enumerate(shapes, first)]
            ks, vs = (side[first - 1 : last] for side in self._cached)
            slots = model.cache.readable[first - 1 :], model.cache.readable_count[first - 1 :]
            self._banks[key] = self._step.bank(native, ks, vs, slots)
        return self._banks[key]

    def drop(self) -> None:
        """Let go of every weight: the banks point to those that were evicted."""
        self._banks.clear()

    def backbone(self, first: int, last: int) -> None:
        """Run backbone layers first..last on the rows, in place, and note their similarities."""
        if not self._single:
            super().backbone(first, last)
            return
        bank = self._bank(False, 1)
        for value in self._step.run(bank, self._h, self._position, first - 1, last):
            self._keep(value)

    def _keep(self, value: float) -> None:
        """Note the similarity of the next layer."""
        check_finite((value,), len(self._host) + 1)
        self._host.append((value,))

    def half(self, layer: int, which: str) -> Sequence[float]:
        """Run "attention" or "feed_forward" of a backbone layer; the rows' similarities over it."""
        if not self._single:
            return super().half(layer, which)
        part = ATTENTION if which == "attention" else FEED_FORWARD
        bank = self._bank(False, 1)
        values = self._step.run(bank, self._h, self._position, layer - 1, layer, part)
        check_finite(values, layer)
        return values

    def norms(self) -> float:
        """Mean norm of the rows' hidden states."""
        return float(torch.linalg.vector_norm(self._h)) if self._single else super().norms()

    def scale(self, factor: float) -> None:
        """Multiply the rows' hidden states: what stands in for a half that is left out."""
        if self._single:
            self._h.mul_(factor)
        else:
            super().scale(factor)

    def open_layer(self) -> None:
        """A backbone layer begins that runs in halves."""
        if self._single:
            self._opened = self._h.clone()
        else:
            super().open_layer()

    def close_layer(self) -> None:
        """It ends: note the rows' similarities over the whole of it."""
        if self._single:
            self._keep(float(similarity(self._opened[None], self._h[None])))
        else:
            super().close_layer()

    def river(self, first: int, last: int) -> None:
        """Run river layers first..last on the rows, in place."""
        if not self._single:
            super().river(first, last)
            return
        start = min(first, self._model.info.entry_layer)
        bank = self._bank(True, start)
        self._step.run(bank, self._h, self._position, first - start, last - start + 1)

    def state(self) -> Tensor:
        """A copy of the rows' hidden states, fp32 [R, d]."""
        return self._h.clone().unsqueeze(0) if self._single else super().state()

    def propagate(self, state: Tensor, first: int, last: int) -> None:
        """Write keys and values of backbone layers first..last as `state` [1, d] gives them."""
        if not self._single:
            super().propagate(state, first, last)
            return
        bank = self._bank(False, 1)
        self._step.keys_values(bank, state[0], self._position, first - 1, last)

    def join(self, rows: Rows, states: Tensor) -> None:
        """Take further rows [n, d] fp32 into the pass, before its own, in order of position."""
        if self._single:
            self._single, self._x, self._pairs = False, self._h.clone().unsqueeze(0), []
            self._stand(self._rows)
        super().join(rows, states)

    def only_last(self) -> None:
        """Go on with the last row alone."""
        if not self._single:
            super().only_last()
            self._single, self._position = True, self._at.rows.positions[0]
            self._h.copy_(self._x[0])

    def trace(self, layers: int) -> list[Sequence[float]]:
        """Similarities of backbone layers 1..layers of this pass, [layer][row]."""
        return self._host[:layers] if self._single else super().trace(layers)

    def logits(self) -> Tensor:
        """Scores of the last row, fp32 [V]."""
        if not self._single:
            return super().logits()
        model = self._model
        self._step.head(model.final_norm, model.shape.eps, model.head, self._h, self._scores)
        return self._scores

    def every_logits(self) -> Tensor:
        """Scores of all rows, fp32 [R, V]."""
        return self.logits().clone().unsqueeze(0) if self._single else super().every_logits()

    def describe(self, logits: Tensor, token_id: int | None = None) -> Choice:
        """What logits [V] say about a token (default: the best); RiverError if not finite."""
        best, logprob, entropy = self._step.choice(logits, token_id, ALTERNATIVES)
        chosen = best[0][0] if token_id is None else token_id
        return checked(Choice(chosen, logprob, entropy, tuple(best)))
