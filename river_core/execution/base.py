"""The interface between the loop and whatever computes: the verbs of one pass.

The loop says what runs, an Execution runs it. `start` takes the rows, `backbone` and `river` run a
layer and write its KV, `read` gives a backbone layer's similarities to the host, `logits` the last
row's scores. Knows nothing of exits, policies or records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ..cache import Rows


class Execution(Protocol):
    """One run's steps over one model and cache; layers are 1-based."""

    name: str

    def start(self, rows: Rows) -> None:
        """Embed the rows' token ids: the residual stream becomes fp32 [R, d]."""
        ...

    def backbone(self, layer: int) -> None:
        """Run a backbone layer on the rows, in place, and note their similarities."""
        ...

    def river(self, layer: int) -> None:
        """Run a river layer on the rows, in place."""
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

    def settle(self) -> None:
        """Wait until everything asked for is done (for clocks)."""
        ...
