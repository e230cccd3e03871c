"""calibrate from the command line on the packaged model, in a cache of its own: few tokens."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

from river_core.__main__ import main
from river_core.calibration_store import CalibrationFile
from river_core.records import RunRecord

CALIBRATE = import_module("river_core.calibrate")
MODEL = ["--model", "smollm2-135m-packaged", "--dtype", "float16"]


@pytest.fixture
def empty_store(tmp_path, monkeypatch):
    """Calibrations go to a folder of this test; rivers stay where they are."""

    def moved(folder, *key):
        return CalibrationFile(tmp_path, *key)

    monkeypatch.setattr("river_core.loading.CalibrationFile", moved)
    return tmp_path


def test_calibrate_then_generate_with_auto(empty_store, capsys, monkeypatch):
    passages = ["Why is the sky blue?", "Name three rivers."]
    monkeypatch.setattr(CALIBRATE, "bundled_passages", lambda: passages)
    generate = ["generate", "Hi", *MODEL, "--max-new-tokens", "4", "--threshold", "auto"]
    assert main(generate) == 2
    assert "python -m river_core calibrate" in capsys.readouterr().err
    assert main(["calibrate", *MODEL, "--tokens", "6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    points = found["points"]
    assert [p["threshold"] for p in points][-1] == 1
    assert points[-1]["match"] == 1
    assert points[0]["mean_exit_layer"] < 5
    inner = [p["threshold"] for p in points if 5 < p["mean_exit_layer"] < 29]
    assert inner and all(0.95 < threshold < 0.999 for threshold in inner)  # where it matters here
    assert len(found["quantiles"]) == 30
    meets = [p["threshold"] for p in points if p["match"] >= 0.98]
    assert found["auto"] == min(meets)
    assert main([*generate, "--json"]) == 0
    run = RunRecord.from_lines(capsys.readouterr().out.split("\n"))
    assert run.header.settings["threshold"] == found["auto"]
    assert main(generate) == 0
    assert f"threshold {found['auto']:g} (auto, target_match 0.98)" in capsys.readouterr().out


def test_the_tables_as_text(empty_store, capsys, monkeypatch):
    monkeypatch.setattr(CALIBRATE, "bundled_passages", lambda: ["Count to five."])
    assert main(["calibrate", *MODEL, "--tokens", "3"]) == 0
    out = capsys.readouterr().out
    assert "| 1 | 30.00 | 1.000 | 0.0000 |" in out
    assert "\n| 30 | " in out
    assert str(empty_store) in out
    assert "auto is" in out
