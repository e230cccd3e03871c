"""`strategies`: the paper's comparison of KV strategies, in two parts that are never mixed."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from .cli_run import add_model_arguments, load_model
from .cli_study import numbers, study_file, whole_numbers, write_table
from .cli_terminal import ProgressLine
from .errors import SettingsError

if TYPE_CHECKING:
    from .cells import Setting
    from .resumable import Lines
    from .strategies import Points


def add_strategies(parser: argparse.ArgumentParser) -> None:
    """Arguments of `strategies`."""
    add_model_arguments(parser)
    parser.add_argument(
        "--report",
        required=True,
        metavar="STEM",
        help="append to STEM.jsonl as it is measured, going on with what is there; then write the "
        "tables between the markers of STEM.md, STEM.html and STEM.json",
    )
    parser.add_argument("--prompts", type=int, default=8, help="how many of the bundled prompts")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per prompt (default 64)")
    parser.add_argument("--rounds", type=int, default=8, help="timed runs per row (default 8)")
    parser.add_argument(
        "--thresholds", default=None, help="relaxed,strict (default: those of the packaged model)"
    )
    parser.add_argument("--exit-layers", default=None, help="comma-separated (default 2,8,16,24)")
    parser.add_argument(
        "--part", choices=["both", "quality", "speed"], default="both", help="(default both)"
    )


def run_strategies(args: argparse.Namespace) -> int:
    """Compare the KV strategies as the paper's figures 3 and 8 do: quality in fp32, then speed.

    Quality holds the head fixed and feeds the backbone's tokens; speed takes each strategy's own
    exit head and --dtype. Policies that this version lacks are left out, and named.
    """
    from . import figures, strategies
    from . import sweep as study

    if args.tokens < 2 or args.rounds < 1 or not 1 <= args.prompts <= len(study.bundled_prompts()):
        raise SettingsError(
            "strategies needs --tokens of 2 or more, --rounds of 1 or more and --prompts from 1 "
            "to 8."
        )
    points = _points(args)
    stem, file = study_file(args.report)
    for name in strategies.missing():
        print(f"river: {name} is left out: this version has no such policy.", file=sys.stderr)
    if args.part != "speed":
        _run_part(args, file, strategies.QUALITY, strategies.quality_settings(points))
    if args.part != "quality":
        _run_part(args, file, strategies.SPEED, strategies.speed_settings(points))
    lines = list(strategies.report(file, points))
    write_table(stem.with_suffix(".md"), lines)
    title = "KV strategies: quality and speed are two measurements"
    figures.save_figure(figures.strategies_figure(*strategies.figure_rows(file), title), stem)
    print("\n".join(lines))
    return 0


def _run_part(args: argparse.Namespace, file: Lines, part: str, settings: list[Setting]) -> None:
    """Load the model that a part needs and measure what the file lacks."""
    from . import strategies
    from . import sweep as study
    from .cells import Study

    dtype = "float32" if part == strategies.QUALITY else args.dtype
    model = load_model(argparse.Namespace(**{**vars(args), "dtype": dtype}))
    progress = ProgressLine()
    prompts = study.bundled_prompts()[: args.prompts]
    measured = Study(file, part, model, prompts, args.tokens, progress)
    try:
        measured.begin()
        if part == strategies.QUALITY:
            measured.quality(settings)
        else:
            measured.speed(settings, args.rounds)
    finally:
        progress.done()


def _points(args: argparse.Namespace) -> Points:
    """The exit layers and thresholds that the arguments give."""
    from .settings import check_threshold
    from .strategies import Points

    points = Points()
    given = numbers(args.thresholds) or list(points.thresholds)
    layers = whole_numbers(args.exit_layers, "--exit-layers") or list(points.exit_layers)
    if len(given) != 2:
        raise SettingsError(f"--thresholds is {args.thresholds!r}; give two: relaxed,strict.")
    relaxed, strict = (check_threshold(threshold) for threshold in given)
    return Points(tuple(layers), relaxed, strict)
