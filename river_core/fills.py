"""What becomes of the layers that a token skips: one action letter per skipped layer.

The loop turns a letter into work (ACTIONS) and into the KV source that later tokens find
(KV_SOURCE); a fill only says which letter. Knows nothing of exits or of the loop.
"""

from __future__ import annotations

from typing import Protocol

KV_SOURCE = {"b": "b", "r": "r"}


class Fill(Protocol):
    """Says what runs instead of a skipped layer."""

    def action(self, layer: int) -> str:
        """A `path` letter for 1-based `layer` (records.md)."""
        ...


class River:
    """The layer's 4-bit twin, which writes the same KV slot (paper 4.1)."""

    def action(self, layer: int) -> str:
        """Always "r"."""
        return "r"


FILLS: dict[str, Fill] = {"river": River()}
