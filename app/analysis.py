"""Below the details: what fits into memory, and the charts. Layout and wiring only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import gradio as gr
from gradio.components.plot import PlotData

from river_core.errors import RiverError
from river_core.records import RunRecord

from .parts import part
from .views import charts, ledger
from .views.charts import Chart
from .views.english import told, with_elements
from .views.run import ModelCard
from .views.snapshot import pack
from .views.wording import say

OF_RUN = ("exits", "similarity", "running")
OF_STUDY = {"kv": ("kv",), "sweep": ("quality", "speed")}
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


class Source(Protocol):
    """What these parts need from behind the page."""

    def records(self, run_id: str) -> list[RunRecord]:
        """A run's records, the upper lane first; raises RiverError."""

    def ledger(self) -> dict[str, Any]:
        """The memory table of the model that is loaded; raises RiverError."""

    def study(self, name: str, values: Mapping[str, Any], session: str) -> Iterator[dict[str, Any]]:
        """Views of a measurement until it has ended; `name` is a key of OF_STUDY."""

    def stop(self, session: str) -> None:
        """Stop the session's run, task or measurement."""

    @property
    def card(self) -> ModelCard:
        """What is known of the model now."""

    def cards(self) -> Iterator[dict[str, Any]]:
        """The top bar until the model is ready or has failed."""


def analysis(source: Source, page: gr.Blocks, asked: Mapping[str, Any], **queue: Any) -> None:
    """Ledger and charts; `asked` are the components of a run, `queue` how measurements wait."""
    table = gr.HTML(pack(ledger.view()), **part("ledger"))
    with gr.Accordion(say("charts.title"), open=False, elem_id="charts") as box:
        shown = gr.Textbox(visible=False)
        dark = gr.Checkbox(visible=False)
        again = gr.Button(say("charts.draw"), elem_id="charts-draw", size="sm", scale=0)
        said = gr.Markdown("", elem_id="charts-said", elem_classes="quiet-text")
        places = _places(OF_RUN)
        gr.Markdown(say("charts.measure.about"), elem_classes="quiet-text")
        with gr.Row():
            buttons = {
                name: gr.Button(
                    say(f"charts.measure.{name}"), elem_id=f"measure-{name}", size="sm", scale=0
                )
                for name in OF_STUDY
            }
            stop = gr.Button(say("charts.measure.stop"), elem_id="measure-stop", size="sm", scale=0)
        state = gr.Markdown("", elem_id="measure-said", elem_classes="quiet-text")
        measured = {name: _places(names) for name, names in OF_STUDY.items()}
    _wire_ledger(source, page, table)
    _wire_run_charts(source, [box.expand, again.click], (shown, dark), [said, *places])
    inputs = [dark, asked["prompt"], asked["threshold"]]
    for name, button in buttons.items():
        _wire_measure(source, name, button, inputs, [state, *measured[name]], queue)

    def halt(request: gr.Request) -> None:
        source.stop(str(request.session_hash))

    stop.click(halt, queue=False, **QUIET)


def _places(names: tuple[str, ...]) -> list[Any]:
    """A plot and the part beneath it for each chart, in order."""
    places: list[Any] = []
    with gr.Row():
        for name in names:
            with gr.Column(min_width=420, elem_classes="plain-place"):
                places.append(gr.Plot(show_label=False, container=False, elem_id=f"chart-{name}"))
                places.append(gr.HTML("", **part(f"chart-{name}")))
    return places


def _filled(found: list[Chart]) -> list[Any]:
    """Values of the places of these charts."""
    values: list[Any] = []
    for chart in found:
        values += [PlotData(type="plotly", plot=chart.plot()), pack(chart.note())]
    return values


def _wire_ledger(source: Source, page: gr.Blocks, table: gr.HTML) -> None:
    def follow() -> Iterator[Any]:
        for _ in source.cards():
            pass
        if source.card.state == "ready":
            try:
                yield pack(ledger.view(source.ledger()))
            except RiverError:
                yield gr.skip()

    page.load(follow, None, table, concurrency_limit=None, **QUIET)


def _wire_run_charts(
    source: Source, events: list[Any], inputs: tuple[Any, Any], outputs: list[Any]
) -> None:
    def draw(run_id: str, dark: bool) -> list[Any]:
        try:
            found = charts.of_run(source.records(run_id), dark=dark)
        except RiverError as error:
            return [with_elements(told(error)), *[gr.skip()] * (len(outputs) - 1)]
        return ["", *_filled(found)]

    gr.on(
        events,
        draw,
        list(inputs),
        outputs,
        js="() => window.River.chartsOf()",
        show_progress_on=[],
        concurrency_limit=None,
        **QUIET,
    )


def _wire_measure(
    source: Source,
    name: str,
    button: gr.Button,
    inputs: list[Any],
    outputs: list[Any],
    queue: Mapping[str, Any],
) -> None:
    def measure(dark: bool, prompt: str, threshold: Any, request: gr.Request) -> Iterator[Any]:
        values = {"prompt": prompt, "threshold": threshold, "lowest": source.card.scale[0]}
        kept = [gr.skip()] * (len(outputs) - 1)
        for view in source.study(name, values, str(request.session_hash)):
            if view["phase"] == "done":
                yield [_said(view), *_filled(_measured(name, view["result"], dark=dark))]
            else:
                yield [_said(view), *kept]

    button.click(
        measure,
        inputs,
        outputs,
        js="(dark, ...rest) => [window.River.chartsOf()[1], ...rest]",
        show_progress_on=[button],
        trigger_mode="once",
        **QUIET,
        **queue,
    )


def _said(view: Mapping[str, Any]) -> str:
    """How far the measurement is, or what was wrong."""
    if view["phase"] in ("working", "failed"):
        return with_elements(str(view["error"] or view["said"]))
    return say(f"charts.measure.{view['phase']}")


def _measured(name: str, result: Mapping[str, Any], *, dark: bool) -> list[Chart]:
    about = result["about"]
    if name == "kv":
        return [charts.kv_chart(result["rows"], about, dark=dark)]
    return [
        charts.quality_chart(result["quality"], about, dark=dark),
        charts.speed_chart(result["speed"], about, dark=dark),
    ]
