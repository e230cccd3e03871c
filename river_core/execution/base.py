"""The interface between the loop and whatever computes: the verbs of one pass.

The loop says what runs, an Execution runs it. `start` takes the rows, `backbone` and `river` run
layers and write their KV, `read` gives a backbone layer's similarities to the host, `logits` the
last row's scores. Knows nothing of exits, policies or records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from ..cache import Rows
from ..sampling import Choice


class Execution(Protocol):
    """One run's steps over one model and cache; layers are 1-based."""

    name: str
    pause: Callable[[], None]  # called within passes of several rows; its errors end the pass
    notes: tuple[str, ...]  # why not the fastest way, a sentence each, for the run's header

    def start(self, rows: Rows) -> None:
        """Embed the rows' token ids: the residual stream becomes fp32 [R, d]."""
        ...

    def foresee(self, threshold: float | None) -> None:
        """Of this pass: rows leave where their similarity is above `threshold`, and then run the
        river to its end; None: that is not known. A hint: what the loop asks for counts.
        """
        ...

    def backbone(self, first: int, last: int) -> None:
        """Run backbone layers first..last on the rows, in place, and note their similarities."""
        ...

    def half(self, layer: int, which: str) -> Sequence[float]:
        """Run "attention" or "feed_forward" of a backbone layer; the rows' similarities over it."""
        ...

    def norms(self) -> float:
        """Mean norm of the rows' hidden states."""
        ...

    def scale(self, factor: float) -> None:
        """Multiply the rows' hidden states: what stands in for a half that is left out."""
        ...

    def open_layer(self) -> None:
        """A backbone layer begins that runs in halves."""
        ...

    def close_layer(self) -> None:
        """It ends: note the rows' similarities over the whole of it."""
        ...

    def river(self, first: int, last: int) -> None:
        """Run river layers first..last on the rows, in place."""
        ...

    def state(self) -> Tensor:
        """A copy of the rows' hidden states, fp32 [R, d]."""
        ...

    def propagate(self, state: Tensor, first: int, last: int) -> None:
        """Write keys and values of backbone layers first..last as `state` [1, d] gives them.

        For a single row, whose own hidden state stays.
        """
        ...

    def join(self, rows: Rows, states: Tensor) -> None:
        """Take further rows [n, d] fp32 into the pass, before its own, in order of position."""
        ...

    def only_last(self) -> None:
        """Go on with the last row alone."""
        ...

    def read(self, layer: int) -> Sequence[float]:
        """Similarities of the rows after backbone `layer` of this pass, as host floats [R]."""
        ...

    def trace(self, layers: int) -> list[Sequence[float]]:
        """Similarities of backbone layers 1..layers of this pass, [layer][row]."""
        ...

    def logits(self) -> Tensor:
        """Scores of the last row, fp32 [V]; valid until the next call."""
        ...

    def every_logits(self) -> Tensor:
        """Scores of all rows, fp32 [R, V]."""
        ...

    def describe(self, logits: Tensor, token_id: int | None = None) -> Choice:
        """What logits [V] say about a token (default: the best); RiverError if not finite."""
        ...

    def drop(self) -> None:
        """Let go of every weight: layers were evicted, so the run that this serves is over."""
        ...

    def settle(self) -> None:
        """Wait until everything asked for is done (for clocks)."""
        ...
