"""Where two answers part, counted in tokens."""

from __future__ import annotations

from collections.abc import Sequence


def first_difference(one: Sequence[int], other: Sequence[int], *, finished: bool) -> int | None:
    """Index of the first different token id; None while the answers agree.

    `finished` says that both answers are complete: then a shorter answer differs where it ends.
    """
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    if finished and len(one) != len(other):
        return min(len(one), len(other))
    return None


def agreeing(one: Sequence[int], other: Sequence[int]) -> tuple[int, int]:
    """(tokens before the first difference, tokens compared): the shorter answer is the measure."""
    compared = min(len(one), len(other))
    difference = first_difference(one, other, finished=False)
    return (compared if difference is None else difference), compared
