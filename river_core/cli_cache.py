"""`study`: what early exit does to the KV cache, and how early each token could have left."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .cli_run import add_model_arguments, load_model
from .cli_study import numbers, whole_numbers, write_table
from .cli_terminal import ProgressLine
from .errors import SettingsError


def add_study(parser: argparse.ArgumentParser) -> None:
    """Arguments of `study`."""
    add_model_arguments(parser)
    parser.set_defaults(dtype="float32")
    parser.add_argument("--prompts", type=int, default=4, help="bundled prompts (default 4 of 8)")
    parser.add_argument(
        "--prompt", action="append", default=None, help="a prompt instead; may be repeated"
    )
    parser.add_argument("--tokens", type=int, default=48, help="tokens per prompt (default 48)")
    parser.add_argument(
        "--thresholds", default=None, help="comma-separated (default: the model's own)"
    )
    parser.add_argument(
        "--exit-layers",
        default=None,
        help="fixed exits, comma-separated (default: 2 and 16 where the model has them)",
    )
    parser.add_argument(
        "--prefill",
        choices=["full", "exit"],
        default="full",
        help="whether the prompt runs all layers (default full: only decoded rows differ)",
    )
    parser.add_argument(
        "--report",
        default=None,
        metavar="STEM",
        help="write STEM.jsonl and the tables between the markers of STEM.md",
    )
    parser.add_argument("--json", action="store_true", help="print JSON Lines")


def run_study(args: argparse.Namespace) -> int:
    """Compare the river's keys and values with the backbone's, and find the earliest safe exits.

    In fp32 unless --dtype says otherwise; the paper's figures stand beside ours.
    """
    from . import cache_study
    from .sweep import bundled_prompts

    bundled = bundled_prompts()
    if args.tokens < 2 or not 1 <= args.prompts <= len(bundled):
        raise SettingsError("study needs --tokens of 2 or more and --prompts from 1 to 8.")
    thresholds = numbers(args.thresholds)
    exits = whole_numbers(args.exit_layers, "--exit-layers") or None
    stem = None if args.report is None else Path(args.report)
    if stem is not None and not stem.resolve().parent.is_dir():
        raise SettingsError(f"{stem}: that folder does not exist.")
    prompts = args.prompt or bundled[: args.prompts]
    model = load_model(args)
    chosen = cache_study.settings(model, thresholds, exits, args.prefill)
    progress = ProgressLine()
    try:
        lines = list(cache_study.study(model, prompts, args.tokens, chosen, progress))
    finally:
        progress.done()
    head = cache_study.header(model, prompts, args.tokens)
    tables = list(cache_study.report(head, lines))
    written = [json.dumps(line, ensure_ascii=False) for line in (head, *lines)]
    if stem is not None:
        text = "\n".join(written) + "\n"
        stem.with_suffix(".jsonl").write_text(text, encoding="utf-8", newline="\n")
        write_table(stem.with_suffix(".md"), tables)
    print("\n".join(written if args.json else tables))
    return 0
