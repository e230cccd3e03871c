"""Who wrote the cache, packed for the map of it: rows by position, and what later passes changed.

A row of L letters travels as runs ("b14r16"). Rows of decoded tokens travel with their tokens; the
prompt's and the updates are packed here. The page puts them together for the moment it shows.
"""

from __future__ import annotations

from itertools import groupby

from river_core.records import CacheUpdate, PromptRecord


def run_lengths(letters: str) -> str:
    """'bbrr' -> 'b2r2'; the page has the inverse."""
    return "".join(f"{letter}{len(list(same))}" for letter, same in groupby(letters))


def prompt_rows(prompt: PromptRecord | None) -> list[list[object]]:
    """[[number of neighbouring positions with this row, the row in runs], ...], from position 0."""
    if prompt is None:
        return []
    return [[len(list(rows)), run_lengths(row)] for row, rows in groupby(prompt.kv_source)]


def pack_updates(updates: list[CacheUpdate], start: int = 0) -> list[list[object]]:
    """[[pass, position, source, first layer, last layer, ...], ...] from update `start` on."""
    return [
        [update.pass_index, update.position, update.source, *_ranges(update.layers)]
        for update in updates[start:]
    ]


def _ranges(layers: tuple[int, ...]) -> list[int]:
    """(3, 4, 7) -> [3, 4, 7, 7]: first and last of each run of neighbouring layers."""
    edges: list[int] = []
    for layer in sorted(layers):
        if edges and edges[-1] == layer - 1:
            edges[-1] = layer
        else:
            edges += [layer, layer]
    return edges
