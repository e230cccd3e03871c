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
    backbone's bytes over this row's: what `to_backbone` could reach at the same GB/s; None, as the
    bytes, where a token is no single pass. `parts`: milliseconds per token by part, in profile
    mode; `agreement` with the backbone, 0..1; `memory`: bytes of weights and KV cache.
    """

    name: str
    tokens_per_second: float
    slowest: float
    fastest: float
    ms_per_token: float
    mean_exit_layer: float
    bytes_per_token: float | None
    gigabytes_per_second: float | None
    byte_bound: float | None
    to_backbone: float
    to_peer: float | None
    decision_microseconds: float | None
    kernels: str
    rounds: int
    share_of_read: float | None = None  # of the read bandwidth measured in the same run
    parts: Mapping[str, float] | None = None
    agreement: float | None = None
    memory: int | None = None


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
    """One benchmark: a header of facts about machine and run, and rows."""

    header: Mapping[str, Any]
    rows: Sequence[Row]

    def lines(self) -> list[dict[str, Any]]:
        """JSON objects, the header first."""
        rows = [{"type": "row", **asdict(row)} for row in self.rows]
        return [{"type": "bench", **self.header}, *rows]

    def text(self) -> Iterator[str]:
        """Lines for a terminal."""
        h = self.header
        before, after = h["read_gigabytes_per_second"]
        yield f"{h['model']}: {h['origin']}"
        if h.get("label"):
            yield h["label"]
        versions = ", ".join(f"{name} {version}" for name, version in h["versions"].items())
        yield f"{h['processor']}, device {h['device']}, {h['threads']} threads, {versions}"
        yield (
            f"prompt of {h['prompt_tokens']} tokens, {h['tokens']} decoded, {h['rounds']} rounds "
            "interleaved after a warm-up"
        )
        yield f"read bandwidth {before:.1f} GB/s before, {after:.1f} after"
        yield f"memory at its peak, everything together: {shown(h['peak_bytes'], '.0f', 2**20)} MiB"
        yield from h.get("left_out", ())
        yield ""
        yield from row_table(self.rows)
        parts = list(part_table(self.rows))
        if parts:
            yield ""
            yield from parts


def row_table(rows: Iterable[Row]) -> Iterator[str]:
    """One line per contender below a line of column names."""
    columns = ("", "tok/s", "min..max", "ms/token", "exit layer", "MB/token", "GB/s", "of read")
    more = ("byte bound", "x backbone", "x peer", "agreement", "MiB", "kernels")
    cells = [
        (
            row.name,
            f"{row.tokens_per_second:.1f}",
            f"{row.slowest:.1f}..{row.fastest:.1f}",
            f"{row.ms_per_token:.2f}",
            f"{row.mean_exit_layer:.2f}",
            shown(row.bytes_per_token, ".1f", 1e6),
            shown(row.gigabytes_per_second, ".1f"),
            shown(row.share_of_read, ".2f"),
            shown(row.byte_bound, ".2f"),
            shown(row.to_backbone, ".2f"),
            shown(row.to_peer, ".2f"),
            shown(row.agreement, ".3f"),
            shown(row.memory, ".0f", 2**20),
            row.kernels,
        )
        for row in rows
    ]
    return table((*columns, *more), cells)


def part_table(rows: Iterable[Row]) -> Iterator[str]:
    """Milliseconds per token by part, a line per row that has them; nothing where none has."""
    timed = [row for row in rows if row.parts is not None]
    if not timed:
        return
    parts = [*(timed[0].parts or {})]
    cells = [[row.name, *(f"{(row.parts or {})[p]:.2f}" for p in parts), ""] for row in timed]
    yield from table(["ms per token by part, in profile mode", *parts, ""], cells)


def shown(value: float | None, form: str, unit: float = 1.0) -> str:
    """`value` in `unit`s, or a dash for None."""
    return "-" if value is None else format(value / unit, form)


def kernel_table(kernels: Sequence[KernelTime]) -> Iterator[str]:
    """The micro-test's times, a line each; nothing where there are none."""
    if not kernels:
        return
    marks = {True: "chosen", False: ""}
    cells = [
        (f"{k.shape} {k.kind}", f"{k.microseconds:.1f}", k.kernel, marks[k.chosen]) for k in kernels
    ]
    yield from table(("micro-test, one row", "us", "kernel", ""), cells)


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
