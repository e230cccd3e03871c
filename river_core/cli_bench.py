"""`bench`: decode speed of a model beside other engines, or a report on a GPU."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .cli_run import DEFAULT_MODEL, add_model_arguments, load_model
from .cli_terminal import ProgressLine
from .errors import SettingsError
from .settings import EXECUTIONS

PROMPT = "Explain in a few sentences why the sky is blue at noon and red in the evening."
MEAN_EXIT = 3.79  # the paper's
SHAPE_EXITS = (3.79, 8.0)
SHAPE_PROMPT = 16  # tokens


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `bench`."""
    add_model_arguments(parser)
    parser.add_argument(
        "--shape",
        default=None,
        metavar="NAME",
        help="instead of a model: random weights at the shape of one, such as llama-3.1-8b",
    )
    parser.add_argument("--tokens", type=int, default=64, help="tokens per run (default 64)")
    parser.add_argument("--rounds", type=int, default=5, help="timed runs per row (default 5)")
    parser.add_argument(
        "--execution",
        choices=EXECUTIONS,
        default=EXECUTIONS[0],
        help="how steps run: auto, in eager torch, or by CUDA graphs of one layer each",
    )
    parser.add_argument("--threads", type=int, default=None, help="CPU threads (default: torch's)")
    _add_rows(parser)
    parser.add_argument("--json", action="store_true", help="print JSON Lines")
    parser.add_argument("--save", default=None, metavar="PATH", help="write JSON Lines to a file")
    parser.add_argument(
        "--figure", default=None, metavar="PATH", help="a plotly figure: PATH.html and PATH.json"
    )
    gpu = parser.add_argument_group("report on a GPU, with random weights and nothing downloaded")
    gpu.add_argument("--gpu-report", action="store_true", help="measure this machine's CUDA GPU")
    gpu.add_argument("--dry-run", action="store_true", help="the same code on the CPU, tiny sizes")
    gpu.add_argument(
        "--item-seconds", type=float, default=None, help="limit for each item (default: its own)"
    )


def _add_rows(parser: argparse.ArgumentParser) -> None:
    """What is measured."""
    parser.add_argument(
        "--threshold",
        type=float,
        action="append",
        default=None,
        help="a River row at this threshold, repeatable (default: the model's own)",
    )
    parser.add_argument(
        "--mean-exit",
        type=float,
        action="append",
        default=None,
        help="a row with exits forced to this mean, repeatable (default 3.79; of --shape 8 too)",
    )
    parser.add_argument("--prompt", default=PROMPT, help="what every row decodes after")
    parser.add_argument(
        "--context",
        type=int,
        action="append",
        default=None,
        metavar="TOKENS",
        help="a prompt of this length, repeatable: the prompt over and over (default: once)",
    )
    parser.add_argument("--no-peer", action="store_true", help="without other engines")
    parser.add_argument(
        "--compile", action="store_true", help="Hugging Face compiled on a CPU too: takes minutes"
    )
    parser.add_argument(
        "--peer-dtype", default="bfloat16", help="bfloat16 (default), float16 or float32"
    )


def main(args: argparse.Namespace) -> int:
    """Measure decode speed, all rows interleaved in one process, with the byte bound beside it."""
    for option, path in (("--save", args.save), ("--figure", args.figure)):
        if path is not None and not Path(path).resolve().parent.is_dir():
            raise SettingsError(f"{option} {path}: that folder does not exist.")
    if args.gpu_report:
        return _gpu_report(args)
    if args.dry_run:
        raise SettingsError("--dry-run belongs to --gpu-report.")
    return _bench(args)


def _bench(args: argparse.Namespace) -> int:
    """Rows over a loaded model, or over random weights."""
    import torch

    from . import bench_run
    from .bench_report import save_lines

    _check(args)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    progress = ProgressLine()
    reports = []
    try:
        model, prompts, refused = _random(args) if args.shape else _loaded(args)
        model = model.running(args.execution)
        for report in bench_run.run(model, prompts, _wanted(args, model), refused, progress):
            progress.done()
            _print(args, report)
            reports.append(report)
            if args.save is not None:  # again after each, so that a stopped run keeps what it had
                save_lines(Path(args.save), [line for r in reports for line in r.lines()])
    finally:
        progress.done()
    _kernels_and_figure(args, model, reports)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse what does not go together."""
    if args.threads is not None and args.threads < 1:
        raise SettingsError(f"--threads is {args.threads}; use 1 or more.")
    if args.rounds < 1:
        raise SettingsError(f"--rounds is {args.rounds}; use 1 or more.")
    if args.shape is None:
        return
    if args.threshold is not None:
        raise SettingsError("--threshold means nothing to random weights; use --mean-exit.")
    if args.model != DEFAULT_MODEL or args.prompt != PROMPT:
        raise SettingsError("--shape has no model and no text; leave --model and --prompt out.")


def _wanted(args: argparse.Namespace, model: Any) -> Any:
    from .bench_run import Wanted

    usual = SHAPE_EXITS if args.shape else (MEAN_EXIT,)
    own = () if args.shape else (model.info.default_threshold,)
    return Wanted(
        tokens=args.tokens,
        rounds=args.rounds,
        thresholds=tuple(args.threshold or own),
        mean_exits=tuple(args.mean_exit or usual),
        peers=not args.no_peer,
        compiled=args.compile,
        peer_dtype=args.peer_dtype,
    )


def _loaded(args: argparse.Namespace) -> tuple[Any, list[tuple[int, ...]], list[str]]:
    """The model, its prompts, and a sentence for each that does not fit."""
    from .bench_run import fitting, positions_of, prompt_of
    from .prompts import encode

    kept: list[int] = []
    refused: list[str] = []
    args.capacity = None
    if args.context:
        longest = positions_of(args.model, ProgressLine())
        kept, refused = fitting(args.context, args.tokens, longest)
        args.capacity = max(kept) + args.tokens
    model = load_model(args)
    ids, _ = encode(model, args.prompt, True)
    return model, [prompt_of(ids, length) for length in kept] or [ids], refused


def _random(args: argparse.Namespace) -> tuple[Any, list[tuple[int, ...]], list[str]]:
    """A random model, prompts of its first ids, and no sentence."""
    from .bench_run import check_room, prompt_of
    from .cache_paths import cache_root
    from .devices import find_device
    from .random_model import random_model
    from .settings import QuantSpec
    from .shapes import find_shape

    spec, device = find_shape(args.shape), find_device(args.device)
    river = QuantSpec() if args.river is None else QuantSpec.parse(args.river)
    lengths = args.context or [SHAPE_PROMPT]
    capacity = max(lengths) + args.tokens
    check_room(spec, river, capacity, args.dtype, device.type == "cuda")
    store = cache_root() / "kernels.json"
    model = random_model(
        spec, device=device, dtype=args.dtype, river=river, capacity=capacity, store=store
    )
    ids = tuple(range(min(spec.vocab, 1024)))
    return model, [prompt_of(ids, length) for length in lengths], []


def _print(args: argparse.Namespace, report: Any) -> None:
    lines = map(json.dumps, report.lines()) if args.json else [*report.text(), ""]
    print("\n".join(lines), flush=True)


def _kernels_and_figure(args: argparse.Namespace, model: Any, reports: list[Any]) -> None:
    """What stands below all reports: the micro-test's times; and the figure beside them."""
    from dataclasses import asdict

    from .bench_report import kernel_table, save_lines
    from .figures import bench_figure, save_figure

    kernels = _kernel_times(args, model)
    lines = [{"type": "kernel", **asdict(kernel)} for kernel in kernels]
    print("\n".join(map(json.dumps, lines) if args.json else kernel_table(kernels)))
    if args.save is not None:
        save_lines(Path(args.save), [*(line for r in reports for line in r.lines()), *lines])
    if args.figure is not None:
        found = [line for report in reports for line in report.lines()]
        save_figure(bench_figure(found), Path(args.figure).with_suffix(""))


def _kernel_times(args: argparse.Namespace, model: Any) -> list[Any]:
    """The micro-test's times, recalled from where loading keeps them."""
    from .bench import kernel_times
    from .cache_paths import cache_root
    from .plan import plan_kernels
    from .settings import LoadSettings

    settings = LoadSettings(dtype=args.dtype, river=model.info.quant)
    store = cache_root() / "kernels.json"
    sizes = (model.shape, model.num_layers, model.vocab)
    return kernel_times(plan_kernels(*sizes, model.device, settings, store=store))


def _gpu_report(args: argparse.Namespace) -> int:
    """Items in subprocesses, shown as they come; 1 where one of them failed."""
    from . import gpu_report

    files = gpu_report.ReportFiles(Path(args.save), args.dry_run) if args.save else None
    progress = ProgressLine()
    failed = False
    try:
        for n, result in enumerate(gpu_report.collect(args.dry_run, args.item_seconds, progress)):
            progress.done()
            lines = [json.dumps(gpu_report.line(result))] if args.json else gpu_report.text(result)
            if not n and not args.json:
                print("\n".join(gpu_report.heading(args.dry_run)))
            print("\n".join(lines), flush=True)
            failed = failed or result.error is not None
            if files is not None:
                files.add(result)
    finally:
        progress.done()
    return 1 if failed else 0
