"""`compare`, `sweep` and `calibrate`: saved runs side by side; thresholds against agreement."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .cli_run import add_model_arguments, load_model
from .cli_terminal import ProgressLine
from .errors import SettingsError


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Arguments of `compare`."""
    parser.add_argument("reference", help="a saved run (JSON Lines)")
    parser.add_argument("other", help="another run of the same prompt")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_compare(args: argparse.Namespace) -> int:
    """Compare two saved runs by what their records hold."""
    from .metrics import agreement, exit_histogram
    from .records import RunRecord

    reference, other = RunRecord.load(args.reference), RunRecord.load(args.other)
    found = agreement(reference, other)
    if args.json:
        exits = {"exits": [exit_histogram(reference), exit_histogram(other)]}
        print(json.dumps(asdict(found) | exits))
        return 0
    first = "none" if found.first_difference is None else str(found.first_difference)
    print(f"match {found.match:.3f} over {found.compared} tokens, first difference {first}")
    print(f"top-5 overlap {found.top5_overlap:.3f}")
    for name, run in (("reference", reference), ("other", other)):
        print(f"{name}: mean exit layer {run.summary.mean_exit_layer}, exits {exit_histogram(run)}")
    return 0


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """Arguments of `sweep`."""
    add_model_arguments(parser)
    parser.set_defaults(dtype="float32")
    parser.add_argument("--tokens", type=int, default=96, help="tokens per prompt (default 96)")
    parser.add_argument("--thresholds", default=None, help="comma-separated (default: a table's)")
    parser.add_argument("--prompts", type=int, default=8, help="how many of the bundled prompts")
    parser.add_argument(
        "--report",
        default=None,
        metavar="STEM",
        help="write STEM.jsonl and the table between the markers of STEM.md",
    )
    parser.add_argument("--json", action="store_true", help="print JSON Lines")


def run_sweep(args: argparse.Namespace) -> int:
    """Measure every threshold with both prefill rules, teacher-forced."""
    from . import sweep as study

    thresholds = _numbers(args.thresholds) or list(study.THRESHOLDS)
    if args.tokens < 2 or not 1 <= args.prompts <= len(study.bundled_prompts()):
        raise SettingsError("sweep needs --tokens of 2 or more and --prompts from 1 to 8.")
    model = load_model(args)
    prompts = study.bundled_prompts()[: args.prompts]
    progress = ProgressLine()
    try:
        rows = study.sweep(model, prompts, thresholds, args.tokens, progress)
    finally:
        progress.done()
    head = study.header(model, prompts, args.tokens)
    if args.report is not None:
        stem = Path(args.report)
        study.save_lines(stem.with_suffix(".jsonl"), head, rows)
        write_table(stem.with_suffix(".md"), list(study.table(rows)))
    for line in study.table(rows) if not args.json else [json.dumps(asdict(r)) for r in rows]:
        print(line)
    return 0


def add_calibrate(parser: argparse.ArgumentParser) -> None:
    """Arguments of `calibrate`."""
    add_model_arguments(parser)
    parser.add_argument("--tokens", type=int, default=48, help="tokens per passage (default 48)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_calibrate(args: argparse.Namespace) -> int:
    """Measure what each threshold costs on this model, and store it for --threshold auto."""
    from .calibrate import calibrate, storage
    from .settings import DecodeSettings

    model = load_model(args)
    progress = ProgressLine()
    try:
        found = calibrate(model, tokens=args.tokens, progress=progress)
    finally:
        progress.done()
    target = DecodeSettings().target_match
    path, auto = storage(model).path, found.smallest_threshold(target)
    if args.json:
        chosen = {"path": str(path), "target_match": target, "auto": 1.0 if auto is None else auto}
        print(json.dumps(asdict(found) | chosen))
        return 0
    print("\n".join(calibration_tables(found)))
    print(f"\n{found.passes} tokens compared, prefill {found.prefill!r}; stored as {path}")
    if auto is None:
        print(f"no threshold below 1 reaches a match of {target:g}: auto is 1 (never leave)")
    else:
        print(f"--threshold auto is {auto:g} (match of {target:g} or more)")
    return 0


def calibration_tables(found: Any) -> list[str]:
    """A Calibration as two Markdown tables: points, then quantiles by layer."""
    lines = ["| threshold | mean exit layer | match | KL (nats) |", "|--:|--:|--:|--:|"]
    for p in found.points:
        lines.append(f"| {p.threshold:g} | {p.mean_exit_layer:.2f} | {p.match:.3f} | {p.kl:.4f} |")
    levels = " | ".join(f"{level:g} %" for level in found.levels)
    lines += ["", f"| layer | {levels} |", "|--:" * (len(found.levels) + 1) + "|"]
    for layer, row in enumerate(found.quantiles, start=1):
        lines.append(f"| {layer} | " + " | ".join(f"{value:.4f}" for value in row) + " |")
    return lines


BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def write_table(path: Path, lines: list[str]) -> None:
    """Put the lines between the markers of a Markdown file, which is made where it is missing."""
    text = path.read_text(encoding="utf-8") if path.is_file() else f"{BEGIN}\n{END}\n"
    if BEGIN not in text or END not in text:
        raise SettingsError(f"{path} has no {BEGIN} ... {END} to put the table between.")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    body = "\n".join(lines)
    path.write_text(f"{before}{BEGIN}\n{body}\n{END}{after}", encoding="utf-8", newline="\n")


def _numbers(text: str | None) -> list[float]:
    if text is None:
        return []
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise SettingsError(f"--thresholds is {text!r}; give numbers such as 0.9,0.98.") from error
