"""Finished charts of a run and of a study: records or rows in, a plotly figure, its words and its
numbers out. Measures nothing; plotly is imported when a chart is made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from river_core.figures import COLOURS, policy_line
from river_core.metrics import exit_histogram, running_shares, similarity_quartiles
from river_core.records import RunRecord

from . import colour
from .english import RefusedRecord
from .policies import first_exit, policy_name
from .run import LANES
from .wording import listed, listed_apart, say

INK = {False: "#1b1b1f", True: "#ececf0"}  # by "dark"
GRID = {False: "#dcdce1", True: "#3a3a42"}
HEIGHT = 340
MOST_COLUMNS = 400  # of the heat map; a longer answer is drawn at evenly spread tokens
CONFIG = {"displaylogo": False, "modeBarButtons": [["toImage"]], "scrollZoom": False}

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Chart:
    """A figure, what was measured on what, and its numbers, the header row first."""

    name: str
    figure: Any
    caption: str
    table: list[list[Any]]

    def plot(self) -> str:
        """The figure as JSON for the browser, with what its tool bar offers."""
        return json.dumps({**json.loads(self.figure.to_json()), "config": CONFIG})

    def note(self) -> dict[str, Any]:
        """What stands beneath the figure, the rows of its CSV, and each theme's inks."""
        return {"name": self.name, "caption": self.caption, "table": self.table, "inks": _inks()}


def of_run(records: Sequence[RunRecord], *, dark: bool) -> list[Chart]:
    """Exit layers, similarity by layer, and layers still run, of a run's lanes, the upper first.

    Raises RecordError for an answer that is too short.
    """
    if len(records[0].tokens) < 2:
        raise RefusedRecord(say("charts.few"))
    return [
        exit_chart(records, dark=dark),
        similarity_chart(records[0], dark=dark),
        running_chart(records[0], dark=dark),
    ]


def exit_chart(records: Sequence[RunRecord], *, dark: bool) -> Chart:
    """Bars of tokens by exit layer: each bar in its exit layer's fill, the lower lane hatched."""
    from plotly import graph_objects

    layers = records[0].header.num_layers
    numbers = [exit_histogram(record) for record in records]
    names = _lane_names(records)
    figure = graph_objects.Figure(layout=_layout("exits", dark))
    for lane, counts in enumerate(numbers):
        fills = [colour.FILLS[colour.bin_of(layer, layers)] for layer in counts]
        hatch = {"shape": "/" if lane else "", "fgcolor": INK[dark], "fillmode": "overlay"}
        figure.add_bar(
            x=list(counts),
            y=list(counts.values()),
            name=names[lane],
            marker={
                "color": fills,
                "line": {"color": _frame(dark), "width": 1},
                "pattern": hatch,
            },
        )
    figure.update_layout(barmode="group", bargap=0.1)
    figure.update_xaxes(range=[0.4, layers + 0.6])
    table: list[list[Any]] = [["exit layer", *names]]
    for layer in range(min(1, *map(min, numbers)), layers + 1):
        table.append([layer, *(counts.get(layer, 0) for counts in numbers)])
    runs = listed_apart(map(_named, records))
    return Chart("exits", figure, say("charts.exits.caption", runs=runs), table)


def running_chart(record: RunRecord, *, dark: bool) -> Chart:
    """A heat map, layers x tokens: of the tokens so far, the share that ran a layer."""
    from plotly import graph_objects

    shares = [[round(share, 3) for share in row] for row in running_shares(record)]
    step = -(-len(shares[0]) // MOST_COLUMNS)
    tokens = list(range(2, len(record.tokens) + 1))
    last = len(colour.FILLS) - 1
    figure = graph_objects.Figure(layout=_layout("running", dark))
    figure.add_heatmap(
        z=[row[::step] for row in shares],
        x=tokens[::step],
        y=list(range(1, len(shares) + 1)),
        zmin=0,
        zmax=1,
        colorscale=[[i / last, fill] for i, fill in enumerate(colour.FILLS)],
        colorbar={
            "title": {"text": say("charts.running.share"), "side": "right"},
            "tickformat": ".0%",
            "outlinewidth": 0,
        },
        hovertemplate=say("charts.running.hover", x="%{x}", y="%{y}", z="%{z:.0%}")
        + "<extra></extra>",
    )
    table: list[list[Any]] = [["token", *(f"layer {n + 1}" for n in range(len(shares)))]]
    table += [[token, *(row[i] for row in shares)] for i, token in enumerate(tokens)]
    return Chart("running", figure, say("charts.running.caption", runs=_named(record)), table)


def similarity_chart(record: RunRecord, *, dark: bool) -> Chart:
    """Median and quartiles by layer, and the threshold that was last in force."""
    from plotly import graph_objects

    found = [(n, q) for n, q in enumerate(similarity_quartiles(record), start=1) if q is not None]
    layers = [n for n, _ in found]
    low, middle, high = ([round(q[i], 4) for _, q in found] for i in range(3))
    threshold = record.tokens[-1].threshold  # the one last in force
    figure = graph_objects.Figure(layout=_layout("similarity", dark))
    edge = {"width": 0, "color": COLOURS[0]}
    figure.add_scatter(x=layers, y=high, line=edge, showlegend=False, hoverinfo="skip")
    figure.add_scatter(
        x=layers,
        y=low,
        line=edge,
        fill="tonexty",
        fillcolor="rgba(0,114,178,0.3)",
        name=say("charts.similarity.band"),
        hoverinfo="skip",
    )
    name = say("charts.similarity.median")
    figure.add_scatter(
        x=layers, y=middle, name=name, mode="lines+markers", line={"color": COLOURS[0]}
    )
    figure.update_xaxes(range=[0.4, record.header.num_layers + 0.6])
    if first_exit(str(record.header.settings.get("policy")), record.header.entry_layer) is not None:
        figure.add_hline(
            y=threshold,
            line={"dash": "dash", "color": COLOURS[3]},
            annotation_text=say("charts.similarity.threshold", threshold=f"{threshold:.4g}"),
        )
    key = "caption" if record.full_trace is not None else "caption_ran"
    caption = say(f"charts.similarity.{key}", runs=_named(record))
    table: list[list[Any]] = [["layer", "lower quartile", "median", "upper quartile"]]
    table += map(list, zip(layers, low, middle, high, strict=True))
    return Chart("similarity", figure, caption, table)


def kv_chart(rows: Rows, about: Mapping[str, Any], *, dark: bool) -> Chart:
    """Cosine by layer; `rows` hold policy, layer, key, value, count. Values solid, keys dashed."""
    from plotly import graph_objects

    figure = graph_objects.Figure(layout=_layout("kv", dark))
    for number, policy in enumerate(dict.fromkeys(row["policy"] for row in rows)):
        own = [row for row in rows if row["policy"] == policy]
        for kind, dash in (("value", "solid"), ("key", "dash")):
            figure.add_scatter(
                x=[row["layer"] for row in own],
                y=[round(row[kind], 5) for row in own],
                name=say(f"charts.kv.{kind}s", policy=policy_name(policy)),
                line={"color": COLOURS[number], "dash": dash},
            )
    table: list[list[Any]] = [["policy", "layer", "key cosine", "value cosine", "rows"]]
    table += [[r["policy"], r["layer"], r["key"], r["value"], r["count"]] for r in rows]
    return Chart("kv", figure, say("charts.kv.caption", **about), table)


def quality_chart(rows: Rows, about: Mapping[str, Any], *, dark: bool) -> Chart:
    """Next-token match over the mean exit layer, a line per policy; rows as in `strategies.py`."""
    return _sweep_chart("quality", rows, about, ("match",), dark=dark)


def speed_chart(rows: Rows, about: Mapping[str, Any], *, dark: bool) -> Chart:
    """Tokens per second over the mean exit layer, the bars from the slowest to the fastest."""
    return _sweep_chart(
        "speed", rows, about, ("tokens_per_second", "slowest", "fastest"), dark=dark
    )


def _sweep_chart(
    name: str, rows: Rows, about: Mapping[str, Any], keys: tuple[str, ...], *, dark: bool
) -> Chart:
    from plotly import graph_objects

    figure = graph_objects.Figure(layout=_layout(name, dark))
    spread = (keys[1], keys[2]) if len(keys) > 1 else None
    for number, (policy, head) in enumerate(dict.fromkeys((r["policy"], r["head"]) for r in rows)):
        own = [row for row in rows if (row["policy"], row["head"]) == (policy, head)]
        own.sort(key=lambda row: row["mean_exit_layer"])
        label = policy_name(policy)
        if name == "speed" and head == "lens":
            label = say("charts.speed.lens", policy=label)
        figure.add_trace(policy_line(number, label, own, keys[0], spread=spread))
    if name == "speed":
        figure.update_yaxes(rangemode="tozero")
    columns = ["policy", "head", "point", "mean_exit_layer", *keys]
    table: list[list[Any]] = [columns, *([row[key] for key in columns] for row in rows)]
    return Chart(name, figure, say(f"charts.{name}.caption", **about), table)


def _layout(name: str, dark: bool) -> dict[str, Any]:
    """Title and axis names of a chart in the theme's ink, on no ground of its own."""
    across = "charts.mean_exit" if name in ("quality", "speed") else f"charts.{name}.x"
    axis = {"gridcolor": GRID[dark], "zeroline": False, "linecolor": GRID[dark], "fixedrange": True}
    return {
        "template": "none",
        "height": HEIGHT,
        "title": {
            "text": say(f"charts.{name}.title"),
            "x": 0,
            "xref": "paper",
            "font": {"size": 15},
        },
        "font": {"color": INK[dark], "size": 12, "family": "system-ui, DejaVu Sans, sans-serif"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 56, "r": 16, "t": 44, "b": 48},
        "legend": {"orientation": "h", "y": -0.3, "yanchor": "top", "x": 0},
        "dragmode": False,
        "xaxis": {**axis, "title": {"text": say(across)}},
        "yaxis": {**axis, "title": {"text": say(f"charts.{name}.y")}},
    }


def _inks() -> dict[str, list[str]]:
    """By theme every colour of a figure that is another one in the other theme, in one order."""
    themes = {"light": False, "dark": True}
    return {name: [INK[dark], GRID[dark], _frame(dark)] for name, dark in themes.items()}


def _frame(dark: bool) -> str:
    return colour.FRAME["dark" if dark else "light"]


def _policy(record: RunRecord) -> str:
    policy = record.header.settings.get("policy")
    return say("charts.unknown") if policy is None else policy_name(str(policy))


def _lane_names(records: Sequence[RunRecord]) -> list[str]:
    """The lanes' policies; where both are the same one, with their places."""
    names = [_policy(record) for record in records]
    if len(set(names)) == len(names):
        return names
    return [listed((name, say(f"charts.{lane}"))) for name, lane in zip(names, LANES, strict=True)]


def _named(record: RunRecord) -> str:
    header = record.header
    words = {"model": header.model, "device": header.device, "policy": _policy(record)}
    return say("charts.run", tokens=len(record.tokens), **words)
