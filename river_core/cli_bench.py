"""`bench`: decode speed of a model beside Hugging Face, or a report on a GPU."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .cli_run import add_model_arguments, load_model
from .cli_terminal import ProgressLine
from .errors import SettingsError

PROMPT = "Explain in a few sentences why the sky is blue at noon and red in the evening."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `bench`."""
    add_model_arguments(parser)
    parser.add_argument("--tokens", type=int, default=64, help="tokens per run (default 64)")
    parser.add_argument("--rounds", type=int, default=5, help="timed runs per row (default 5)")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads (default: torch's)")
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
        default=3.79,
        help="mean exit layer of the row with forced exits (default 3.79)",
    )
    parser.add_argument("--prompt", default=PROMPT, help="what every row decodes after")
    parser.add_argument("--no-peer", action="store_true", help="without Hugging Face generate")
    parser.add_argument(
        "--peer-dtype", default="bfloat16", help="bfloat16 (default), float16 or float32"
    )
    parser.add_argument("--json", action="store_true", help="print JSON Lines")
    parser.add_argument("--save", default=None, metavar="PATH", help="write JSON Lines to a file")
    gpu = parser.add_argument_group("report on a GPU, with random weights and nothing downloaded")
    gpu.add_argument("--gpu-report", action="store_true", help="measure this machine's CUDA GPU")
    gpu.add_argument("--dry-run", action="store_true", help="the same code on the CPU, tiny sizes")
    gpu.add_argument(
        "--item-seconds", type=float, default=60.0, help="limit for each item (default 60)"
    )


def main(args: argparse.Namespace) -> int:
    """Measure decode speed, all rows interleaved in one process, with the byte bound beside it."""
    if args.save is not None and not Path(args.save).resolve().parent.is_dir():
        raise SettingsError(f"--save {args.save}: that folder does not exist.")
    if args.gpu_report:
        return _gpu_report(args)
    if args.dry_run:
        raise SettingsError("--dry-run belongs to --gpu-report.")
    return _bench(args)


def _bench(args: argparse.Namespace) -> int:
    """Rows over a loaded model."""
    import torch

    from . import bench
    from .bench_report import Report, save_lines

    if args.threads is not None:
        if args.threads < 1:
            raise SettingsError(f"--threads is {args.threads}; use 1 or more.")
        torch.set_num_threads(args.threads)
    model = load_model(args)
    progress = ProgressLine()
    try:
        contenders, head = _contenders(args, model)
        head, rows = bench.measure(contenders, args.tokens, args.rounds, head, progress)
    finally:
        progress.done()
    report = Report(head, rows, _kernel_times(args, model))
    if args.save is not None:
        save_lines(Path(args.save), report.lines())
    print("\n".join(map(json.dumps, report.lines()) if args.json else report.text()))
    return 0


def _contenders(args: argparse.Namespace, model: Any) -> tuple[list[Any], dict[str, Any]]:
    """Everything that is measured, and the report's header."""
    from . import bench
    from .peers import HFGenerate
    from .prompts import encode

    ids, _ = encode(model, args.prompt, True)
    thresholds = args.threshold or [model.info.default_threshold]
    rows: list[Any] = list(bench.engines(model, ids, args.tokens, thresholds, args.mean_exit))
    peer = None
    if not args.no_peer:
        if model.path is None:
            raise SettingsError("this model has no folder for Hugging Face; use --no-peer.")
        peer = HFGenerate(model.path, args.peer_dtype, args.threads, model.device)
        rows.insert(0, bench.Peer(f"{peer.name}, {args.peer_dtype}", peer, model, ids))
    head = {**bench.header(model, len(ids), peer), "prompt": args.prompt}
    return rows, {**head, "mean_exit": args.mean_exit}


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
    """Items in subprocesses; 1 where one of them failed."""
    from . import gpu_report

    progress = ProgressLine()
    try:
        results = gpu_report.collect(args.dry_run, args.item_seconds, progress)
    finally:
        progress.done()
    text = "\n".join(gpu_report.text(results, args.dry_run))
    if args.save is not None:
        gpu_report.save(Path(args.save), results, text)
    print("\n".join(map(json.dumps, gpu_report.lines(results))) if args.json else text)
    return 0 if all(result.error is None for result in results) else 1
