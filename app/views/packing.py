"""Similarities as text, short enough to send for every layer and token."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, product

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_CODES = ["".join(digits) for digits in islice(product(DIGITS, repeat=3), 20_001)]


def pack_trace(similarities: Iterable[float]) -> str:
    """Similarities in [-1, 1] as three base-36 digits each, in steps of 0.0001."""
    return "".join([_CODES[round((min(1.0, max(-1.0, s)) + 1) * 10_000)] for s in similarities])


def unpack_trace(packed: str) -> list[float]:
    """The inverse of `pack_trace`, to 4 decimals; the page has the same few lines."""
    codes = [int(packed[i : i + 3], 36) for i in range(0, len(packed), 3)]
    return [round(code / 10_000 - 1, 4) for code in codes]
