"""Similarities as text, short enough to send for every layer and token."""

from __future__ import annotations

from collections.abc import Iterable

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def pack_trace(similarities: Iterable[float]) -> str:
    """Similarities in [-1, 1] as three base-36 digits each, in steps of 0.0001."""
    return "".join(_base36(round((min(1.0, max(-1.0, s)) + 1) * 10_000)) for s in similarities)


def unpack_trace(packed: str) -> list[float]:
    """The inverse of `pack_trace`, to 4 decimals; the page has the same few lines."""
    codes = [int(packed[i : i + 3], 36) for i in range(0, len(packed), 3)]
    return [round(code / 10_000 - 1, 4) for code in codes]


def _base36(code: int) -> str:
    return DIGITS[code // 1296] + DIGITS[code // 36 % 36] + DIGITS[code % 36]
