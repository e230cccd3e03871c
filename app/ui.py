"""Layout and wiring: which component stands where, which event calls which method of the source.

`Source` is the runner, or a test's stand-in. Model text reaches the page only inside the JSON value
of a `gr.HTML` whose template is fixed; the script writes it with `textContent`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import gradio as gr

from river_core.errors import RiverError

from . import analysis
from .endpoints import wire_api
from .files import files_part, link_recipe, wire_recipe
from .panel import Panel, settings_panel
from .parts import part
from .views.english import told, with_elements
from .views.policies import policy_sentence
from .views.run import ModelCard, Run
from .views.snapshot import card_view, pack, snapshot
from .views.wording import prompts, say, sentences

COMPUTE = "compute"  # one concurrency id for everything that computes
WAITING = 8  # runs that may wait for the one worker at a time
HIGHEST = 1.0  # of the threshold slider; the model's card says where it starts


class Source(analysis.Source, Protocol):
    """What the page needs from behind it."""

    def run(self, values: Mapping[str, Any], session: str) -> Iterator[dict[str, Any]]:
        """Snapshots of a run until it has ended; `values` by the names of `asked.DEFAULTS`."""

    def set_threshold(self, value: Any, session: str) -> None:
        """Of the session's run, from its next token on."""

    def set_resident(self, layers: int | str) -> None:
        """Keep that many backbone layers; raises RiverError."""

    def task(self, kind: str, run_id: str, session: str) -> Iterator[dict[str, Any]]:
        """Views of work on a kept run: "measure" or "safe"."""

    def generate(self, prompt: str, **settings: Any) -> dict[str, Any]:
        """A whole run as JSON; raises RiverError."""

    def compare(self, prompt: str, upper: str, lower: str, **settings: Any) -> dict[str, Any]:
        """Two whole runs and how far they agree, as JSON; raises RiverError."""

    def record(self, run_id: str, lane: str) -> dict[str, Any]:
        """A kept page run as JSON; raises RiverError."""

    def lines(self, run_id: str) -> str:
        """Both records of a kept page run as JSON Lines; raises RiverError."""


def build(source: Source) -> gr.Blocks:
    """The page and the API over `source`; theme and script come with `theme.launch_options`."""
    card = ModelCard("loading", say("model.loading"), "")
    with gr.Blocks(title=say("title"), analytics_enabled=False) as page:
        bar = gr.HTML(pack(card_view(card)), **part("bar"))
        with gr.Row(elem_id="ask", equal_height=True):
            prompt = _prompt_box()
            run = gr.Button(say("run"), variant="primary", elem_id="run", scale=0, min_width=88)
            stop = gr.Button(say("stop"), elem_id="stop", scale=0, min_width=88)
        gr.HTML(**part("alert"))
        files = files_part(source)
        gr.Examples(
            [[p] for p in prompts()],
            prompt,
            label=say("examples"),
            elem_id="examples",
            api_visibility="private",
        )
        lanes = gr.HTML(pack(snapshot(Run("", "idle"), card)), **part("lanes"))
        threshold, tokens, again = _controls()
        gr.HTML(**part("estimate"))
        panel = settings_panel()
        gr.HTML(**part("details"))
        _wire_tasks(source, gr.HTML(**part("tasks")))
        asked = {"prompt": prompt, "threshold": threshold, "max_new_tokens": tokens, **panel.named}
        analysis.analysis(source, page, asked, concurrency_id=COMPUTE, concurrency_limit=WAITING)
        _wire_run(source, (run, again), asked, lanes)
        _wire_stop(source, stop)
        _wire_panel(source, panel, threshold, bar)
        _wire_load(source, page, [bar, threshold, tokens, panel.resident, panel.loaded], run)
        wire_api(source, COMPUTE, WAITING)
        wire_recipe(source, page, asked, files)
    page.queue(default_concurrency_limit=WAITING, api_open=True)
    return page


def _prompt_box() -> gr.Textbox:
    return gr.Textbox(
        prompts()[0],
        label=say("prompt.label"),
        show_label=False,
        placeholder=say("prompt.placeholder"),
        lines=1,
        max_lines=6,
        scale=1,
        elem_id="prompt",
    )


def _controls() -> tuple[gr.Slider, gr.Number, gr.Button]:
    with gr.Row(elem_id="controls"):
        threshold = gr.Slider(
            0.0,
            HIGHEST,
            0.98,
            step=0.0005,
            label=say("threshold.label"),
            info=say("threshold.info"),
            buttons=[],
            scale=4,
            min_width=260,
            elem_id="threshold",
        )
        tokens = gr.Number(
            64,
            label=say("max_tokens.label"),
            info=say("max_tokens.info_unknown"),
            precision=0,
            scale=1,
            min_width=150,
            elem_id="max-tokens",
        )
        again = gr.Button(say("run_at_threshold"), elem_id="again", scale=0, min_width=200)
    return threshold, tokens, again


def _wire_run(
    source: Source, buttons: tuple[gr.Button, ...], asked: Mapping[str, Any], lanes: gr.HTML
) -> None:
    def stream(request: gr.Request, *values: Any) -> Iterator[str]:
        named = dict(zip(asked, values, strict=True))
        for view in source.run(named, str(request.session_hash)):
            yield pack(view)

    named = "Object.fromEntries(order.map((name, i) => [name, values[i]]))"
    gr.on(
        [*(button.click for button in buttons), asked["prompt"].submit],
        stream,
        list(asked.values()),
        lanes,
        js=f"(...values) => {{ const order = {list(asked)}; window.River.sent({named}); "
        "return values.slice(0, order.length); }",
        show_progress="hidden",
        show_progress_on=list(buttons),  # a hidden tracker on an output still draws every frame
        trigger_mode="once",
        concurrency_id=COMPUTE,
        concurrency_limit=WAITING,
        api_visibility="private",
    )


def _wire_stop(source: Source, stop: gr.Button) -> None:
    def halt(request: gr.Request) -> None:
        source.stop(str(request.session_hash))

    stop.click(halt, queue=False, show_progress="hidden", api_visibility="private")


def _wire_tasks(source: Source, part: gr.HTML) -> None:
    def work(event: gr.EventData, request: gr.Request) -> Iterator[str]:
        asked = event._data or {}
        kind, run = str(asked.get("kind")), str(asked.get("run"))
        for view in source.task(kind, run, str(request.session_hash)):
            yield pack(view)

    part.submit(
        work,
        None,
        part,
        show_progress="hidden",
        trigger_mode="once",
        concurrency_id=COMPUTE,
        concurrency_limit=WAITING,
        api_visibility="private",
    )


def _wire_panel(source: Source, panel: Panel, threshold: gr.Slider, bar: gr.HTML) -> None:
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    for lane, sentence in panel.sentences.items():
        panel.named[lane].change(policy_sentence, panel.named[lane], sentence, queue=False, **quiet)

    def live(value: Any, request: gr.Request) -> None:
        try:
            source.set_threshold(value, str(request.session_hash))
        except RiverError as error:
            raise gr.Error(with_elements(told(error)), print_exception=False) from error

    threshold.change(live, threshold, queue=False, trigger_mode="always_last", **quiet)

    def keep(layers: Any) -> tuple[Any, str]:
        try:
            source.set_resident(layers)
        except RiverError as error:
            return gr.skip(), with_elements(told(error))
        card = source.card
        words = {"resident": card.resident, "layers": card.num_layers}
        return pack(card_view(card)), say("settings.resident.done", **words)

    panel.apply.click(keep, panel.resident, [bar, panel.said], concurrency_limit=None, **quiet)


def _wire_load(source: Source, page: gr.Blocks, outputs: list[Any], button: gr.Button) -> None:
    def follow(request: gr.Request) -> Iterator[tuple[Any, ...]]:
        asked = link_recipe(request, source.card).values.get("threshold")
        for view in source.cards():
            card = source.card
            if card.state != "ready":
                yield (pack(view), *[gr.skip()] * 4)
                continue
            default = say("threshold.default", threshold=f"{card.threshold:.3f}")
            lowest, step = card.scale
            words = sentences((say("threshold.info"), default, with_elements(card.advice)))
            yield (
                pack(view),
                gr.update(
                    value=card.threshold if asked is None else asked,
                    info=words,
                    minimum=lowest if asked is None else min(lowest, asked),
                    step=step,
                ),
                gr.update(info=say("max_tokens.info", capacity=card.capacity)),
                gr.update(
                    value=card.resident,
                    info=say("settings.resident.info", layers=card.num_layers),
                ),
                say("settings.load", entry=card.entry_layer),
            )

    page.load(
        follow,
        None,
        outputs,
        show_progress="hidden",
        show_progress_on=[button],
        concurrency_limit=None,
        api_visibility="private",
    )
