"""The exit-layer colour scale and the KV-source fills, with the contrast they promise.

Six bins by fraction of depth, cividis, light = left early. The same fills serve both themes; the
ink on each is black or white, whichever reads better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

FILLS = ("#f8df3c", "#c4b468", "#958f77", "#6b6d72", "#3f4c6c", "#002c64")
BLACK, WHITE = "#000000", "#ffffff"
INKS = (BLACK, BLACK, BLACK, WHITE, WHITE, WHITE)
FRAME = {"light": "#71717a", "dark": "#bbbbc2"}
KV_FILLS = {"b": "#0072B2", "r": "#D55E00"}  # the other sources are told by texture alone


@dataclass(frozen=True)
class Bin:
    """One legend entry: layers `first`..`last`, both included, drawn in fill number `fill`."""

    fill: int
    first: int
    last: int
    never: bool = False


def bin_of(exit_layer: int, num_layers: int) -> int:
    """Fill number 0..5 of an exit layer 0..L: sixths of the depth, the upper edge included."""
    if not 0 <= exit_layer <= num_layers:
        raise ValueError(f"exit layer {exit_layer} is not within 0..{num_layers}")
    return max(0, -(-exit_layer * len(FILLS) // num_layers) - 1)


def never_left(exit_layer: int, num_layers: int) -> bool:
    """True when the token ran every backbone layer."""
    return exit_layer == num_layers


@lru_cache(maxsize=8)
def legend(num_layers: int) -> tuple[Bin, ...]:
    """The bins in layers of a model with `num_layers`; the last entry is "never left"."""
    edges = [num_layers * k // len(FILLS) for k in range(len(FILLS) + 1)]
    bins = []
    for fill, (low, high) in enumerate(pairwise(edges)):
        last = min(high, num_layers - 1)
        if low < last:
            bins.append(Bin(fill, low + 1, last))
    return (*bins, Bin(len(FILLS) - 1, num_layers, num_layers, never=True))


@lru_cache(maxsize=1024)
def legend_index(exit_layer: int, num_layers: int) -> int:
    """Position in `legend(num_layers)` of the entry that counts this exit layer."""
    entries = legend(num_layers)
    if never_left(exit_layer, num_layers):
        return len(entries) - 1
    return next((i for i, e in enumerate(entries) if max(exit_layer, 1) <= e.last), 0)


def counts(exit_layers: Sequence[int], num_layers: int) -> list[int]:
    """How many of `exit_layers` fall into each entry of `legend(num_layers)`."""
    result = [0] * len(legend(num_layers))
    for exit_layer in exit_layers:
        result[legend_index(exit_layer, num_layers)] += 1
    return result


def luminance(colour: str) -> float:
    """WCAG 2 relative luminance, 0..1, of '#rrggbb'."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio, 1..21, of two '#rrggbb' colours."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def custom_properties() -> str:
    """The scale as CSS custom properties, so that the style sheets name no fill of their own."""
    lines = [f"--fill-{i}:{fill};--ink-{i}:{ink}" for i, (fill, ink) in enumerate(_pairs())]
    lines += [f"--kv-{letter}:{fill}" for letter, fill in KV_FILLS.items()]
    light = ";".join([*lines, f"--frame:{FRAME['light']}"])
    return f":root{{{light}}}\n.dark{{--frame:{FRAME['dark']}}}\n"


def _pairs() -> Sequence[tuple[str, str]]:
    return tuple(zip(FILLS, INKS, strict=True))
