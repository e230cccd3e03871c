"""The interface between the loop and whatever computes: the verbs of one pass.

The loop says what runs, an Execution runs it. `start` takes the rows, `backbone` and `river` run
layers and write their KV, `read` gives a backbone layer's similarities to the host, `logits` the
last row's scores. Knows nothing of exits, policies or records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ..cache import Rows
from ..sampling import Choice


class Execution(Protocol):
    """One run's steps over one model and cache; layers are 1-based."""

    name: str

    def start(self, rows: Rows) -> None:
        """Embed the rows' token ids: the residual stream becomes fp32 [R, d]."""
        ...

    def backbone(self, first: int, last: int) -> None:
        """Run backbone layers first..last on the rows, in place, and note their similarities."""
        ...

    def river(self, first: int, last: int) -> None:
        """Run river layers first..last on the rows, in place."""
        ...

    def read(self, layer: int) -> Sequence[float]:
        """Similarities of the rows after backbone `layer` of this pass, as host floats [R]."""
        ...

    def trace(self, layers: int) -> list[Sequence[float]]:
        """Similarities of backbone layers 1..layers of this pass, [layer][row]."""
        ...

    def logits(self) -> Tensor:
        """Scores of the last row, fp32 [V]; valid until the next pass."""
        ...

    def describe(self, logits: Tensor, token_id: int | None = None) -> Choice:
        """What logits [V] say about a token (default: the best); RiverError if not finite."""
        ...

    def settle(self) -> None:
        """Wait until everything asked for is done (for clocks)."""
        ...
