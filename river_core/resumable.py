"""A JSON Lines file that a long measurement appends to, and can go on with after a stop.

Each part of the file begins with a header line; every line names its part. Knows nothing of what is
measured; no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import RecordError, SettingsError

_START = '{"part": '


class Lines:
    """The lines of one file, those that it held and those appended since, in its order.

    A last line that an interruption cut off is dropped. Raises RecordError where the file is not
    one that a study wrote, SettingsError where it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        text = self._text()
        if not text.startswith(_START[: len(text)]):
            raise RecordError(f"{path} is not a study's file; give another name.")
        whole = text[: text.rfind("\n") + 1]
        self._cut = len(whole.encode()) if whole != text else None
        try:
            self.lines: list[dict[str, Any]] = [
                json.loads(line) for line in whole.split("\n") if line
            ]
        except ValueError as error:
            raise RecordError(f"{path} is damaged ({error}); give another name.") from error

    def _text(self) -> str:
        try:
            return self.path.read_bytes().decode("utf-8") if self.path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{self.path} cannot be read ({error}).") from error

    def begin(self, part: str, header: Mapping[str, Any]) -> None:
        """Begin a part, or go on with it.

        Raises SettingsError where the file holds that part under another header.
        """
        new = {"part": part, "type": "header", **header}
        olds = [line for line in self.lines if (line["part"], line["type"]) == (part, "header")]
        if not olds:
            self.append(new)
            return
        differ = list(_differences(olds[0], json.loads(json.dumps(new))))
        if differ:
            raise SettingsError(
                f"{self.path} was begun with {', '.join(differ)}; go on with that, or give "
                "another name."
            )

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one line, at once."""
        text = json.dumps(line, ensure_ascii=False, allow_nan=False)
        try:
            if self._cut is not None:
                os.truncate(self.path, self._cut)
                self._cut = None
            with self.path.open("a", encoding="utf-8", newline="\n") as out:
                out.write(text + "\n")
        except OSError as error:
            raise SettingsError(f"{self.path} cannot be written ({error}).") from error
        self.lines.append(json.loads(text))

    def of(self, part: str, *types: str) -> list[dict[str, Any]]:
        """The lines of a part that have one of these types."""
        return [line for line in self.lines if line["part"] == part and line["type"] in types]


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*old, *new]):
        before, now = old.get(name), new.get(name)
        if before == now:
            continue
        short = not isinstance(before, list | dict) and not isinstance(now, list | dict)
        yield f"{name} {before!r} instead of {now!r}" if short else f"other {name}"
