"""The replay viewer as one HTML file: `python -m app.export [--run FILE] [--out FILE]`.

It opens from disk, without a server or a network. A policy in the file allows its own style and
script only; the runs stand in it as data, and their text reaches the page through `textContent`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import sys
from pathlib import Path
from typing import Any

from river_core.errors import RiverError

from .recorded import read, saved, view
from .shipped import shipped, shipped_lines
from .theme import inline, script, style
from .views.ledger import unloaded
from .views.wording import language, say

DATA = "const RECORDED = JSON.parse(document.getElementById('river-data').textContent);"
PARTS = ("bar", "lanes", "estimate", "details", "ledger")
BOOT = """
const dark = matchMedia('(prefers-color-scheme: dark)').matches;
document.documentElement.classList.toggle('dark', dark);
for (const {dataset, parentNode} of document.querySelectorAll('[data-part]')) {
  window.River.replay(dataset.part, parentNode);
}
"""
PLAIN = """
:root { --font: system-ui, sans-serif; --font-mono: ui-monospace, monospace; }
body { margin: 0; background: var(--paper); color: var(--ink); font-family: var(--font); }
main { max-width: 1240px; margin: 0 auto; padding: 18px clamp(14px, 3vw, 24px) 28px; }
main { box-sizing: border-box; display: grid; grid-template-columns: minmax(0, 1fr); gap: 14px; }
.chips, .origins { display: none; }
#threshold input { width: min(420px, 100%); display: block; }
"""


def page(runs: list[dict[str, Any]], lines: list[str]) -> str:
    """The file's text, for the views of recorded runs and the JSON Lines that they are of.

    The lines are read only when a run is exported: an element that is never parsed costs little.
    """
    code = script(DATA) + BOOT
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    policy += f"script-src 'sha256-{digest}'"
    parts = "".join(
        f'<div id="rv-{name}"><div class="rv" data-part="{name}"></div></div>' for name in PARTS
    )
    return (
        f'<!doctype html>\n<html lang="{language()}"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{say('title')}</title>\n<style>{style()}{PLAIN}</style></head>\n"
        f'<body><main>{parts}</main>\n<script type="application/json" id="river-data">'
        f'{inline(runs)}</script>\n<script type="application/json" id="river-lines">'
        f'{inline(lines)}</script>\n<script type="application/json" id="river-ledger">'
        f"{inline(unloaded())}</script>\n<script>{code}</script></body></html>\n"
    )


def _runs(path: str | None) -> tuple[list[dict[str, Any]], list[str]]:
    if path is None:
        return shipped(), shipped_lines()
    records = read(path)
    return [view(records, Path(path).stem)], [saved(records)]


def main(arguments: list[str] | None = None) -> None:
    """The command line; one sentence and exit status 1 for a file that is not a recorded run."""
    parser = argparse.ArgumentParser(prog="python -m app.export", description=say("export.about"))
    parser.add_argument("--run", help="a recorded run (default: the shipped ones)")
    parser.add_argument("--out", default="river.html", help="file to write (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    try:
        text = page(*_runs(chosen.run))
        Path(chosen.out).write_text(text, encoding="utf-8", newline="\n")
    except (RiverError, OSError) as error:
        sys.exit(f"river: {error}")
    print(chosen.out)


if __name__ == "__main__":
    main()
