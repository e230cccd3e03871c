"""How the page looks and which script it carries: Gradio's theme, our style sheets and scripts.

Everything is inlined when the app starts; nothing is fetched from elsewhere, fonts included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from .early import Early
from .first_paint import first_paint
from .shipped import shipped
from .views import colour
from .views.snapshot import FIELDS
from .views.wording import ASSETS, dictionary, language

SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "DejaVu Sans", "sans-serif")
MONO = ("ui-monospace", "SF Mono", "Consolas", "DejaVu Sans Mono", "monospace")
STYLES = (
    "base",
    "controls",
    "lanes",
    "long",
    "panels",
    "maps",
    "readouts",
    "lesson",
    "files",
    "comparison",
    "race",
    "measure",
    "ledger",
)
FIRST = ("base", "lanes", "long")  # those that the first paint needs
EARLY = "early"  # a script that runs before Gradio's, see early.py
SCRIPTS = (
    "language",
    "dom",
    "store",
    "selection",
    "estimate",
    "lanes",
    "chunks",
    "reading",
    "overview",
    "legend",
    "keyboard",
    "panels",
    "enlarge",
    "trace",
    "column",
    "choice",
    "canvas",
    "heatmap",
    "rows",
    "kvmap",
    "difference",
    "saved",
    "race",
    "racetrack",
    "measure",
    "safe",
    "readouts",
    "table",
    "recorded",
    "spotlight",
    "guess",
    "syllabus",
    "blackboard",
    "lesson",
    "csvtable",
    "svgriver",
    "share",
    "exporting",
    "replayfile",
    "bar",
    "slider",
    "ledgerbars",
    "ledger",
    "charts",
    "charttheme",
    "mount",
)


def launch_options() -> dict[str, Any]:
    """Arguments of `Blocks.launch` that carry theme, style and scripts."""
    script = (ASSETS / "js" / f"{EARLY}.js").read_text(encoding="utf-8")
    runs = shipped()
    first = first_paint(runs[0], _sheets(FIRST))
    early: tuple[Any, ...] = (Early, (script, first), {})
    looks = {"theme": theme(), "css": style(), "head": head(runs)}
    return {**looks, "app_kwargs": {"middleware": [early]}}


def style() -> str:
    """All style sheets, after the colour scale as custom properties."""
    return _sheets(STYLES)


def _sheets(names: Sequence[str]) -> str:
    sheets = [(ASSETS / "css" / f"{name}.css").read_text(encoding="utf-8") for name in names]
    return "\n".join([colour.custom_properties(), *sheets])


def head(runs: Sequence[Mapping[str, Any]]) -> str:
    """One inline script: words, token fields, recorded runs and every file of `SCRIPTS`."""
    return f"<script>{script(f'const RECORDED = {inline(runs)};')}</script>"


def script(recorded: str) -> str:
    """The page's script; `recorded` is the line that defines the recorded runs."""
    files = [(ASSETS / "js" / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    values = f"const TEXT = {inline(dictionary())};\nconst FIELDS = {inline(FIELDS)};"
    spoken = f"const LANGUAGE = {inline(language())};"
    body = "\n".join(['"use strict";', spoken, values, recorded, *files])
    return f"(() => {{\n{body}\n}})();"


def theme() -> gr.themes.Base:
    """Calm greys, one accent, and the fonts of the reader's own machine."""
    base = gr.themes.Base(
        primary_hue=gr.themes.colors.blue,
        neutral_hue=gr.themes.colors.zinc,
        spacing_size=gr.themes.sizes.spacing_sm,
        radius_size=gr.themes.sizes.radius_md,
        font=list(SANS),
        font_mono=list(MONO),
    )
    return base.set(**_same_in_both(), **_per_theme())


def _same_in_both() -> dict[str, str]:
    return {
        "button_primary_background_fill": "#0072B2",
        "button_primary_background_fill_dark": "#0072B2",
        "button_primary_background_fill_hover": "#005f96",
        "button_primary_background_fill_hover_dark": "#005f96",
        "button_primary_text_color": "#ffffff",
        "button_primary_text_color_dark": "#ffffff",
        "button_primary_border_color": "#0072B2",
        "button_primary_border_color_dark": "#0072B2",
        "slider_color": "#0072B2",
        "slider_color_dark": "#4aa8e0",
        "block_border_width": "0px",
        "block_shadow": "none",
        "block_padding": "0px",
        "input_shadow": "none",
        "input_shadow_focus": "none",
    }


def _per_theme() -> dict[str, str]:
    pairs = {
        "body_background_fill": ("#ffffff", "#141416"),
        "background_fill_primary": ("#ffffff", "#141416"),
        "block_background_fill": ("transparent", "transparent"),
        "body_text_color": ("#1b1b1f", "#ececf0"),
        "body_text_color_subdued": ("#5b5b63", "#a8a8b0"),
        "block_info_text_color": ("#5b5b63", "#a8a8b0"),
        "block_label_text_color": ("#1b1b1f", "#ececf0"),
        "block_title_text_color": ("#1b1b1f", "#ececf0"),
        "input_background_fill": ("#f6f6f8", "#1f1f24"),
        "input_background_fill_focus": ("#ffffff", "#26262c"),
        "input_border_color": ("#8b8b94", "#6d6d78"),
        "input_border_color_focus": ("#0072B2", "#4aa8e0"),
        "input_placeholder_color": ("#5b5b63", "#a8a8b0"),
        "border_color_primary": ("#dcdce1", "#3a3a42"),
        "button_secondary_background_fill": ("#ffffff", "#1f1f24"),
        "button_secondary_background_fill_hover": ("#f0f0f3", "#2b2b32"),
        "button_secondary_border_color": ("#8b8b94", "#6d6d78"),
        "button_secondary_text_color": ("#1b1b1f", "#ececf0"),
    }
    light = {name: pair[0] for name, pair in pairs.items()}
    return light | {f"{name}_dark": pair[1] for name, pair in pairs.items()}


def inline(value: object) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(value, ensure_ascii=True).replace("<", "\\u003c")
