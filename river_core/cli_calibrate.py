"""`calibrate`: what each threshold costs on this model, kept for `--threshold auto`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from .cli_run import add_model_arguments, load_model
from .cli_terminal import ProgressLine


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
