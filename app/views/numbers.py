"""Numbers as people read them. None means "not measured" and becomes a dash everywhere."""

from __future__ import annotations

DASH = "—"
MINUS = "−"


def decimal(value: float | None, digits: int = 1) -> str:
    """'17.9', '−3.0', or a dash."""
    return DASH if value is None else f"{value:.{digits}f}".replace("-", MINUS)


def percent(fraction: float | None) -> str:
    """A fraction as '40 %', '−5 %', or a dash."""
    if fraction is None:
        return DASH
    return f"{round(100 * fraction)} %".replace("-", MINUS)


def seconds(value: float | None) -> str:
    """'83 ms' below a second, '1.24 s' from there on."""
    if value is None:
        return DASH
    return f"{1000 * value:.0f} ms" if value < 0.9995 else f"{value:.2f} s"


def microseconds(value: float | None) -> str:
    """'41 µs', or a dash."""
    return DASH if value is None else f"{value:.0f} µs"


def mebibytes(count: int | None) -> str:
    """Bytes as '0.4 MiB', '135 MiB' or '1.50 GiB'."""
    if count is None:
        return DASH
    if count >= 2**30:
        return f"{count / 2**30:.2f} GiB"
    return f"{count / 2**20:.1f} MiB" if count < 10 * 2**20 else f"{count / 2**20:.0f} MiB"


def spans(letters: str) -> list[tuple[str, int, int]]:
    """'bbrr' -> [('b', 1, 2), ('r', 3, 4)]: runs of equal letters in 1-based layers."""
    runs: list[tuple[str, int, int]] = []
    for layer, letter in enumerate(letters, start=1):
        if runs and runs[-1][0] == letter:
            runs[-1] = (letter, runs[-1][1], layer)
        else:
            runs.append((letter, layer, layer))
    return runs
