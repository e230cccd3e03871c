"""Plain torch, operation by operation: the way that runs everywhere and that others are held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..block import (
    BlockRows,
    rms_norm,
    run_attention,
    run_block,
    run_feed_forward,
    similarity,
    write_keys_values,
)
from ..cache import Rows, SharedCache
from ..devices import settle
from ..errors import RiverError
from ..giving_up import go_on
from ..model import RiverModel
from ..sampling import Choice, describe, greedy

PIECE = 1024  # rows that go through a layer together: a long prompt can be given up in between


class EagerExecution:
    """Runs passes of any number of rows on `model` over `cache` (default: the model's own).

    With `scratch` every layer uses slot 1 of the cache: for passes over all rows at once that
    leave nothing behind.
    """

    name = "eager torch"

    def __init__(
        self, model: RiverModel, cache: SharedCache | None = None, *, scratch: bool = False
    ) -> None:
        self._model = model
        self._cache = model.cache if cache is None else cache
        self._scratch = scratch
        self.pause: Callable[[], None] = go_on
        self.notes: tuple[str, ...] = ()
        self._pairs: list[tuple[Tensor, Tensor]] = []  # one row: in and out of layers not looked at
        self._host: list[Sequence[float]] = []  # similarities of the layers looked at so far

    def start(self, rows: Rows) -> None:
        """Embed the rows' token ids: the residual stream becomes fp32 [R, d]."""
        model = self._model
        ids = torch.tensor(rows.token_ids, dtype=torch.int64, device=model.device)
        self._x = model.embed(ids)
        self._pairs = []
        self._host = []
        self._stand(rows)

    def foresee(self, threshold: float | None) -> None:
        """Of this pass: decisions go by this threshold alone, and who leaves runs the river."""

    def _stand(self, rows: Rows) -> None:
        """The rows of what follows, and where they stand."""
        self._at = BlockRows.of(rows, self._model.ropes)

    def _slot(self, layer: int) -> int:
        return 1 if self._scratch else layer

    def _run(self, layer: int, *, backbone: bool) -> Tensor:
        model = self._model
        weights = model.layer(layer) if backbone else model.twin(layer)
        shape, slot = model.shapes[layer - 1], self._slot(layer)
        count = len(self._at.rows)
        if count == 1:
            return run_block(self._x, weights, shape, self._at, self._cache, slot)
        pieces = []
        for first in range(0, count, PIECE):
            self.pause()
            some = slice(first, first + PIECE)
            at = self._at.part(some) if count > PIECE else self._at
            pieces.append(run_block(self._x[some], weights, shape, at, self._cache, slot))
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

    def backbone(self, first: int, last: int) -> None:
        """Run backbone layers first..last on the rows, in place, and note their similarities."""
        for layer in range(first, last + 1):
            before, self._x = self._x, self._run(layer, backbone=True)
            self._note_layer(before)

    def _note_layer(self, before: Tensor) -> None:
        if self._x.shape[0] == 1:  # compared when a rule asks, or once at the end of the pass
            self._pairs.append((before, self._x))
        else:
            self._note(similarity(before, self._x).unsqueeze(0))

    def half(self, layer: int, which: str) -> Sequence[float]:
        """Run "attention" or "feed_forward" of a backbone layer; the rows' similarities over it."""
        model, before = self._model, self._x
        weights, shape = model.layer(layer), model.shapes[layer - 1]
        if which == "attention":
            slot = self._slot(layer)
            self._x = run_attention(before, weights, shape, self._at, self._cache, slot)
        else:
            self._x = run_feed_forward(before, weights, shape)
        values: list[float] = similarity(before, self._x).tolist()
        check_finite(values, layer)
        return values

    def norms(self) -> float:
        """Mean norm of the rows' hidden states."""
        return float(torch.linalg.vector_norm(self._x, dim=-1).mean())

    def scale(self, factor: float) -> None:
        """Multiply the rows' hidden states: what stands in for a half that is left out."""
        self._x = self._x * factor

    def open_layer(self) -> None:
        """A backbone layer begins that runs in halves."""
        self._opened = self._x

    def close_layer(self) -> None:
        """It ends: note the rows' similarities over the whole of it."""
        self._note_layer(self._opened)

    def river(self, first: int, last: int) -> None:
        """Run river layers first..last on the rows, in place."""
        for layer in range(first, last + 1):
            self._x = self._run(layer, backbone=False)

    def state(self) -> Tensor:
        """A copy of the rows' hidden states, fp32 [R, d]."""
        return self._x.clone()

    def propagate(self, state: Tensor, first: int, last: int) -> None:
        """Write keys and values of backbone layers first..last as `state` [1, d] gives them."""
        model = self._model
        for layer in range(first, last + 1):
            weights, slot = model.layer(layer), self._slot(layer)
            shape = model.shapes[layer - 1]
            write_keys_values(state, weights, shape, self._at, self._cache, slot)

    def join(self, rows: Rows, states: Tensor) -> None:
        """Take further rows [n, d] fp32 into the pass, before its own, in order of position."""
        self.trace(len(self._pairs))
        self._pairs = []
        own = self._at.rows
        order = sorted(
            range(len(rows) + len(own)), key=(*rows.positions, *own.positions).__getitem__
        )
        ids, positions = (*rows.token_ids, *own.token_ids), (*rows.positions, *own.positions)
        self._x = torch.cat([states, self._x])[order]
        self._stand(Rows(tuple(ids[n] for n in order), tuple(positions[n] for n in order)))

    def only_last(self) -> None:
        """Go on with the last row alone."""
        rows = self._at.rows
        self._x = self._x[-1:]
        self._stand(Rows(rows.token_ids[-1:], rows.positions[-1:]))

    def read(self, layer: int) -> Sequence[float]:
        """Similarities of the rows after backbone `layer` of this pass, as host floats [R].

        Raises RiverError, naming the layer, where one is not finite.
        """
        return self.trace(layer)[layer - 1]

    def trace(self, layers: int) -> list[Sequence[float]]:
        """Similarities of backbone layers 1..layers of this pass, [layer][row]."""
        count = layers - len(self._host)
        fresh, self._pairs = self._pairs[:count], self._pairs[count:]
        if fresh:
            before, after = (torch.cat(side) for side in zip(*fresh, strict=True))
            self._note(similarity(before, after).unsqueeze(1))
        return self._host[:layers]

    def _note(self, values: Tensor) -> None:
        """Keep similarities [layers, R] on the host, once they are known to be finite."""
        for row in values.tolist():
            check_finite(row, len(self._host) + 1)
            self._host.append(row)

    def logits(self) -> Tensor:
        """Scores of the last row, fp32 [V]."""
        model = self._model
        return model.head(rms_norm(self._x[-1:], model.final_norm, model.shape.eps))[0]

    def every_logits(self) -> Tensor:
        """Scores of all rows, fp32 [R, V]."""
        model = self._model
        return model.head(rms_norm(self._x, model.final_norm, model.shape.eps))

    def describe(self, logits: Tensor, token_id: int | None = None) -> Choice:
        """What logits [V] say about a token (default: the best); RiverError if not finite."""
        return describe(logits, greedy(logits) if token_id is None else token_id)

    def drop(self) -> None:
        """Let go of weights that this keeps beside the model's own lists: none."""

    def settle(self) -> None:
        """Wait until everything asked for is done (for clocks)."""
        settle(self._model.device)


def check_finite(values: Sequence[float], layer: int) -> None:
    """Raise RiverError, naming the layer, where a similarity is not finite."""
    for value in values:
        if not -1.0 <= value <= 1.0:
            raise RiverError(
                f"the similarity after backbone layer {layer} is {value}; the residual stream is "
                "not finite, try dtype='float32'."
            )
