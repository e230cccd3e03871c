"""The report on one CUDA machine: every item in its own process, with a time limit.

An item that fails or hangs keeps what it had found and the others still run; results are shown
and saved as they come. Knows nothing of what the items measure (gpu_items.py) or of the command
line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .bench_report import save_text, table
from .errors import KernelUnavailable, SettingsError

# seconds that each item may take; together they take less than TOTAL, or the last ones are cut
LIMITS = {
    "machine": 30.0,
    "roof": 30.0,
    "latency": 30.0,
    "smoke": 60.0,
    "kernels": 60.0,
    "steps": 60.0,
    "decode": 120.0,
    "memory": 60.0,
    "profile": 60.0,
    "hugging face": 90.0,
}
ITEMS = tuple(LIMITS)
TOTAL = 410.0
LEAST = 5.0  # an item is not begun with less than this left
Say = Callable[[str, float | None], None]
RUN = "import sys; from river_core.gpu_report import item_main; sys.exit(item_main(sys.argv[1:]))"


@dataclass(frozen=True)
class ItemResult:
    """One item: what it found, or why it found nothing; both where it was cut short."""

    name: str
    seconds: float
    data: Mapping[str, Any] | None = None
    error: str | None = None


def collect(
    dry_run: bool, limit: float | None = None, say: Say | None = None
) -> Iterator[ItemResult]:
    """Run every item, each for its own limit or for `limit` seconds, all within TOTAL.

    Gives each result as it is there. Raises KernelUnavailable without a CUDA GPU, but for a dry
    run.
    """
    if not dry_run:
        _require_cuda()
    end = time.perf_counter() + TOTAL
    for n, (name, own) in enumerate(LIMITS.items()):
        if say is not None:
            say(f"measuring {name}", n / len(LIMITS))
        left = end - time.perf_counter()
        if left < LEAST:
            yield ItemResult(name, 0.0, error=f"left out: {TOTAL:g} s are over")
            continue
        yield run_item(name, item_command(name, dry_run), min(limit or own, left))


def _require_cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        raise KernelUnavailable(
            "--gpu-report measures a CUDA GPU and torch sees none here; add --dry-run to run the "
            "same code on the CPU."
        )


def item_command(name: str, dry_run: bool) -> list[str]:
    """The command line of one item's process."""
    return [sys.executable, "-c", RUN, name, *(["--dry-run"] if dry_run else [])]


def run_item(name: str, command: Sequence[str], limit: float) -> ItemResult:
    """Run `command`, whose lines of output are JSON objects, for at most `limit` seconds.

    The objects together are the item's data, those of an item that fails too.
    """
    root = str(Path(__file__).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env=environment, check=False
        )
    except subprocess.TimeoutExpired as cut:
        partial = cut.stdout or b""  # bytes on POSIX, whatever was asked for
        found = _found(partial if isinstance(partial, str) else partial.decode(errors="replace"))
        return ItemResult(name, limit, found, f"stopped after its limit of {limit:.0f} s")
    seconds, data = round(time.perf_counter() - start, 1), _found(done.stdout)
    problem = None
    if done.returncode:
        said = _last_line(done.stderr) or "no message"
        problem = f"exit status {done.returncode}: {said}"
    elif data is None:
        problem = "it printed no result"
    return ItemResult(name, seconds, data, problem)


def _found(output: str) -> dict[str, Any] | None:
    """All whole JSON objects of the output in one; None where there is none."""
    found: dict[str, Any] | None = None
    for line in output.splitlines():
        try:
            data = json.loads(line)
        except ValueError:  # what a library printed, or a line that was cut off
            continue
        if isinstance(data, dict):
            found = {**(found or {}), **data}
    return found


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def item_main(argv: Sequence[str]) -> int:
    """The body of an item's process: run one item and print its JSON, a line as it finds each.

    Raises SettingsError for an unknown item; whatever the item raises ends the process.
    """
    from .gpu_bench import Bench, find_item
    from .gpu_items import ITEMS

    item = find_item(ITEMS, argv[0])
    for facts in item(Bench.open("--dry-run" in argv[1:])):
        print(json.dumps(facts, allow_nan=False), flush=True)
    return 0


def heading(dry_run: bool) -> list[str]:
    """What a reader has to know before any item."""
    lines = ["Random weights: similarities mean nothing, so exits are forced by a schedule."]
    if dry_run:
        lines.insert(
            0, "Dry run on the CPU at a tiny shape: it shows that the code runs, not how fast."
        )
    return lines


def line(result: ItemResult) -> dict[str, Any]:
    """A result as a JSON object."""
    return {"type": "item", **asdict(result)}


def text(result: ItemResult) -> Iterator[str]:
    """A result as lines to read."""
    yield ""
    yield f"== {result.name} ({result.seconds:g} s)"
    yield from _shown(result.data or {})
    if result.error is not None:
        yield f"FAILED: {result.error}"


def _shown(data: Mapping[str, Any]) -> Iterator[str]:
    """Plain values as `name  value`, a list of objects as a table under its name."""
    for name, value in data.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            columns = list(dict.fromkeys(key for row in value for key in row))
            cells = [[_cell(row.get(column)) for column in columns] for row in value]
            yield f"{name}:"
            yield from table([*columns, ""], [[*row, ""] for row in cells])
        elif isinstance(value, list):
            yield from (f"{name}: {item}" for item in value)
        elif isinstance(value, dict):
            yield f"{name}: " + ", ".join(f"{inner} {_cell(v)}" for inner, v in value.items())
        else:
            yield f"{name:32} {_cell(value)}"


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


class ReportFiles:
    """JSON Lines in `path` and the same as text beside it (.txt), written as results come.

    Raises SettingsError where a file cannot be written.
    """

    def __init__(self, path: Path, dry_run: bool) -> None:
        if path.suffix == ".txt":
            raise SettingsError(
                f"{path} is for JSON Lines, the text goes beside it; name it .jsonl."
            )
        self._path, self._text = path, path.with_suffix(".txt")
        save_text(path, "")
        save_text(self._text, "\n".join(heading(dry_run)) + "\n")

    def add(self, result: ItemResult) -> None:
        """Append one result to both."""
        self._append(self._path, json.dumps(line(result), ensure_ascii=False))
        self._append(self._text, "\n".join(text(result)))

    def _append(self, path: Path, lines: str) -> None:
        try:
            with path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(lines + "\n")
        except OSError as error:
            raise SettingsError(f"{path} cannot be written ({error}).") from error
