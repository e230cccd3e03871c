"""What the page asks of the server for its files: a run's record, a replay file's view, the shell
of the one-file replay. Answers are values, {"error": one sentence} among them; nothing is kept.

They are functions of a component, reached over Gradio's own relative address, so they work behind
a proxy, and outside the queue, so a visitor's file never waits for a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gradio as gr

from river_core.errors import RiverError

from .export import page as replay_page
from .recipe import Recipe, read_recipe
from .recorded import LARGEST, parse, view
from .shipped import shipped_lines
from .views.english import told
from .views.run import ModelCard
from .views.snapshot import pack
from .views.wording import say

SCRIPT = """
const begin = () => window.River.files(element, props, watch, server);
if (window.River) begin(); else addEventListener("river-script", begin, {once: true});
"""


class Keeper(Protocol):
    """What keeps the page's runs."""

    @property
    def card(self) -> ModelCard:
        """What is known of the model now."""

    def lines(self, run_id: str) -> str:
        """Both records of a kept run as JSON Lines; raises RiverError."""


def files_part(keeper: Keeper) -> gr.HTML:
    """The component behind the page's files; it also tells what a link's recipe holds."""
    return gr.HTML(
        pack({"sentences": []}),
        html_template='<div class="rv" data-part="files"></div>',
        js_on_load=SCRIPT,
        apply_default_css=False,
        elem_id="rv-files",
        server_functions=[kept_by(keeper), shipped_run, replay, shell],
    )


def kept_by(keeper: Keeper) -> Callable[[Any], dict[str, Any]]:
    """`kept({run, prompt})` of one keeper."""

    def kept(asked: Any) -> dict[str, Any]:
        """A kept run's lines, and its view as a recorded one."""
        named = asked if isinstance(asked, dict) else {}
        try:
            lines = keeper.lines(str(named.get("run", "")))
            prompt = named.get("prompt")
            typed = prompt if isinstance(prompt, str) and prompt.strip() else None
            return {
                "lines": lines,
                "view": view(parse(lines, say("export.live_name")), "live", typed or "", typed),
            }
        except RiverError as error:
            return {"error": say("export.gone", reason=told(error))}

    return kept


def shipped_run(number: Any) -> dict[str, Any]:
    """The lines of a shipped run, by its number in the chooser."""
    lines = shipped_lines()
    if type(number) is not int or not 0 <= number < len(lines):
        return {"error": say("export.nothing")}
    return {"lines": lines[number]}


def replay(asked: Any) -> dict[str, Any]:
    """The view of a visitor's file {name, text}, which is forgotten here."""
    named = asked if isinstance(asked, dict) else {}
    name, text = str(named.get("name", "")), named.get("text")
    if not isinstance(text, str):
        return {"error": say("replay.unreadable", file=name[-80:])}
    if len(text) > LARGEST or len(text.encode("utf-8", "replace")) > LARGEST:
        return {"error": say("replay.too_large", file=name[-80:], most=LARGEST // 2**20)}
    try:
        title = say("replay.title", file=name[-80:])
        return {"view": view(parse(text, name), name[-80:], title)}
    except RiverError as error:
        return {"error": told(error)}


def shell(_: Any = None) -> dict[str, Any]:
    """The one-file replay without a run."""
    return {"html": replay_page([], [])}


def link_recipe(request: gr.Request, card: ModelCard) -> Recipe:
    """What the address of the page asks for."""
    return read_recipe({str(k): str(v) for k, v in dict(request.query_params).items()}, card.name)


def wire_recipe(keeper: Keeper, page: gr.Blocks, asked: Mapping[str, Any], part: gr.HTML) -> None:
    """On opening, fill the controls by the address; Run stays with the visitor."""

    def fill(request: gr.Request) -> list[Any]:
        recipe = link_recipe(request, keeper.card)
        if not recipe.sentences:
            return [gr.skip()] * (len(asked) + 1)
        values = recipe.values
        updates = [_update(name, values[name]) if name in values else gr.skip() for name in asked]
        return [*updates, pack({"sentences": list(recipe.sentences)})]

    page.load(
        fill,
        None,
        [*asked.values(), part],
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    )


def _update(name: str, value: Any) -> Any:
    """A link's threshold may lie below the slider's scale."""
    below = {"minimum": value} if name == "threshold" and value < 0 else {}
    return gr.update(value=value, **below)
