"""The app's views of a run: packing, snapshots and their window, read-outs, the record as JSON."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from app.views import agreement, numbers
from app.views.packing import pack_trace, unpack_trace
from app.views.readouts import readouts, time_saved
from app.views.record import record_json
from app.views.run import ModelCard, Run
from app.views.snapshot import (
    FIELDS,
    append,
    card_view,
    pack,
    pack_token,
    snapshot,
)
from app.views.window import OVERLAP, WHOLE_EVERY, Window
from app.views.wording import say
from river_core.records import RunHeader, RunRecord
from tests.ui.synthetic import HOSTILE, LAYERS, WORDS, prompt_record, spoken, summary, token

CARD = ModelCard("ready", "Ready", "m", "packaged", "cpu", LAYERS, 0.98, 4096)


def make_run(
    texts: list[tuple[str, str]], exits: list[int], *, summed: bool = True, rate: float = 33.9
) -> Run:
    """A River lane over `texts` and a backbone lane that agrees but for its last token."""
    run = Run("id", "done")
    rng = random.Random(1)
    for lane in run.lanes:
        lane.num_layers, lane.phase = LAYERS, "done"
        lane.prompt = prompt_record(LAYERS if lane.name == "lower" else 5)
        for i, (text, raw) in enumerate(texts):
            layers = LAYERS if lane.name == "lower" else exits[i % len(exits)]
            append(lane, token(i, text, raw, layers, 11, rng))
        if summed:
            mean = LAYERS if lane.name == "lower" else 14.0
            lane.summary = summary(mean, 27.1 if lane.name == "lower" else rate)
    return run


def cells(packed: str) -> list[dict]:
    return [dict(zip(FIELDS, json.loads(line), strict=True)) for line in packed.splitlines()]


# Packing


def test_traces_pack_to_three_digits_each() -> None:
    values = [-1.0, -0.1234, 0.0, 0.9, 0.98004, 0.9999, 1.0]
    packed = pack_trace(values)
    assert len(packed) == 3 * len(values)
    assert unpack_trace(packed) == [round(v, 4) for v in values]


def test_a_snapshot_carries_the_lines_from_a_start() -> None:
    run = make_run(spoken(WORDS), [4, 14, 30])
    view = snapshot(run, CARD, {"upper": 50, "lower": 60})
    river = view["lanes"]["upper"]
    assert river["from"] == 50 and river["tokens"].splitlines() == run.upper.lines[50:]
    assert view["lanes"]["lower"]["tokens"] == ""
    whole = snapshot(run, CARD)["lanes"]["upper"]
    assert whole["from"] == 0 and len(whole["tokens"].splitlines()) == len(run.upper.tokens)


@pytest.mark.parametrize("lost", [(), (3, 4, 5), tuple(range(2, 40)), (1, 2, 3, 4, 5, 6, 7)])
def test_a_page_that_misses_snapshots_finds_every_token(lost: tuple[int, ...]) -> None:
    window, have, behind = Window(), 0, 0
    for number in range(60):
        count = 7 * number
        start = window.starts({"upper": count}, whole=number == 59)["upper"]
        if number in lost:
            continue
        have = count if start <= have else have
        behind = behind + 1 if have < count else 0
        assert behind < WHOLE_EVERY
    assert have == 7 * 59


def test_most_snapshots_are_small() -> None:
    window = Window()
    sent = [100 * n - window.starts({"upper": 100 * n})["upper"] for n in range(100)]
    assert sorted(sent)[80] == 100 * OVERLAP


def test_packed_tokens_hold_the_record() -> None:
    record = token(3, " sky", "", 14, 11, random.Random(0))
    cell = cells(pack_token(record, LAYERS))[0]
    assert cell["text"] == "sky" and cell["gap"] == 1 and cell["exit"] == 14
    assert cell["bin"] == 2 and cell["position"] == 14 and cell["kv"] == "b14r16"
    assert unpack_trace(cell["trace"]) == [round(s, 4) for s in record.similarities]
    assert cell["probability"] == pytest.approx(0.6703)
    assert cell["alternatives"][1] == ["·river", pytest.approx(0.1496), 5]


def test_a_snapshot_is_json_and_small() -> None:
    run = make_run(spoken(WORDS) * 7, [4, 14, 30])
    view = snapshot(run, CARD)
    text = json.dumps(view, allow_nan=False)
    assert json.loads(text) == view
    tokens = sum(len(lane.tokens) for lane in run.lanes)
    assert len(text) / tokens < 700


def test_a_packed_view_holds_no_tag() -> None:
    run = make_run([(text, "") for text in HOSTILE], [14])
    view = snapshot(run, CARD)
    assert "<" not in pack(view) and json.loads(pack(view)) == view
    assert json.loads(pack(card_view(CARD)))["chips"][0][0] == "m"


def test_a_snapshot_counts_and_compares() -> None:
    run = make_run(spoken(["a", "b", "c"]), [4, 14, 30])
    run.lower.tokens[1] = dataclasses.replace(run.lower.tokens[1], token_id=-1)
    view = snapshot(run, CARD)
    assert view["difference"] == 1
    assert view["lanes"]["lower"]["different"] == "first different token: b (number 2)"
    assert [e["count"] for e in view["legend"]] == [1, 0, 1, 0, 0, 0, 1]
    assert view["legend"][0]["text"] == "1–5" and view["legend"][-1]["text"] == "never left (30)"


def test_where_answers_part() -> None:
    assert agreement.first_difference([1, 2, 3], [1, 2], finished=False) is None
    assert agreement.first_difference([1, 2, 3], [1, 2], finished=True) == 2
    assert agreement.first_difference([1, 9], [1, 2], finished=False) == 1
    assert agreement.agreeing([1, 2, 3], [1, 2, 4, 5]) == (2, 3)
    assert agreement.agreeing([], [1]) == (0, 0)


# Read-outs


def tile(view: dict, key: str) -> dict:
    return next(t for t in view["tiles"] if t["key"] == key)


def test_what_is_not_measured_is_a_dash() -> None:
    view = readouts(Run("x"))
    assert {t["value"] for t in view["tiles"]} == {"—"}
    assert all(cell == "—" for row in view["rows"] for cell in row[1:])
    assert view["memory"] == [] and view["machine"] == []


def test_a_slow_down_is_shown() -> None:
    view = readouts(make_run(spoken(WORDS), [4, 30], rate=20.0))
    rate, saved = tile(view, "upper_rate"), tile(view, "saved")
    assert rate["bad"] and rate["note"] == "0.74× Backbone: a slow-down"
    assert saved["bad"] and saved["value"] == "53 % → −36 %" and "lost" in saved["note"]
    assert time_saved(20.0, 27.1) == pytest.approx(-0.355)


def test_a_gain_is_shown() -> None:
    view = readouts(make_run(spoken(WORDS), [4, 30]))
    assert tile(view, "upper_rate")["note"] == "1.25× Backbone"
    assert tile(view, "saved")["value"] == "53 % → 20 %"
    assert tile(view, "agreement")["value"] == "60 of 60"
    rows = {row[0]: row[1:] for row in view["rows"]}
    assert rows[say("row.depth")] == ["5 of 30 layers", "30 of 30 layers"]
    assert rows[say("row.decision")] == ["41 µs", "—"]
    assert rows[say("row.prefill")] == ["214 ms", "214 ms"]
    labels = {part["part"]: part["text"] for part in view["memory"]}
    assert labels["kv"] == "90 MiB" and labels["norms"] == "0.1 MiB"
    assert sum(part["share"] for part in view["memory"]) == pytest.approx(1, abs=0.001)
    assert ["kernel, 576x576", "bf16 mkldnn"] in view["machine"]


def test_live_numbers_before_the_summary() -> None:
    run = make_run(spoken(["a", "b", "c"]), [30, 4, 8], summed=False)
    view = readouts(run)
    assert tile(view, "mean_exit")["value"] == "6.0 / 30"
    assert tile(view, "upper_rate")["value"] == numbers.decimal(2 / 0.058)


def test_units() -> None:
    assert numbers.mebibytes(3 * 2**29) == "1.50 GiB"
    assert numbers.mebibytes(None) == "—"
    assert numbers.seconds(1.239) == "1.24 s"
    assert numbers.spans("bbrrm") == [("b", 1, 2), ("r", 3, 4), ("m", 5, 5)]


def make_record() -> RunRecord:
    run = make_run(spoken(["a", "b"]), [4])
    header = RunHeader("m", "o", None, LAYERS, 2, "q", "cpu", {"policy": "river"}, 0)
    prompt, done = run.upper.prompt, run.upper.summary
    assert prompt is not None and done is not None
    return RunRecord(header, prompt, tuple(run.upper.tokens), (), done)


def test_a_record_as_json() -> None:
    record = make_record()
    value = record_json(record)
    assert set(value) == {
        *("header", "prompt", "tokens", "updates", "full_trace", "summary", "text"),
    }
    assert value["text"] == "a b" and len(value["tokens"]) == 2
    assert "".join(value["tokens"][0]["path"]) == record.tokens[0].path
    json.dumps(value, allow_nan=False)


def test_gradios_client_takes_nothing_in_a_record_for_a_file() -> None:
    from gradio_client.utils import is_file_obj, traverse

    found: list[object] = []
    traverse(record_json(make_record()), found.append, is_file_obj)
    assert found == []
