"""`quantizers` on a tiny model: the phase at a threshold, and speed in one interleaved run."""

from __future__ import annotations

from dataclasses import replace

import pytest

import river_core
from river_core import back_end_speed, back_ends, bench
from river_core.back_end_speed import Timing
from river_core.calibrate import calibrate
from river_core.calibration_store import CalibrationFile
from river_core.errors import SettingsError
from river_core.machine import FreeMemory
from river_core.resumable import Lines
from river_core.settings import QuantSpec

SPECS = (QuantSpec(4, 64, "rtn"), QuantSpec(4, 64, "hqq"))
TOKENS, LAYERS = 5, (1, 3)


@pytest.fixture
def load(one_tiny):
    made = {}

    def of(spec):
        if spec.label not in made:
            settings = {"device": "cpu", "dtype": "float32", "river": spec}
            made[spec.label] = river_core.load(str(one_tiny.folder), **settings)
        return made[spec.label]

    return of


@pytest.fixture
def silent():
    return lambda text, share: None


@pytest.fixture
def file(tmp_path):
    return Lines(tmp_path / "a.jsonl")


@pytest.fixture(autouse=True)
def quick_bandwidth(monkeypatch):
    monkeypatch.setattr(bench, "read_bandwidth", lambda device: 20.0)


def measure(file, load, one_tiny, silent, **more):
    for spec in SPECS:
        what = (file, spec, load, [one_tiny.prompt], TOKENS, LAYERS)
        back_ends.measure(*what, say=silent, **more)


def column(lines, head):
    names = [cell.strip() for cell in lines[0].strip("|").split("|")]
    rows = [line for line in lines[2:] if line.startswith("|")]
    return [row.strip("|").split("|")[names.index(head)].strip() for row in rows]


def test_every_back_end_is_measured_at_the_default_threshold_too(file, load, one_tiny, silent):
    measure(file, load, one_tiny, silent)
    default = load(SPECS[0]).info.default_threshold
    for spec in SPECS:
        (line,) = file.of(spec.label, back_ends.THRESHOLD)
        assert (line["threshold"], line["origin"]) == (default, "default")
    lines = list(back_ends.table(file, SPECS))
    depths = [float(cell) for cell in column(lines, "mean exit layer")]
    assert all(1 <= depth <= load(SPECS[0]).num_layers for depth in depths)
    assert column(lines, "tok/s") == ["-", "-"]
    shown = f"the prompt after the last layer: {default:g} (default)."
    assert lines[-1] == f"Threshold of policy river, {shown}"
    before = file.path.read_bytes()
    measure(Lines(file.path), load, one_tiny, silent)
    assert file.path.read_bytes() == before


def test_the_threshold_asked_for_last_is_shown(file, load, one_tiny, silent):
    measure(file, load, one_tiny, silent)
    measure(file, load, one_tiny, silent, asked=back_ends.Asked(1.0))
    lines = list(back_ends.table(file, SPECS))
    assert column(lines, "mean exit layer") == [f"{load(SPECS[0]).num_layers:.2f}"] * 2
    assert [float(cell) for cell in column(lines, "match at threshold")] == [1.0, 1.0]
    assert "1 (given)" in lines[-1]


def test_auto_is_each_rivers_own_and_needs_a_calibration(file, load, one_tiny, silent, tmp_path):
    auto = back_ends.Asked("auto", 0.0)
    stores = {s.label: CalibrationFile(tmp_path, "f" * 20, s, 2) for s in SPECS}

    def apart(spec):
        model = load(spec)
        return replace(model, info=replace(model.info, calibration=stores[spec.label]))

    with pytest.raises(SettingsError, match="no calibration is stored"):
        measure(file, apart, one_tiny, silent, asked=auto)
    assert file.lines == []
    for spec in SPECS:
        calibrate(apart(spec), prompts=[one_tiny.prompt], tokens=TOKENS)
    measure(file, apart, one_tiny, silent, asked=auto)
    wanted = [stores[spec.label].load().smallest_threshold(0.0) for spec in SPECS]
    found = [file.of(spec.label, back_ends.THRESHOLD)[0]["threshold"] for spec in SPECS]
    assert found == wanted
    assert "auto, target_match 0" in list(back_ends.table(file, SPECS))[-1]


def test_speed_is_one_run_over_the_backbone_and_every_river(file, load, one_tiny, silent):
    measure(file, load, one_tiny, silent)
    timing = Timing(one_tiny.prompt, TOKENS, exit_layer=2)
    back_end_speed.measure(file, SPECS, load, timing, say=silent)
    (run,) = file.of(back_end_speed.PART, "run")
    assert [row["name"] for row in run["rows"]] == ["backbone", *(s.label for s in SPECS)]
    depths = [row["mean_exit_layer"] for row in run["rows"]]
    assert depths == [load(SPECS[0]).num_layers, 2, 2]
    assert run["read"] == [20.0, 20.0]
    assert all(0 < r["slowest"] <= r["tokens_per_second"] <= r["fastest"] for r in run["rows"])
    lines = list(back_ends.table(file, SPECS))
    assert all(" to " in cell for cell in column(lines, "tok/s"))
    assert lines[-1].startswith("tok/s: backbone ")
    assert "5 rounds" in lines[-1]
    assert "read bandwidth 20.0 GB/s before, 20.0 after" in lines[-1]
    back_end_speed.measure(Lines(file.path), SPECS, load, timing, say=silent)
    assert len(Lines(file.path).of(back_end_speed.PART, "run")) == 1
    back_end_speed.measure(file, SPECS[:1], load, timing, say=silent)
    assert column(list(back_ends.table(file, SPECS)), "tok/s")[1] == "-"  # not of the last run


def test_side_by_side_only_the_river_differs(load):
    first, second = back_end_speed.side_by_side(SPECS, load)
    assert second.backbone is first.backbone
    assert second.cache is first.cache
    assert second.river is load(SPECS[1]).river
    assert second.info.quant == SPECS[1]
    found = {
        m.info.quant.label: river_core.generate(
            m, [1, 2, 3], exit="fixed", options={"exit_layer": 1}, max_new_tokens=4
        ).text
        for m in (first, second)
    }
    alone = {
        s.label: river_core.generate(
            load(s), [1, 2, 3], exit="fixed", options={"exit_layer": 1}, max_new_tokens=4
        ).text
        for s in SPECS
    }
    assert found == alone


def test_what_does_not_fit_or_cannot_be_timed_is_refused(file, load, one_tiny, silent, monkeypatch):
    with pytest.raises(SettingsError, match="5 rounds or more"):
        back_end_speed.measure(file, SPECS, load, Timing([1], 4, 4), say=silent)
    with pytest.raises(SettingsError, match="2 tokens or more"):
        back_end_speed.measure(file, SPECS, load, Timing([1], 1), say=silent)
    monkeypatch.setattr(back_end_speed, "free_ram", lambda: 1)
    with pytest.raises(SettingsError, match=r"hqq-4bit-g64 cannot be .* RAM are free"):
        back_end_speed.measure(file, SPECS, load, Timing([1], 4), say=silent)
    assert file.lines == []
    monkeypatch.setattr(back_end_speed, "free_ram", lambda: None)
    assert FreeMemory("RAM", None).holds(1) is None
    assert len(back_end_speed.side_by_side(SPECS, load)) == 2
