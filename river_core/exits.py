"""When a token leaves: one object per rule, made for one run.

A rule sees what one pass shows after one layer and says whether its rows leave together. It knows
nothing of fills, caches or the loop; where leaving is possible at all (entry layer, last layer) the
loop decides.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import SettingsError


@dataclass(frozen=True)
class Moment:
    """Where a decision is asked for: pass index (0 is the prompt pass), layer run, threshold."""

    index: int
    layer: int
    threshold: float


class ExitRule(ABC):
    """Decides after backbone layers. `reads` says what it is shown: nothing by default.

    "similarity": the similarity of each row of the pass. "lens": the probabilities of the two most
    likely tokens by the final norm and LM head at this layer, untrained; a single row only.
    """

    reads = ""

    def first(self, index: int) -> int:
        """The layer before which the rows of pass `index` stay: the rule is not asked earlier."""
        return 1

    @abstractmethod
    def leaves(self, at: Moment, values: Sequence[float]) -> bool:
        """True when the rows leave after layer `at.layer` (0: before layer 1)."""

    def went(self, index: int, exit_layer: int) -> None:  # noqa: B027 (few rules remember)
        """Told after each pass where its rows left, unless residency forced them to."""


class Never(ExitRule):
    """The whole backbone: no token leaves."""

    def first(self, index: int) -> int:
        """Beyond any layer."""
        return sys.maxsize

    def leaves(self, at: Moment, values: Sequence[float]) -> bool:
        """Always False."""
        return False


class Similarity(ExitRule):
    """Leave when every row's similarity is strictly above the threshold (paper Eq. 1)."""

    reads = "similarity"

    def leaves(self, at: Moment, values: Sequence[float]) -> bool:
        """Minimum over the rows > threshold; never before layer 1."""
        return at.layer >= 1 and min(values) > at.threshold


class Confidence(ExitRule):
    """Leave when the most likely token is likelier than the threshold (CALM, softmax_max)."""

    reads = "lens"

    def leaves(self, at: Moment, values: Sequence[float]) -> bool:
        """p1 > threshold."""
        return values[0] > at.threshold


class Gap(ExitRule):
    """Leave when the two most likely tokens are further apart than the threshold (AdaInfer)."""

    reads = "lens"

    def leaves(self, at: Moment, values: Sequence[float]) -> bool:
        """p1 - p2 > threshold."""
        return values[0] - values[1] > at.threshold


@dataclass(frozen=True)
class Fixed(ExitRule):
    """Every pass leaves after the same layer."""

    exit_layer: int

    def first(self, index: int) -> int:
        """`exit_layer` itself."""
        return self.exit_layer

    def leaves(self, at: Moment, values: Sequence[float]) -> bool:
        """True from `exit_layer` on."""
        return at.layer >= self.exit_layer


@dataclass(frozen=True)
class Schedule(ExitRule):
    """A given exit layer per token: number i for the pass that chooses token i, the last for more.

    Number 0 is the prompt pass under prefill "exit".
    """

    exit_layers: tuple[int, ...]

    def first(self, index: int) -> int:
        """This pass's exit layer."""
        return self.exit_layers[min(index, len(self.exit_layers) - 1)]

    def leaves(self, at: Moment, values: Sequence[float]) -> bool:
        """True from this pass's exit layer on."""
        return at.layer >= self.first(at.index)


class NeverDeeper(ExitRule):
    """Another rule, but no token goes deeper than the one before it (River-LLM 2: Mono)."""

    def __init__(self, inner: ExitRule) -> None:
        self._inner, self._cap = inner, sys.maxsize
        self.reads = inner.reads

    def first(self, index: int) -> int:
        """The inner rule's, or the cap."""
        return min(self._inner.first(index), self._cap)

    def leaves(self, at: Moment, values: Sequence[float]) -> bool:
        """True at the cap, or when the inner rule says so."""
        inner = at.layer >= self._inner.first(at.index) and self._inner.leaves(at, values)
        return inner or at.layer >= self._cap

    def went(self, index: int, exit_layer: int) -> None:
        """Lower the cap."""
        self._cap = min(self._cap, exit_layer)


EXITS: dict[str, type[ExitRule]] = {
    "never": Never,
    "similarity": Similarity,
    "confidence": Confidence,
    "gap": Gap,
    "fixed": Fixed,
    "schedule": Schedule,
    "oracle": Schedule,
}
OPTION_OF = {"fixed": "exit_layer", "schedule": "exit_layers", "oracle": "exit_layers"}


def build_exit(
    name: str, options: Mapping[str, Any], allowed: Sequence[int], why: str = ""
) -> ExitRule:
    """The rule `name` with its options; unknown or missing options raise SettingsError.

    `why` says, behind the `allowed` layers in such an error, why no others are possible.
    """
    wanted = OPTION_OF.get(name)
    for key in options:
        if key != wanted:
            raise SettingsError(
                f"option {key!r} is not one of exit rule {name!r}"
                + (f", which takes {wanted!r}." if wanted else ", which takes none.")
            )
    if wanted is None:
        return EXITS[name]()
    if wanted not in options:
        hint = " (those of river_core.earliest_safe_exits)" if name == "oracle" else ""
        raise SettingsError(f"exit rule {name!r} needs options={{{wanted!r}: ...}}{hint}.")
    layers = exit_layers(options, allowed, why)
    return Fixed(layers[0]) if name == "fixed" else Schedule(tuple(layers))


def exit_layers(options: Mapping[str, Any], allowed: Sequence[int], why: str = "") -> list[int]:
    """The exit layers that options name, checked against the `allowed` ones.

    Raises SettingsError for anything that is not such a layer.
    """
    values = options.get("exit_layers", [options.get("exit_layer")])
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise SettingsError(f"exit_layers is {values!r}; give one exit layer per token.")
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
            raise SettingsError(
                f"exit layer {value!r} is not possible here; use {_spans(allowed)}{why}."
            )
    return list(values)


def _spans(allowed: Sequence[int]) -> str:
    if list(allowed) == list(range(allowed[0], allowed[-1] + 1)):
        return f"{allowed[0]} to {allowed[-1]}"
    return f"{allowed[0]}, or {allowed[1]} to {allowed[-1]}"
