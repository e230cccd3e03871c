"""Studies as plotly figures: rows of numbers in, a figure or its files out.

The only file of river_core that imports plotly, when a figure is made. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import SettingsError

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8A8A00", "#000000")
GREY = "#999999"
SYMBOLS = (  # two more than colours, so that 40 policies and heads look different
    *("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon"),
    *("hourglass", "bowtie"),
)

Row = Mapping[str, Any]


def sweep_figure(rows: Sequence[Row], title: str) -> Any:
    """Two panels over the mean exit layer: match (head river only), and tok/s with min..max.

    `rows` are grid.rows'; a plotly Figure.
    """
    figure = _panels(title, "agreement, exact river tail", "speed, greedy free runs")
    names = list(dict.fromkeys((row["policy"], row["head"]) for row in rows))
    for n, (policy, head) in enumerate(names):
        own = [row for row in rows if (row["policy"], row["head"]) == (policy, head)]
        own.sort(key=lambda row: row["mean_exit_layer"])
        label = f"{policy}, untrained exit head" if head == "lens" else f"{policy}, head {head}"
        if head != "lens":
            _line(figure, (1, n), label, own, "match")
        timed = [row for row in own if row["tokens_per_second"] is not None]
        if timed:
            ends, legend = ("slowest", "fastest"), head == "lens"
            _line(figure, (2, n), label, timed, "tokens_per_second", spread=ends, legend=legend)
    figure.update_xaxes(title_text="mean exit layer")
    figure.update_yaxes(title_text="next-token match", row=1, col=1)
    figure.update_yaxes(title_text="tokens per second", rangemode="tozero", row=1, col=2)
    return figure


def strategies_figure(quality: Sequence[Row], speed: Sequence[Row], title: str) -> Any:
    """Quality (head fixed) and speed (own heads) in two panels that share no axis.

    Rows hold `policy`, `mean_exit_layer`, `point` and `match`, or `ms_per_token`, `least`, `most`.
    A plotly Figure.
    """
    figure = _panels(title, "quality: head fixed, only the cache differs", "speed: own exit heads")
    order = list(dict.fromkeys(row["policy"] for row in [*quality, *speed]))
    in_left = {row["policy"] for row in quality}
    for n, policy in enumerate(order):
        left = sorted(_of(quality, policy), key=lambda row: row["mean_exit_layer"])
        right = sorted(_of(speed, policy), key=lambda row: row["mean_exit_layer"])
        if left:
            _line(figure, (1, n), policy, left, "match")
        if right:
            ends, legend = ("least", "most"), policy not in in_left
            _line(figure, (2, n), policy, right, "ms_per_token", spread=ends, legend=legend)
    figure.update_xaxes(title_text="mean exit layer")
    figure.update_yaxes(title_text="next-token match", row=1, col=1)
    figure.update_yaxes(title_text="ms per token", rangemode="tozero", row=1, col=2)
    return figure


def bench_figure(lines: Sequence[Row]) -> Any:
    """Speed of each row with its slowest and fastest round, and where a token's time goes.

    `lines` are those of one or several bench reports, headers and rows; over several prompt
    lengths speed is a line per row. Bars of other engines are grey. A plotly Figure.
    """
    runs = _runs(lines)
    head, rows = runs[0]
    title = f"{head['model']} on {head['processor']}, {head['threads']} threads"
    title += f"<br>{head['label']}" if head.get("label") else ""
    panels = ("tokens per second, slowest to fastest", "ms per token by part")
    figure = _panels(title, *panels, apart=0.2)  # room for the names of the right one
    if len(runs) == 1:
        _rate_bars(figure, head, rows)
    else:
        _rate_lines(figure, runs)
    _parts(figure, runs[-1])
    figure.update_layout(
        barmode="stack",
        height=280 + 34 * len(rows),
        margin={"l": 230 if len(runs) == 1 else 80, "t": 110, "b": 150},
        legend={"yref": "container", "y": 0.07, "yanchor": "bottom"},
        legend2={
            "orientation": "h",
            "traceorder": "normal",
            "x": 0.6,
            "yref": "container",
            "y": 0.01,
            "yanchor": "bottom",
        },
    )
    return figure


def _runs(lines: Sequence[Row]) -> list[tuple[Row, list[Row]]]:
    """Each header with its rows."""
    runs: list[tuple[Row, list[Row]]] = []
    for line in lines:
        if line["type"] == "bench":
            runs.append((line, []))
        elif line["type"] == "row":
            runs[-1][1].append(line)
    return runs


def _spread(rows: Sequence[Row]) -> Row:
    """Error bars from the slowest to the fastest round."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [row["fastest"] - row["tokens_per_second"] for row in rows],
        "arrayminus": [row["tokens_per_second"] - row["slowest"] for row in rows],
    }


def _rate_bars(figure: Any, head: Row, rows: Sequence[Row]) -> None:
    """A bar per row, the first on top."""
    from plotly import graph_objects

    bars = graph_objects.Bar(
        x=[row["tokens_per_second"] for row in rows],
        y=[row["name"] for row in rows],
        orientation="h",
        error_x=_spread(rows),
        text=[f"{row['tokens_per_second']:.1f}" for row in rows],
        textposition="inside",
        insidetextanchor="start",
        marker_color=[GREY if row["name"] in head["peers"] else COLOURS[5] for row in rows],
        showlegend=False,
    )
    figure.add_trace(bars, row=1, col=1)
    figure.update_yaxes(autorange="reversed", row=1, col=1)
    figure.update_xaxes(title_text="tokens per second", rangemode="tozero", row=1, col=1)


def _rate_lines(figure: Any, runs: Sequence[tuple[Row, list[Row]]]) -> None:
    """A line per row over the prompt lengths."""
    from plotly import graph_objects

    for n, name in enumerate(row["name"] for row in runs[0][1]):
        own = [(head["prompt_tokens"], row) for head, rows in runs for row in _named(rows, name)]
        of_lengths = [row for _, row in own]
        line = graph_objects.Scatter(
            x=[length for length, _ in own],
            y=[row["tokens_per_second"] for row in of_lengths],
            error_y=_spread(of_lengths),
            name=name,
            mode="lines+markers",
            marker={"color": COLOURS[n % len(COLOURS)], "symbol": SYMBOLS[n % len(SYMBOLS)]},
        )
        figure.add_trace(line, row=1, col=1)
    lengths = [head["prompt_tokens"] for head, _ in runs]
    figure.update_yaxes(title_text="tokens per second", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title_text="prompt, tokens", type="log", tickvals=lengths, row=1, col=1)


def _named(rows: Sequence[Row], name: str) -> list[Row]:
    return [row for row in rows if row["name"] == name]


def _parts(figure: Any, run: tuple[Row, list[Row]]) -> None:
    """A stacked bar per row that was profiled, at the longest prompt."""
    from plotly import graph_objects

    head, rows = run
    timed = [row for row in rows if row["parts"] is not None]
    for n, part in enumerate(timed[0]["parts"] if timed else ()):
        bar = graph_objects.Bar(
            x=[row["parts"][part] for row in timed],
            y=[row["name"] for row in timed],
            orientation="h",
            name=part,
            marker_color=COLOURS[n],
            legend="legend2",
        )
        figure.add_trace(bar, row=1, col=2)
    figure.update_yaxes(autorange="reversed", row=1, col=2)
    title = f"ms per token after a prompt of {head['prompt_tokens']} tokens"
    figure.update_xaxes(title_text=title, row=1, col=2)


def save_figure(figure: Any, stem: Path) -> None:
    """Write STEM.html (plotly from its CDN) and STEM.json. SettingsError where that fails."""
    try:
        stem.with_suffix(".html").write_text(
            figure.to_html(include_plotlyjs="cdn", div_id="figure"), encoding="utf-8", newline="\n"
        )
        text = figure.to_json(pretty=True) + "\n"
        stem.with_suffix(".json").write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise SettingsError(f"{stem}.html or .json cannot be written ({error}).") from error


def _of(rows: Sequence[Row], policy: str) -> list[Row]:
    return [row for row in rows if row["policy"] == policy]


def _panels(title: str, left: str, right: str, apart: float | None = None) -> Any:
    from plotly.subplots import make_subplots

    titles = (left, right)
    figure = make_subplots(rows=1, cols=2, subplot_titles=titles, horizontal_spacing=apart)
    figure.update_layout(
        template="none", title=title, legend={"orientation": "h", "y": -0.2}, width=1100, height=520
    )
    return figure


def _line(
    figure: Any,
    place: tuple[int, int],
    label: str,
    rows: Sequence[Row],
    name: str,
    **options: Any,
) -> None:
    """A policy's line in a panel; `place` is panel and number of the policy."""
    column, number = place
    figure.add_trace(policy_line(number, label, rows, name, **options), row=1, col=column)


def policy_line(
    number: int,
    label: str,
    rows: Sequence[Row],
    name: str,
    *,
    spread: tuple[str, str] | None = None,
    legend: bool = True,
) -> Any:
    """One policy's points over the mean exit layer, joined; its `number` gives colour and symbol.

    `name` is the key of the height, `spread` names the ends of its error bars. A plotly Scatter.
    """
    from plotly import graph_objects

    values = [row[name] for row in rows]
    bars = None
    if spread is not None:
        least, most = ([row[end] for row in rows] for end in spread)
        bars = {
            "type": "data",
            "symmetric": False,
            "array": [m - v for m, v in zip(most, values, strict=True)],
            "arrayminus": [v - m for m, v in zip(least, values, strict=True)],
        }
    style = {"color": COLOURS[number % len(COLOURS)], "symbol": SYMBOLS[number % len(SYMBOLS)]}
    return graph_objects.Scatter(
        x=[row["mean_exit_layer"] for row in rows],
        y=values,
        error_y=bars,
        mode="lines+markers",
        name=label,
        legendgroup=label,
        showlegend=legend,
        marker={**style, "size": 8},
        line={"color": style["color"], "width": 1},
        text=[_point(row) for row in rows],
        hovertemplate="%{text}<br>exit layer %{x:.2f}<br>%{y:.4g}<extra>%{fullData.name}</extra>",
    )


def _point(row: Row) -> str:
    if "point" in row:
        return str(row["point"])
    return "" if row["threshold"] is None else f"threshold {row['threshold']:g}"
