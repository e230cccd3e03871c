"""Charts: the figures and their tables hold the records' numbers, in both themes."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import quantiles
from typing import Any

import pytest

from app.recorded import read
from app.shipped import RUNS
from app.views import charts, colour
from app.views.charts import Chart
from river_core.errors import RecordError
from river_core.records import RunRecord
from tests.ui.made_studies import KV, QUALITY, SPEED
from tests.unit.made_records import run

ABOUT = {
    "model": "m",
    "device": "cpu",
    "threshold": "0.98",
    "prompt": "p",
    "tokens": 9,
    "rounds": 2,
}


@pytest.fixture(scope="module")
def records() -> list[RunRecord]:
    return read(RUNS / "1-rain.jsonl")


def traces(chart: Chart) -> list[dict[str, Any]]:
    return list(json.loads(chart.plot())["data"])


def test_exit_layers_of_both_lanes(records: list[RunRecord]) -> None:
    chart = charts.exit_chart(records, dark=False)
    layers = records[0].header.num_layers
    for number, (trace, record) in enumerate(zip(traces(chart), records, strict=True)):
        exits = [t.exit_layer for t in record.tokens[1:]]
        assert dict(zip(trace["x"], trace["y"], strict=True)) == {e: exits.count(e) for e in exits}
        fills = [colour.FILLS[colour.bin_of(e, layers)] for e in trace["x"]]
        assert trace["marker"]["color"] == fills
        assert trace["name"] == ("River", "Backbone")[number]
        assert [row[number + 1] for row in chart.table[1:]] == [
            exits.count(layer) for layer in range(1, layers + 1)
        ]
    same = charts.exit_chart([records[0], records[0]], dark=False)
    assert same.table[0] == ["exit layer", "River, above", "River, below"]
    assert charts.exit_chart(records[:1], dark=False).table[0] == ["exit layer", "River"]


def test_the_share_of_tokens_that_still_run_a_layer(records: list[RunRecord]) -> None:
    chart = charts.running_chart(records[0], dark=False)
    (trace,) = traces(chart)
    exits = [t.exit_layer for t in records[0].tokens[1:]]
    for layer, token in ((1, 2), (5, 3), (14, 40), (30, len(exits) + 1)):
        so_far = exits[: token - 1]
        share = sum(e >= layer for e in so_far) / len(so_far)
        assert trace["z"][layer - 1][token - 2] == pytest.approx(share, abs=5e-4)
        assert chart.table[token - 1][layer] == trace["z"][layer - 1][token - 2]
    assert trace["colorscale"][0][1] == colour.FILLS[0]
    assert trace["colorscale"][-1] == [1.0, colour.FILLS[-1]]


def test_a_long_answer_is_drawn_at_fewer_tokens_but_saved_whole() -> None:
    long = run(list(range(2000)))
    chart = charts.running_chart(long, dark=False)
    (trace,) = traces(chart)
    assert len(trace["x"]) == len(trace["z"][0]) <= charts.MOST_COLUMNS
    assert len(chart.table) == 2000


def test_similarity_is_median_and_quartiles(records: list[RunRecord]) -> None:
    record = records[0]
    assert record.full_trace is not None
    high, low, median = traces(charts.similarity_chart(record, dark=False))
    for layer in (1, 7, 30):
        values = [row[layer - 1] for row in record.full_trace[1:]]
        expected = quantiles(values, n=4, method="inclusive")
        got = [trace["y"][layer - 1] for trace in (low, median, high)]
        assert got == pytest.approx(expected, abs=1e-4)
    ran = charts.similarity_chart(replace(record, full_trace=None), dark=False)
    assert "tokens that ran a layer" in ran.caption
    depth = max(t.exit_layer for t in record.tokens[1:])
    assert len(ran.table) == depth + 1
    both = [charts.similarity_chart(r, dark=False).plot() for r in records]
    shapes = [len(json.loads(plot)["layout"].get("shapes", [])) for plot in both]
    assert shapes == [1, 0], "only a lane that leaves by the threshold has its line"


def test_studies_are_drawn_as_measured() -> None:
    kv = charts.kv_chart(KV, ABOUT, dark=False)
    values, keys = traces(kv)[:2]
    assert keys["y"] == [round(row["key"], 5) for row in KV[:30]] and set(values["y"]) == {0.9}
    assert len(kv.table) == 61
    quality = charts.quality_chart(QUALITY, ABOUT, dark=False)
    assert [trace["y"] for trace in traces(quality)] == [[0.9], [0.4]]
    speed = charts.speed_chart(SPEED, ABOUT, dark=False)
    assert traces(speed)[1]["name"] == "KV mask, untrained exit head"
    assert traces(speed)[0]["error_y"]["array"] == [3.0]
    assert speed.table[1] == ["river", None, "threshold 0.97", 12.5, 30.0, 28.0, 33.0]
    assert "Says nothing of quality" in speed.caption


@pytest.mark.parametrize("dark", [False, True])
def test_every_chart_has_title_axes_caption_and_the_themes_ink(
    records: list[RunRecord], dark: bool
) -> None:
    made = charts.of_run(records, dark=dark)
    made += [
        charts.kv_chart(KV, ABOUT, dark=dark),
        charts.quality_chart(QUALITY, ABOUT, dark=dark),
        charts.speed_chart(SPEED, ABOUT, dark=dark),
    ]
    ground = "#141416" if dark else "#ffffff"
    for chart in made:
        layout = json.loads(chart.plot())["layout"]
        assert layout["title"]["text"] and chart.caption.endswith(".")
        assert layout["xaxis"]["title"]["text"] and layout["yaxis"]["title"]["text"]
        assert layout["paper_bgcolor"] == layout["plot_bgcolor"] == "rgba(0,0,0,0)"
        assert colour.contrast(layout["font"]["color"], ground) > 7
        assert len({len(row) for row in chart.table}) == 1
    assert [chart.name for chart in made[:3]] == ["exits", "similarity", "running"]


def test_one_token_is_too_little() -> None:
    with pytest.raises(RecordError, match="fewer than two tokens"):
        charts.of_run([run([1])], dark=False)
