"""What the browser shows before Gradio's scripts have come: the first recorded run, as plain HTML.

The page at "/" carries it above Gradio's element; the page's own script takes it away once it has
drawn the same run itself. All text of a run is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .views.run import LANES
from .views.snapshot import FIELDS
from .views.wording import language, say

ELEMENT = "rv-first"
STYLE = f"""
#{ELEMENT} {{
  position: absolute; inset: 0 0 auto; z-index: 9; min-height: 100vh; box-sizing: border-box;
  background: var(--paper); font-family: system-ui, sans-serif;
}}
#{ELEMENT} > div {{ max-width: 1240px; margin: 0 auto; box-sizing: border-box;
  padding: 18px clamp(14px, 3vw, 24px) 28px; }}
#{ELEMENT} .lanes {{ margin-top: 150px; }}
@media (max-width: 640px) {{ #{ELEMENT} .lanes {{ margin-top: 14px; }} }}
"""  # the room is what prompt, examples and buttons take above the lanes on a wide screen
PATIENCE = 30  # seconds: then what Gradio's page says of a failed start must not be covered
SCRIPT = f"""{{
  const first = document.currentScript.parentNode;
  const asked = new URLSearchParams(location.search).get("__theme");
  const dark = asked ? asked === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  first.classList.toggle("dark", dark);
  setTimeout(() => first.remove(), {1000 * PATIENCE});
}}"""


def first_paint(view: Mapping[str, Any], style: str) -> str:
    """An element with the lanes of `view`, a snapshot of a recorded run, under the style sheets."""
    lanes = "".join(_lane(name, view["lanes"][name], view["layers"]) for name in LANES)
    head = f"<h1>{escape(say('title'))}</h1><p class='quiet'>{escape(say('first.loading'))}</p>"
    label = f"<p class='quiet'>{escape(view['recorded']['label'])}</p>"
    return (
        f"<div id='{ELEMENT}' class='rv' lang='{language()}' aria-busy='true'>"
        f"<script>{SCRIPT}</script><style>{style}{STYLE}</style>"
        f"<div>{head}{label}<div class='lanes'>{lanes}</div></div></div>"
    )


def _lane(name: str, lane: Mapping[str, Any], layers: int) -> str:
    title, caption = escape(lane["title"]), escape(lane["caption"])
    tokens = [dict(zip(FIELDS, json.loads(line), strict=True)) for line in _lines(lane)]
    if tokens and lane["ended"] and tokens[-1]["kind"] == "empty":
        tokens[-1]["text"] = say("lane.end")
    return (
        f"<div class='lane lane-{name}'><div class='lane-head'>"
        f"<span class='lane-title'>{title}</span> <span class='lane-caption'>{caption}</span></div>"
        f"<div class='cells'><div class='chunk'>{_cells(tokens, layers)}</div></div></div>"
    )


def _lines(lane: Mapping[str, Any]) -> list[str]:
    text: str = lane["tokens"]
    return text.split("\n") if text else []


def _cells(tokens: Sequence[Mapping[str, Any]], layers: int) -> str:
    cells = []
    for i, token in enumerate(tokens):
        follows = tokens[i + 1]["gap"] if i + 1 < len(tokens) else 0
        never = " never" if token["exit"] == layers else ""
        spaced = " spaced" if follows else ""
        width = 100 * token["exit"] / layers
        cells.append(
            f"<span class='tok {token['kind']} b{token['bin']}{never}{spaced}'>"
            f"<bdi class='txt' lang='und'>{escape(token['text'])}</bdi>"
            f"<span class='bar' style='width:{width:.4g}%'></span></span>"
        )
        if token["text"].endswith("↵"):
            cells.append("<span class='break'></span>")
    return "".join(cells)
