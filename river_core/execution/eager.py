"""Plain torch, operation by operation: the way that runs everywhere and that others are held to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..block import BlockRows, rms_norm, run_block, similarity
from ..cache import Rows, SharedCache
from ..errors import RiverError
from ..model import RiverModel
from ..sampling import Choice, describe, greedy


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
        self._pairs: list[tuple[Tensor, Tensor]] = []  # one row: input and output of each layer
        self._host: list[Sequence[float]] = []  # similarities of the layers looked at so far

    def start(self, rows: Rows) -> None:
        """Embed the rows' token ids: the residual stream becomes fp32 [R, d]."""
        model = self._model
        index = rows.index(model.device)
        ids = torch.tensor(rows.token_ids, dtype=torch.int64, device=model.device)
        cos, sin = model.rope
        self._at = BlockRows(rows, cos[index], sin[index])
        self._x = model.embedding[ids].float()
        self._pairs = []
        self._host = []

    def _run(self, layer: int, *, backbone: bool) -> Tensor:
        model = self._model
        weights = model.backbone[layer - 1] if backbone else model.twin(layer)
        slot = 1 if self._scratch else layer
        return run_block(self._x, weights, model.shape, self._at, self._cache, slot)

    def backbone(self, first: int, last: int) -> None:
        """Run backbone layers first..last on the rows, in place, and note their similarities."""
        for layer in range(first, last + 1):
            before, self._x = self._x, self._run(layer, backbone=True)
            if self._x.shape[0] == 1:  # compared when a rule asks, or once at the pass's end
                self._pairs.append((before, self._x))
            else:
                self._note(similarity(before, self._x).unsqueeze(0))

    def river(self, first: int, last: int) -> None:
        """Run river layers first..last on the rows, in place."""
        for layer in range(first, last + 1):
            self._x = self._run(layer, backbone=False)

    def read(self, layer: int) -> Sequence[float]:
        """Similarities of the rows after backbone `layer` of this pass, as host floats [R].

        Raises RiverError, naming the layer, where one is not finite.
        """
        return self.trace(layer)[layer - 1]

    def trace(self, layers: int) -> list[Sequence[float]]:
        """Similarities of backbone layers 1..layers of this pass, [layer][row]."""
        fresh = self._pairs[len(self._host) : layers]
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

    def describe(self, logits: Tensor, token_id: int | None = None) -> Choice:
        """What logits [V] say about a token (default: the best); RiverError if not finite."""
        return describe(logits, greedy(logits) if token_id is None else token_id)

    def settle(self) -> None:
        """Wait until everything asked for is done (for clocks)."""
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)


def check_finite(values: Sequence[float], layer: int) -> None:
    """Raise RiverError, naming the layer, where a similarity is not finite."""
    for value in values:
        if not -1.0 <= value <= 1.0:
            raise RiverError(
                f"the similarity after backbone layer {layer} is {value}; the residual stream is "
                "not finite, try dtype='float32'."
            )
