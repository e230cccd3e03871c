"""The report on one CUDA machine: every item in its own process, with a time limit.

An item that fails or hangs becomes a line of the report and the others still run. Knows nothing of
what the items measure (gpu_items.py) or of the command line.
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

from .bench_report import save_lines, save_text, table
from .errors import KernelUnavailable, SettingsError

ITEMS = ("machine", "dense", "int4", "decode", "memory")
Say = Callable[[str, float | None], None]
RUN = "import sys; from river_core.gpu_report import item_main; sys.exit(item_main(sys.argv[1:]))"


@dataclass(frozen=True)
class ItemResult:
    """One item: what it found, or why it found nothing."""

    name: str
    seconds: float
    data: Mapping[str, Any] | None = None
    error: str | None = None


def collect(dry_run: bool, limit: float, say: Say | None = None) -> list[ItemResult]:
    """Run every item for at most `limit` seconds each.

    Raises KernelUnavailable without a CUDA GPU, but for a dry run.
    """
    if not dry_run:
        _require_cuda()
    results = []
    for n, name in enumerate(ITEMS):
        if say is not None:
            say(f"measuring {name}", n / len(ITEMS))
        results.append(run_item(name, item_command(name, dry_run), limit))
    return results


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
    """Run `command`, whose last line of output is the item's JSON, for at most `limit` seconds."""
    root = str(Path(__file__).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return ItemResult(name, limit, error=f"stopped after its limit of {limit:g} s")
    seconds = round(time.perf_counter() - start, 1)
    if done.returncode:
        said = _last_line(done.stderr) or "no message"
        return ItemResult(name, seconds, error=f"exit status {done.returncode}: {said}")
    try:
        data = json.loads(_last_line(done.stdout))
    except ValueError:
        return ItemResult(name, seconds, error="it printed no result")
    return ItemResult(name, seconds, data=data)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def item_main(argv: Sequence[str]) -> int:
    """The body of an item's process: run one item and print its JSON.

    Raises SettingsError for an unknown item; whatever the item raises ends the process.
    """
    from . import gpu_items

    name, dry_run = argv[0], "--dry-run" in argv[1:]
    if name not in gpu_items.ITEMS:
        raise SettingsError(f"unknown item {name!r}; known are {', '.join(ITEMS)}.")
    print(json.dumps(gpu_items.ITEMS[name](gpu_items.Bench.open(dry_run)), allow_nan=False))
    return 0


def lines(results: Sequence[ItemResult]) -> list[dict[str, Any]]:
    """Results as JSON objects."""
    return [{"type": "item", **asdict(result)} for result in results]


def text(results: Sequence[ItemResult], dry_run: bool) -> Iterator[str]:
    """Results as lines to read."""
    if dry_run:
        yield "Dry run on the CPU at a tiny shape: it shows that the code runs, not how fast."
    yield "Random weights: similarities mean nothing, so exits are forced by a schedule."
    for result in results:
        yield ""
        yield f"== {result.name} ({result.seconds:g} s)"
        if result.data is None:
            yield f"FAILED: {result.error}"
        else:
            yield from _shown(result.data)


def _shown(data: Mapping[str, Any]) -> Iterator[str]:
    """Plain values as `name  value`, a list of objects as a table."""
    for name, value in data.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            columns = list(value[0])
            cells = [[_cell(row[column]) for column in columns] for row in value]
            yield from table([*columns, ""], [[*row, ""] for row in cells])
        elif isinstance(value, list):
            yield from (f"{name}: {item}" for item in value)
        elif isinstance(value, dict):
            yield from (f"{inner:24} {_cell(found)}" for inner, found in value.items())
        else:
            yield f"{name:24} {_cell(value)}"


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def save(path: Path, results: Sequence[ItemResult], shown: str) -> None:
    """Write JSON Lines to `path` and the readable text beside it, as .txt.

    Raises SettingsError where a file cannot be written.
    """
    if path.suffix == ".txt":
        raise SettingsError(f"{path} is for JSON Lines, the text goes beside it; name it .jsonl.")
    save_lines(path, lines(results))
    save_text(path.with_suffix(".txt"), shown + "\n")
