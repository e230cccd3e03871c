"""The command line: `python -m river_core COMMAND`. Errors a caller can cause are one sentence."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from . import (
    cli_back_ends,
    cli_bench,
    cli_cache,
    cli_calibrate,
    cli_evaluate,
    cli_memory,
    cli_run,
    cli_strategies,
    cli_study,
)
from .errors import RiverError
from .version import VERSION

Command = tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]
COMMANDS: dict[str, Command] = {
    "fetch": ("get a model into the cache", cli_run.add_fetch, cli_run.run_fetch),
    "models": ("list the models here", cli_memory.add_models, cli_memory.run_models),
    "memory": ("what a model takes, unloaded", cli_memory.add_memory, cli_memory.run_memory),
    "generate": ("run one prompt", cli_run.add_generate, cli_run.run_generate),
    "compare": ("compare two saved runs", cli_study.add_compare, cli_study.run_compare),
    "sweep": ("settings against agreement", cli_study.add_sweep, cli_study.run_sweep),
    "strategies": (
        "compare KV strategies as the paper does",
        cli_strategies.add_strategies,
        cli_strategies.run_strategies,
    ),
    "study": (
        "KV error by layer and earliest safe exits",
        cli_cache.add_study,
        cli_cache.run_study,
    ),
    "quantizers": (
        "compare quantization back ends",
        cli_back_ends.add_quantizers,
        cli_back_ends.run_quantizers,
    ),
    "calibrate": (
        "measure this model's thresholds",
        cli_calibrate.add_calibrate,
        cli_calibrate.run_calibrate,
    ),
    "evaluate": (
        "score benchmarks by lm-evaluation-harness",
        cli_evaluate.add_evaluate,
        cli_evaluate.run_evaluate,
    ),
    "bench": ("measure speed", cli_bench.add_arguments, cli_bench.main),
}


def parser() -> argparse.ArgumentParser:
    """The whole command line's parser."""
    top = argparse.ArgumentParser(prog="python -m river_core", description=__doc__)
    top.add_argument("--version", action="version", version=VERSION)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (sentence, add, _) in COMMANDS.items():
        add(commands.add_parser(name, help=sentence, description=COMMANDS[name][2].__doc__))
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 2 with one sentence on standard error for what the caller got wrong."""
    args = parser().parse_args(argv)
    try:
        return COMMANDS[args.command][2](args)
    except RiverError as error:
        print(f"river: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("river: stopped.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
