"""`sweep` over policies and heads, and `strategies`, on a tiny model: resuming, means, files."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas
import pytest

from river_core import cells, grid, strategies, sweep
from river_core.cell_rows import quality_rows, speed_rows
from river_core.cells import Reference, Setting, Study, quality
from river_core.errors import SettingsError
from river_core.figures import save_figure, strategies_figure, sweep_figure
from river_core.policies import POLICIES
from river_core.resumable import Lines
from tests.tiny.tiny_models import prompt

TOKENS = 6
THRESHOLDS = (-1.0, 0.9)
TIMES = ("tokens_per_second",)


class Interrupted(Exception):
    """Stands for a stop of the process."""


@pytest.fixture
def settings():
    return grid.settings(["backbone", "river", "full-quant"], ["river", "none"], THRESHOLDS)


@pytest.fixture
def study(one_tiny, tmp_path):
    """Makes a study on the tiny model over two prompts; `stop` ends it after that many reports."""

    def make(name="a.jsonl", stop=None, tokens=TOKENS):
        left = [stop]

        def say(text, fraction):
            assert 0 <= fraction <= 1
            if left[0] is not None:
                left[0] -= 1
                if left[0] < 0:
                    raise Interrupted

        prompts = [one_tiny.prompt, prompt(replace(one_tiny.config, seed=9), 5)]
        file = Lines(tmp_path / name)
        return Study(file, grid.PART, one_tiny.load(bits=4), prompts, tokens, say)

    return make


def run(part, settings, rounds=2):
    part.begin()
    part.quality(settings)
    part.speed(settings, rounds)
    return part.file


def without_times(path):
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


def test_every_cell_is_there_once_and_refusals_have_a_reason(study, settings):
    file = run(study(), settings)
    accepted = [s for s in settings if s.head == "river"]
    cells_found = file.of(grid.PART, "cell")
    assert {(Setting.of(c), c["prompt"]) for c in cells_found} == {
        (s, n) for s in accepted for n in (0, 1)
    }
    assert len(cells_found) == 2 * len(accepted)
    assert len(file.of(grid.PART, "time")) == 2 * len(accepted)
    assert [s.threshold for s in accepted if s.policy == "backbone"] == [None]
    refused = file.of(grid.PART, "skipped")
    assert {line["head"] for line in refused} == {"none"}
    assert all("head" in line["reason"] for line in refused)


@pytest.mark.parametrize("stop", [0, 3, 9, 20, 27])
def test_resumed_equals_uninterrupted(study, settings, stop):
    whole = run(study("whole.jsonl"), settings).path
    broken = study("broken.jsonl", stop)
    with pytest.raises(Interrupted):
        run(broken, settings)
    size = broken.file.path.stat().st_size
    resumed = run(study("broken.jsonl"), settings).path
    assert resumed.stat().st_size > size
    assert without_times(resumed) == without_times(whole)
    quality_only = [b'"type": "cell"', b'"type": "header"']
    same = [
        [x for x in p.read_bytes().split(b"\n") if any(q in x for q in quality_only)]
        for p in (whole, resumed)
    ]
    assert same[0] == same[1]


def test_a_whole_file_is_not_measured_again(study, settings, monkeypatch):
    path = run(study(), settings).path
    before = path.read_bytes()

    def never(*_args, **_kw):
        raise AssertionError("measured again")

    for name in ("generate", "teacher_forced"):
        monkeypatch.setattr(cells, name, never)
    run(study(), settings)
    assert path.read_bytes() == before


def test_another_header_is_refused(study, settings):
    path = run(study(), settings).path
    before = path.read_bytes()
    with pytest.raises(SettingsError, match="tokens_per_prompt 6 instead of 7"):
        run(study(tokens=7), settings)
    assert path.read_bytes() == before


def test_csv_holds_the_lines(study, settings, tmp_path):
    file = run(study(), settings)
    lines = file.of(grid.PART, "cell", "skipped", "time")
    sweep.save_csv(tmp_path / "a.csv", lines)
    frame = pandas.read_csv(tmp_path / "a.csv")
    assert len(frame) == len(lines)
    assert set(frame.columns) == {key for line in lines for key in line}
    for line, (_, row) in zip(lines, frame.iterrows(), strict=True):
        for key in frame.columns:
            if line.get(key) is None:
                assert pandas.isna(row[key]), key
            else:
                assert row[key] == line[key], key


def test_means_are_weighted_and_ratios_are_of_the_same_round():
    one = {"policy": "river", "head": "river", "mode": "forced", "first_difference": None}
    numbers = dict.fromkeys(("kl", "top5_overlap", "mean_exit_layer", "prompt_depth"), 1.0)
    counters = dict.fromkeys(("slots_missing", "extra_rows", "drafted", "accepted"), 2)
    found = quality_rows(
        [
            {**one, **numbers, **counters, "tokens": 3, "match": 1.0},
            {**one, **numbers, **counters, "tokens": 1, "match": 0.0, "first_difference": 0},
        ]
    )
    assert [(r["match"], r["slots_missing"], r["same_text"]) for r in found] == [(0.75, 4, 1)]

    def time(policy, n, rate, drafted=0):
        counts = {"drafted": drafted, "accepted": drafted // 2, "mean_exit_layer": 2.0}
        counts["text"] = f"{min(n, 1)}" if policy == "backbone" else "1"
        return {"policy": policy, "round": n, "tokens_per_second": rate, **counts}

    rates = [("backbone", 0, 10.0), ("backbone", 1, 100.0), ("backbone", 2, 10.0)]
    own = [("river", 0, 20.0, 8), ("river", 1, 100.0, 8), ("river", 2, 30.0, 8)]
    rows = speed_rows([time(*t) for t in [*rates, *own]])
    assert [r["to_backbone"] for r in rows] == [1.0, 2.0]  # medians of the rates would say 3
    assert [r["acceptance"] for r in rows] == [None, 0.5]
    assert [r["same_text"] for r in rows] == [3, 2]
    assert (rows[1]["slowest"], rows[1]["fastest"]) == (20.0, 100.0)


def test_a_policy_that_cannot_be_forced_is_measured_free(one_tiny, monkeypatch):
    model = one_tiny.load(bits=4)
    reference = Reference.of(model, one_tiny.prompt, TOKENS)
    forced = quality(model, one_tiny.prompt, reference, Setting("river", threshold=-1.0))

    def refuses(*_args, **_kw):
        raise SettingsError("this policy drafts; it cannot be teacher-forced.")

    monkeypatch.setattr(cells, "teacher_forced", refuses)
    free = quality(model, one_tiny.prompt, reference, Setting("river", threshold=-1.0))
    assert (forced["mode"], free["mode"], free["kl"]) == ("forced", "free", None)
    assert "drafts" in free["note"]
    first = forced["first_difference"]
    assert free["first_difference"] == first
    assert free["tokens"] == (TOKENS if first is None else first + 1)
    exact = quality(model, one_tiny.prompt, reference, Setting("backbone"))
    assert (exact["match"], exact["first_difference"]) == (1.0, None)


def test_unknown_policies_and_empty_sweeps_are_refused():
    with pytest.raises(SettingsError, match="unknown policy 'rivr'"):
        grid.settings(["rivr"], ["river"], [0.5])
    with pytest.raises(SettingsError, match="at least one"):
        grid.settings([], ["river"], [0.5])
    with pytest.raises(SettingsError, match="threshold is 3"):
        grid.settings(["river"], ["river"], [3.0])


def test_table_and_figure_show_every_measured_setting(study, settings, tmp_path):
    file = run(study(), settings)
    lines, rows = list(grid.table(file)), grid.rows(file)
    measured = [s for s in settings if s.head == "river"]
    assert [(r["policy"], r["threshold"]) for r in rows] == [
        (s.policy, s.threshold) for s in measured
    ]
    cells_of = [line.count("|") for line in lines if line.startswith("|")]
    assert cells_of == [12] * (2 + len(rows))
    assert any("gains no speed" in line for line in lines)  # the tiny model is fp32
    assert any("Left out: river, head none" in line for line in lines)
    save_figure(sweep_figure(rows, "t"), tmp_path / "f")
    figure = json.loads((tmp_path / "f.json").read_text("utf-8"))
    assert sum(len(trace["x"]) for trace in figure["data"]) == 2 * len(rows)
    html = (tmp_path / "f.html").read_text("utf-8")
    assert "cdn" in html
    assert len(html) < 100_000


def test_two_dozen_policies_and_heads_look_different():
    speed = dict.fromkeys(("tokens_per_second", "slowest", "fastest"), 1.0)
    row = {"head": "river", "threshold": None, "mean_exit_layer": 2.0, "match": 1.0, **speed}
    figure = sweep_figure([{**row, "policy": f"p{n}"} for n in range(24)], "t")
    looks = [(t.marker.color, t.marker.symbol) for t in figure.data if t.error_y.array is None]
    assert len(looks) == len(set(looks)) == 24


POINTS = strategies.Points(exit_layers=(1, 3), relaxed=0.5, strict=0.9, drafts=(2,))


def test_strategies_never_mix_heads():
    assert {s.head for s in strategies.quality_settings(POINTS)} == {"river"}
    speed = strategies.speed_settings(POINTS)
    assert {s.policy for s in speed if s.head == "lens"} <= {*strategies.BASELINES, "fixed-exit"}
    named = {s.policy for s in [*speed, *strategies.quality_settings(POINTS)]}
    assert named.isdisjoint(strategies.missing())
    assert named <= set(POLICIES)


def test_strategies_report(study, tmp_path):
    part = study()
    for name in (strategies.QUALITY, strategies.SPEED):
        measured = replace(part, part=name)
        measured.begin()
        if name == strategies.QUALITY:
            measured.quality(strategies.quality_settings(POINTS))
        else:
            measured.speed(strategies.speed_settings(POINTS), 2)
    text = "\n".join(strategies.report(part.file, POINTS))
    assert text.index("### Quality") < text.index("### Speed") < text.index("### The paper")
    base = text.split("\n| backbone | ")[-1].split("\n")[0]
    assert base.startswith("15.18 ms (1.00) | 15.18 ms (1.00) | ")
    assert base.count("(1.00)") == 4
    left, right = strategies.figure_rows(part.file)
    figure = strategies_figure(left, right, "t")
    points = sum(len(trace.x) for trace in figure.data)
    assert points == len(left) + len(right)
    assert all(row["least"] <= row["ms_per_token"] <= row["most"] for row in right)
