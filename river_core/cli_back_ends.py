"""`quantizers`: what each quantization back end makes of a model."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from .cli_run import add_model_arguments, threshold
from .cli_study import study_file, whole_numbers, write_table
from .cli_terminal import ProgressLine
from .errors import SettingsError
from .settings import QuantSpec

if TYPE_CHECKING:
    from .model import RiverModel


def add_quantizers(parser: argparse.ArgumentParser) -> None:
    """Arguments of `quantizers`."""
    add_model_arguments(parser)
    parser.add_argument(
        "--report",
        required=True,
        metavar="STEM",
        help="append to STEM.jsonl as it is measured, going on with what is there; then write the "
        "table between the markers of STEM.md",
    )
    parser.add_argument(
        "--only", default=None, help="comma-separated, such as gptq-4bit-g64 (default: all)"
    )
    parser.add_argument("--prompts", type=int, default=8, help="how many of the bundled prompts")
    parser.add_argument("--tokens", type=int, default=48, help="tokens per prompt (default 48)")
    parser.add_argument("--exit-layers", default=None, help="comma-separated (default 2,4,8)")
    parser.add_argument(
        "--threshold",
        type=threshold,
        default=None,
        help="of the runs that leave by similarity: -1 to 1, or auto (default: the model's)",
    )
    parser.add_argument(
        "--target-match", type=float, default=0.98, help="of --threshold auto (default 0.98)"
    )
    parser.add_argument(
        "--speed",
        action="store_true",
        help="then time all back ends of the table in one interleaved run, in the model's "
        "automatic dtype; needs them in memory together, and a quiet machine",
    )
    parser.add_argument("--rounds", type=int, default=5, help="of --speed (default 5)")


def run_quantizers(args: argparse.Namespace) -> int:
    """Build a river with every back end and compare it with the backbone, in fp32.

    Every token leaves after the same layer, then by similarity; the backbone's own tokens are fed.
    With --speed their tokens per second too.
    """
    from . import back_end_speed, back_ends
    from .loading import load
    from .sweep import bundled_prompts

    prompts = bundled_prompts()[: args.prompts]
    if args.tokens < 2 or args.prompts < 1:
        raise SettingsError("quantizers needs --tokens of 2 or more and --prompts from 1 to 8.")
    if args.rounds < 5:
        raise SettingsError(f"--rounds is {args.rounds}; use 5 or more, for a spread.")
    asked = back_ends.Asked(args.threshold, args.target_match)
    specs = _specs(args.only)
    layers = whole_numbers(args.exit_layers, "--exit-layers") or list(back_ends.EXIT_LAYERS)
    stem, file = study_file(args.report)
    progress = ProgressLine()

    def loaded(spec: QuantSpec, dtype: str = "float32") -> RiverModel:
        return load(args.model, device=args.device, dtype=dtype, river=spec, progress=progress)

    try:
        for spec in specs:
            what = (file, spec, loaded, prompts, args.tokens, layers)
            back_ends.measure(*what, asked=asked, say=progress)
        if args.speed:
            there = [spec for spec in back_ends.SPECS if file.of(spec.label, back_ends.MADE)]
            timing = back_end_speed.Timing(prompts[0], args.tokens, args.rounds)
            automatic = partial(loaded, dtype=args.dtype)
            back_end_speed.measure(file, there, automatic, timing, say=progress)
    finally:
        progress.done()
    lines = list(back_ends.table(file, back_ends.SPECS))
    write_table(stem.with_suffix(".md"), lines)
    print("\n".join(lines))
    return 0


def _specs(only: str | None) -> list[QuantSpec]:
    """The back ends by label; raises SettingsError for an unknown one."""
    from .back_ends import SPECS

    known = {spec.label: spec for spec in SPECS}
    if only is None:
        return list(SPECS)
    wanted = [name.strip() for name in only.split(",")]
    for name in wanted:
        if name not in known:
            raise SettingsError(f"unknown back end {name!r}; known are {', '.join(known)}.")
    return [known[name] for name in wanted]
