"""How the command line writes: colours by exit layer, progress, nothing hostile.

Colours are app.md's cividis bins; without a terminal, or with NO_COLOR, text stays plain.
"""

from __future__ import annotations

import os
import sys
import time
import unicodedata
from collections.abc import Callable
from typing import TextIO

BINS = ("f8df3c", "c4b468", "958f77", "6b6d72", "3f4c6c", "002c64")
DARK_TEXT = 3  # the first three fills take black text


def colours(out: TextIO) -> bool:
    """Whether `out` is a terminal that wants colours."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def bin_of(exit_layer: int, layers: int) -> int:
    """Colour bin 0..5 of an exit layer, by fraction of depth."""
    return min(5, max(0, (exit_layer * 6 - 1) // layers)) if exit_layer else 0


def painted(text: str, exit_layer: int, layers: int) -> str:
    """`text` on its exit layer's colour, escape codes reset before line ends."""
    fill = BINS[bin_of(exit_layer, layers)]
    red, green, blue = (int(fill[i : i + 2], 16) for i in (0, 2, 4))
    front = "30" if bin_of(exit_layer, layers) < DARK_TEXT else "97"
    start = f"\x1b[{front};48;2;{red};{green};{blue}m"
    return "\n".join(f"{start}{part}\x1b[0m" if part else "" for part in text.split("\n"))


def harmless(text: str) -> str:
    """Text without control characters that a terminal would obey; line ends and tabs stay."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf") else "\ufffd" for c in text
    )


class ProgressLine:
    """Progress on standard error: one line that is rewritten on a terminal.

    Elsewhere a line of its own each, the first once the work has taken `PAUSE` seconds and then
    at most one every `PAUSE`: quick work stays quiet, long work never does. `clock` gives seconds.
    """

    PAUSE = 3.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._shown = 0
        self._clock = clock
        self._last = clock()

    def __call__(self, text: str, fraction: float | None) -> None:
        """Say what is done, and how far all of it is, 0..1 or None."""
        line = text if fraction is None else f"{text} ({fraction:.0%})"
        if sys.stderr.isatty():
            sys.stderr.write("\r" + line.ljust(self._shown))
            self._shown = len(line)
        elif self._clock() - self._last >= self.PAUSE:
            self._last = self._clock()
            sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def done(self) -> None:
        """Clear the line."""
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0
