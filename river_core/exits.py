"""When a token leaves: one object per rule, one verb.

A rule sees the similarities of the rows of one pass after one layer and says whether they leave
together. It knows nothing of fills, caches or the loop; where leaving is possible at all (entry
layer, last layer) the loop decides.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import SettingsError


@dataclass(frozen=True)
class Moment:
    """Where a decision is asked for: pass index (0 is the prompt pass), layer run, threshold."""

    index: int
    layer: int
    threshold: float


class ExitRule(Protocol):
    """Decides after backbone layers; `reads_similarity` False spares reading it then."""

    reads_similarity: bool

    def first(self, index: int) -> int:
        """The layer before which the rows of pass `index` stay: the rule is not asked earlier."""
        ...

    def leaves(self, at: Moment, similarity: Sequence[float]) -> bool:
        """True when the rows, one similarity each, leave after layer `at.layer` (0: before 1)."""
        ...


class Never:
    """The whole backbone: no token leaves."""

    reads_similarity = False

    def first(self, index: int) -> int:
        """Beyond any layer."""
        return sys.maxsize

    def leaves(self, at: Moment, similarity: Sequence[float]) -> bool:
        """Always False."""
        return False


class Similarity:
    """Leave when every row's similarity is strictly above the threshold (paper Eq. 1)."""

    reads_similarity = True

    def first(self, index: int) -> int:
        """Layer 1: every layer has a similarity."""
        return 1

    def leaves(self, at: Moment, similarity: Sequence[float]) -> bool:
        """Minimum over the rows > threshold; never before layer 1."""
        return at.layer >= 1 and min(similarity) > at.threshold


@dataclass(frozen=True)
class Fixed:
    """Every pass leaves after the same layer."""

    exit_layer: int
    reads_similarity = False

    def first(self, index: int) -> int:
        """`exit_layer` itself."""
        return self.exit_layer

    def leaves(self, at: Moment, similarity: Sequence[float]) -> bool:
        """True from `exit_layer` on."""
        return at.layer >= self.exit_layer


@dataclass(frozen=True)
class Schedule:
    """A given exit layer per token: number i for the pass that chooses token i, the last for more.

    Number 0 is the prompt pass under prefill "exit".
    """

    exit_layers: tuple[int, ...]
    reads_similarity = False

    def first(self, index: int) -> int:
        """This pass's exit layer."""
        return self.exit_layers[min(index, len(self.exit_layers) - 1)]

    def leaves(self, at: Moment, similarity: Sequence[float]) -> bool:
        """True from this pass's exit layer on."""
        return at.layer >= self.first(at.index)


def exit_layers(options: Mapping[str, Any], allowed: Sequence[int]) -> list[int]:
    """The exit layers that options name, checked against the `allowed` ones.

    Raises SettingsError for anything that is not such a layer.
    """
    values = options.get("exit_layers", [options.get("exit_layer")])
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise SettingsError(f"exit_layers is {values!r}; give one exit layer per token.")
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
            raise SettingsError(
                f"exit layer {value!r} is not possible here; use {_spans(allowed)}."
            )
    return list(values)


def build_exit(name: str, options: Mapping[str, Any], allowed: Sequence[int]) -> ExitRule:
    """The rule `name` with its options; unknown or missing options raise SettingsError."""
    wanted = {"fixed": "exit_layer", "schedule": "exit_layers"}.get(name)
    for key in options:
        if key != wanted:
            raise SettingsError(
                f"option {key!r} is not one of exit rule {name!r}"
                + (f", which takes {wanted!r}." if wanted else ", which takes none.")
            )
    if wanted is None:
        return Never() if name == "never" else Similarity()
    if wanted not in options:
        raise SettingsError(f"exit rule {name!r} needs options={{{wanted!r}: ...}}.")
    layers = exit_layers(options, allowed)
    return Fixed(layers[0]) if name == "fixed" else Schedule(tuple(layers))


def _spans(allowed: Sequence[int]) -> str:
    if list(allowed) == list(range(allowed[0], allowed[-1] + 1)):
        return f"{allowed[0]} to {allowed[-1]}"
    return f"{allowed[0]}, or {allowed[1]} to {allowed[-1]}"
