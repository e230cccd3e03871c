"""The calibration's file: round trip, refusals; the smallest threshold, by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from river_core.calibrate import bundled_passages
from river_core.calibration_store import Calibration, CalibrationFile, Point
from river_core.errors import RecordError
from river_core.settings import QuantSpec
from river_core.sweep import bundled_prompts

MADE = Calibration(
    levels=(25.0, 75.0),
    quantiles=((-0.1, 0.2), (0.9, 0.95), (0.3, 0.4)),
    points=(
        Point(0.5, 1.0, 0.85, 0.2, (20, 0, 0)),
        Point(0.9, 1.5, 0.97, 0.02, (12, 6, 2)),
        Point(0.95, 2.0, 0.96, 0.03, (1, 18, 1)),
        Point(0.99, 2.5, 0.99, 0.005, (0, 10, 10)),
        Point(1.0, 3.0, 1.0, 0.0, (0, 0, 20)),
    ),
    prefill="exit",
    passes=40,
    measured={"dtype": "float32"},
)
WEIGHTS = "ab" * 32


@pytest.fixture
def file(tmp_path):
    return CalibrationFile(tmp_path / "rivers", WEIGHTS, QuantSpec(), 2)


@pytest.mark.parametrize(
    ("target", "threshold"),
    [(0.0, 0.5), (0.85, 0.5), (0.86, 0.9), (0.97, 0.9), (0.971, 0.99), (0.991, None), (1.0, None)],
)
def test_smallest_threshold(target, threshold):
    assert MADE.smallest_threshold(target) == threshold


@pytest.mark.parametrize(
    ("points", "scale"),
    [
        (((0.5, 1.0), (0.9, 1.2), (0.95, 2.0), (1.0, 3.0)), (0.9, 0.0005)),
        (((0.5, 1.0), (0.7, 2.0), (1.0, 3.0)), (0.5, 0.001)),
        (((0.5, 2.0), (0.923, 3.0), (0.976, 12.0), (1.0, 30.0)), (0.92, 0.0005)),
        (((1.0, 3.0),), (0.95, 0.0005)),
    ],
)
def test_scale_of_a_slider(points, scale):
    made = replace(MADE, points=tuple(Point(t, depth, 1.0, 0.0, (0, 0, 1)) for t, depth in points))
    assert made.scale() == scale


@pytest.mark.parametrize(
    ("threshold", "share", "layers"),
    [
        (0.5, 0.95, 1),
        (0.9, 0.6, 1),
        (0.9, 0.61, 2),
        (0.9, 0.9, 2),
        (0.9, 0.95, 3),
        (0.95, 0.95, 2),
        (0.6, 0.9, 2),  # counted at 0.9, the next that was measured
        (-1.0, 0.95, 1),
        (0.995, 0.01, 3),
    ],
)
def test_layers_that_cover_a_share_of_the_exits(threshold, share, layers):
    assert MADE.covering(threshold, share) == layers


def test_an_older_form_is_refused(file):
    """Calibrations of the first form, without exits."""
    file.save(MADE)
    old = json.loads(file.path.read_text(encoding="utf-8")) | {"format": "calibration-1"}
    for point in old["points"]:
        del point["exits"]
    file.path.write_text(json.dumps(old), encoding="utf-8")
    with pytest.raises(RecordError, match=r"another version; run .*calibrate` again\.$"):
        file.load()


def test_round_trip(file):
    assert file.load() is None
    file.save(MADE)
    assert file.load() == MADE
    file.save(replace(MADE, passes=41))
    assert file.load().passes == 41
    assert [p.name for p in file.path.parent.iterdir()] == [file.path.name]


def test_each_model_has_its_own_file(tmp_path):
    keys = [
        (WEIGHTS, QuantSpec(), 2),
        ("cd" * 32, QuantSpec(), 2),
        (WEIGHTS, QuantSpec(group_size=32), 2),
        (WEIGHTS, QuantSpec(bits=16), 2),
        (WEIGHTS, QuantSpec(), 3),
    ]
    assert len({CalibrationFile(tmp_path, *key).path for key in keys}) == len(keys)


@pytest.mark.parametrize(
    "key", [("ab" * 31 + "cd", QuantSpec(), 2), (WEIGHTS, QuantSpec(group_size=32), 2)], ids=str
)
def test_other_weights_or_settings_are_refused(file, tmp_path, key):
    file.save(MADE)
    other = CalibrationFile(tmp_path, *key)
    file.path.rename(other.path)
    with pytest.raises(RecordError, match="other weights or settings") as caught:
        other.load()
    assert str(caught.value).endswith(".")


def changed(name, value):
    def change(text):
        return json.dumps(json.loads(text) | {name: value})

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "{}",
        changed("points", []),
        changed("points", [vars(p) for p in MADE.points[::-1]]),
        changed("points", [vars(p) for p in MADE.points[:-1]]),  # 1 is missing
        changed("points", [vars(MADE.points[-1]) | {"match": 1.5}]),
        changed("points", [vars(MADE.points[-1]) | {"kl": float("nan")}]),
        changed("points", [vars(MADE.points[-1]) | {"match": "high"}]),
        changed("points", [{"threshold": 1.0}]),
        changed("points", [vars(MADE.points[-1]) | {"exits": [0, 20]}]),
        changed("points", [vars(MADE.points[-1]) | {"exits": [0, 0, 0]}]),
        changed("points", [vars(MADE.points[-1]) | {"exits": [-1, 0, 21]}]),
        changed("points", [vars(MADE.points[-1]) | {"exits": [0, 0.5, 19.5]}]),
        changed("points", [vars(MADE.points[-1]) | {"exits": 20}]),
        changed("quantiles", [[0.1, 0.2], [0.3]]),
        changed("quantiles", None),
        changed("extra", 1),
    ],
)
def test_a_damaged_file_is_one_sentence(file, change):
    file.save(MADE)
    whole = file.path.read_text(encoding="utf-8")
    file.path.write_text(change(whole), encoding="utf-8")
    with pytest.raises(RecordError, match=r"damaged .*calibrate` again\.$"):
        file.load()
    file.path.write_text(whole, encoding="utf-8")
    assert file.load() == MADE


def test_the_bundled_text_is_not_the_reports():
    assert len(bundled_passages()) >= 5
    assert not set(bundled_passages()) & set(bundled_prompts())
