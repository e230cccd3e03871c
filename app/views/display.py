"""How one token's text is written so that nothing in it is invisible, and nothing is invented.

A single leading space becomes a gap before the cell ("tight text"), a single space between two
other characters stays one; every other space is a middle dot; line ends, tabs and other controls
are shown as symbols; bytes that are not whole characters as hex. The result is plain text for
`textContent`.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from .wording import say

SPACE, NEWLINE, TAB, RETURN = "·", "↵", "⇥", "␍"
JOINERS = "\u200c\u200d"  # legitimate inside emoji and several scripts
_SYMBOLS = {" ": SPACE, "\n": NEWLINE, "\t": TAB, "\r": RETURN, "\u00a0": "⍽"}


@dataclass(frozen=True)
class Shown:
    """What a cell holds: its text, its kind, and whether a leading space stands before it.

    Kinds: "text", "bytes" (part of a character, in hex), "empty" (a token without text, shown by
    its id).
    """

    text: str
    kind: str
    gap: bool = False


@lru_cache(maxsize=1 << 14)  # on the way of every token and its alternatives
def show(text: str, raw: str = "", token_id: int | None = None) -> Shown:
    """The display form of a token's `text`; `raw` is hex of bytes that are no whole character."""
    if not text and raw:
        return Shown(spaced_hex(raw), "bytes")
    if not text:
        return Shown("∅" if token_id is None else f"#{token_id}", "empty")
    gap = text[0] == " " and len(text) > 1 and not text[1].isspace()
    body = text[1:] if gap else text
    return Shown(visible(body), "text", gap)


def spaced_hex(raw: str) -> str:
    """'f09f' -> 'F0 9F'."""
    return " ".join(raw[i : i + 2].upper() for i in range(0, len(raw), 2))


def visible(text: str) -> str:
    """`text` with every invisible or direction-changing character replaced by a symbol."""
    shown = [_character(c, text, i) for i, c in enumerate(text)]
    result = "".join(shown)
    return "◌" + result if unicodedata.category(text[0]).startswith("M") else result


def quoted(text: str, raw: str = "", token_id: int | None = None) -> str:
    """The token in quotation marks for sentences: leading space kept, controls as symbols."""
    if not text:
        shown = show(text, raw, token_id)
        return f"<{shown.text}>" if shown.kind == "bytes" else shown.text
    inner = "".join(c if c == " " else _character(c, text, i) for i, c in enumerate(text))
    return say("list.quoted", text=inner)


def _character(c: str, text: str, index: int) -> str:
    if c == " " and _between(text, index):
        return c
    if c in _SYMBOLS:
        return _SYMBOLS[c]
    code = ord(c)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    category = unicodedata.category(c)
    if c in JOINERS and 0 < index < len(text) - 1:
        return c
    if category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"):
        return f"⟨U+{code:04X}⟩"
    return c


def _between(text: str, index: int) -> bool:
    """Whether both neighbours exist and are visible characters."""
    around = text[max(0, index - 1) : index] + text[index + 1 : index + 2]
    return len(around) == 2 and not any(c.isspace() for c in around)
