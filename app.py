"""Start River's page: `python app.py [--model NAME] [--resident K] [--port P] ...`."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from importlib.util import find_spec

from app.runner import Runner
from app.space import lends_gpu, suggested_model
from app.theme import launch_options
from app.ui import build
from app.views.wording import choose_language, languages
from river_core.errors import RiverError
from river_core.settings import DEFAULT_RIVER, LoadSettings, QuantSpec, check_resident

MODEL = "smollm2-135m"
FIRST_SCREEN = 1.5  # seconds: who opens the page at once gets it before torch takes the processor


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, parsed."""
    parser = argparse.ArgumentParser(description="Show which layers each token skips.")
    parser.add_argument(
        "--model",
        default=None,
        help=f"a name, hub id, folder or .gguf file (default: {MODEL}; larger on a Space's GPU)",
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
    parser.add_argument(
        "--language",
        choices=languages(),
        default=os.environ.get("RIVER_LANGUAGE", "en"),
        help="of the page (default: %(default)s)",
    )
    parser.add_argument(
        "--mcp", action="store_true", help="also serve generate and compare as MCP tools"
    )
    return parser.parse_args(arguments)


def has_gpu() -> bool:
    """Whether torch sees one. It takes seconds to import, so ask only where it matters."""
    from river_core.devices import find_device

    return find_device("auto").type == "cuda"


def _resident(text: str) -> int | str:
    """What `--resident` means; argparse tells of anything else in one sentence."""
    try:
        return check_resident(int(text) if text.isdecimal() else text)
    except RiverError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main() -> None:
    """Serve the page at once and load the model meanwhile."""
    chosen = options()
    if chosen.mcp and find_spec("mcp") is None:
        sys.exit("river: --mcp needs more: pip install 'gradio[mcp]' 'pydantic<=2.12.5'")
    choose_language(chosen.language)
    name = chosen.model or suggested_model(os.environ, MODEL, has_gpu)
    try:
        river = None if chosen.river is None else QuantSpec.parse(chosen.river)
        lend = lends_gpu(os.environ)  # to processes too short-lived to capture graphs in
        how = {"entry_layer": chosen.entry_layer, "resident_layers": chosen.resident}
        how["execution"] = "eager" if lend else "auto"
        LoadSettings(**how)
        runner = Runner(name, chosen.device, river, how=how, lend=lend)
    except RiverError as error:
        sys.exit(f"river: {error}")
    page = build(runner)
    loading = threading.Timer(FIRST_SCREEN, runner.start)
    loading.daemon = True
    try:
        page.launch(
            server_name=chosen.host,
            server_port=chosen.port,
            show_error=True,
            prevent_thread_lock=True,
            run_history=False,
            ssr_mode=False,
            mcp_server=chosen.mcp or None,  # None: as GRADIO_MCP_SERVER says
            footer_links=["api"],
            **launch_options(),
        )
        loading.start()
        page.block_thread()
    finally:
        loading.cancel()
        runner.close()


if __name__ == "__main__":
    main()
