"""Start River's page: `python app.py [--model NAME] [--resident K] [--port P] ...`."""

from __future__ import annotations

import argparse
import sys

from app.runner import Runner
from app.theme import launch_options
from app.ui import build
from river_core.errors import RiverError
from river_core.settings import DEFAULT_RIVER, LoadSettings, QuantSpec, check_resident


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, parsed."""
    parser = argparse.ArgumentParser(description="Show which layers each token skips.")
    parser.add_argument(
        "--model",
        default="smollm2-135m",
        help="a name, hub id, folder or .gguf file (default: %(default)s)",
    )
    parser.add_argument("--host", default=None, help="address to listen on (default: this machine)")
    parser.add_argument("--port", type=int, default=None, help="port (default: the first free)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: %(default)s)")
    parser.add_argument(
        "--river",
        default=None,
        help=f"how the river is stored, such as hqq-4bit-g64 (default: {DEFAULT_RIVER.label})",
    )
    parser.add_argument(
        "--entry-layer",
        type=int,
        default=LoadSettings.entry_layer,
        metavar="N",
        help="first layer that has a twin in the river (default: %(default)s)",
    )
    parser.add_argument(
        "--resident",
        type=_resident,
        default=None,
        metavar="K",
        help="keep the first K backbone layers, or auto: those that calibrated exits need "
        "(default: all)",
    )
    return parser.parse_args(arguments)


def _resident(text: str) -> int | str:
    """What `--resident` means; argparse tells of anything else in one sentence."""
    try:
        return check_resident(int(text) if text.isdecimal() else text)
    except RiverError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main() -> None:
    """Serve the page at once and load the model meanwhile."""
    chosen = options()
    try:
        river = None if chosen.river is None else QuantSpec.parse(chosen.river)
        how = {"entry_layer": chosen.entry_layer, "resident_layers": chosen.resident}
        LoadSettings(**how)
        runner = Runner(chosen.model, chosen.device, river, how=how)
    except RiverError as error:
        sys.exit(f"river: {error}")
    page = build(runner)
    runner.start()
    try:
        page.launch(
            server_name=chosen.host,
            server_port=chosen.port,
            show_error=True,
            run_history=False,
            ssr_mode=False,
            footer_links=["api"],
            **launch_options(),
        )
    finally:
        runner.close()


if __name__ == "__main__":
    main()
