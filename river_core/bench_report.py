"""What a benchmark found, as rows, JSON Lines and text. Measures nothing; no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .errors import SettingsError


@dataclass(frozen=True)
class Row:
    """One contender: medians over the rounds; ratios are medians of the ratios of each round.

    Rates in tokens per second, bytes of weights, 1e9 bytes per second. `byte_bound` is the
    backbone's bytes over this row's: what `to_backbone` could reach at the same GB/s.
    """

    name: str
    tokens_per_second: float
    slowest: float
    fastest: float
    ms_per_token: float
    mean_exit_layer: float
    bytes_per_token: float
    gigabytes_per_second: float
    byte_bound: float
    to_backbone: float
    to_peer: float | None
    decision_microseconds: float | None
    kernels: str
    rounds: int
    share_of_read: float | None = None  # of the read bandwidth measured in the same run


@dataclass(frozen=True)
class KernelTime:
    """The micro-test's microseconds for one row through one kernel, and whether it was chosen."""

    shape: str
    kind: str
    kernel: str
    microseconds: float
    chosen: bool


@dataclass(frozen=True)
class Report:
    """One benchmark: a header of facts about machine and run, rows, and the micro-test's times."""

    header: Mapping[str, Any]
    rows: Sequence[Row]
    kernels: Sequence[KernelTime] = ()

    def lines(self) -> list[dict[str, Any]]:
        """JSON objects, the header first."""
        rows = [{"type": "row", **asdict(row)} for row in self.rows]
        kernels = [{"type": "kernel", **asdict(kernel)} for kernel in self.kernels]
        return [{"type": "bench", **self.header}, *rows, *kernels]

    def text(self) -> Iterator[str]:
        """Lines for a terminal."""
        h = self.header
        before, after = h["read_gigabytes_per_second"]
        yield f"{h['model']}: {h['origin']}"
        yield f"{h['processor']}, {h['threads']} threads, torch {h['versions']['torch']}"
        yield (
            f"prompt of {h['prompt_tokens']} tokens, {h['tokens']} decoded, {h['rounds']} rounds "
            "interleaved after a warm-up"
        )
        yield f"read bandwidth {before:.1f} GB/s before, {after:.1f} after"
        yield ""
        yield from row_table(self.rows)
        if self.kernels:
            yield ""
            yield from _kernel_table(self.kernels)


def row_table(rows: Iterable[Row]) -> Iterator[str]:
    """One line per contender below a line of column names."""
    columns = ("", "tok/s", "min..max", "ms/token", "exit layer", "MB/token", "GB/s", "of read")
    cells = [
        (
            row.name,
            f"{row.tokens_per_second:.1f}",
            f"{row.slowest:.1f}..{row.fastest:.1f}",
            f"{row.ms_per_token:.2f}",
            f"{row.mean_exit_layer:.2f}",
            f"{row.bytes_per_token / 1e6:.1f}",
            f"{row.gigabytes_per_second:.1f}",
            "-" if row.share_of_read is None else f"{row.share_of_read:.2f}",
            f"{row.byte_bound:.2f}",
            f"{row.to_backbone:.2f}",
            "-" if row.to_peer is None else f"{row.to_peer:.2f}",
            row.kernels,
        )
        for row in rows
    ]
    return table((*columns, "byte bound", "x backbone", "x peer", "kernels"), cells)


def _kernel_table(kernels: Iterable[KernelTime]) -> Iterator[str]:
    marks = {True: "chosen", False: ""}
    cells = [
        (f"{k.shape} {k.kind}", f"{k.microseconds:.1f}", k.kernel, marks[k.chosen]) for k in kernels
    ]
    return table(("micro-test, one row", "us", "kernel", ""), cells)


def table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a plain table; the first and the last column stand left, the others right."""
    lines = [columns, *cells]
    widths = [max(len(line[n]) for line in lines) for n in range(len(columns))]
    last = len(columns) - 1
    for line in lines:
        parts = [
            cell.rjust(width) if 0 < n < last else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(parts).rstrip()


def save_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON Lines. Raises SettingsError where the file cannot be written."""
    text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
    save_text(path, text)


def save_text(path: Path, text: str) -> None:
    """Write a text file. Raises SettingsError where it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise SettingsError(f"{path} cannot be written ({error}).") from error
