"""What the page says of a model: its slider's scale and advice, from the stored calibration."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from app.card import model_card
from river_core.errors import RecordError
from river_core.settings import QuantSpec
from tests.unit.test_calibration_store import MADE


def model(load):
    info = SimpleNamespace(
        name="m",
        default_threshold=0.9,
        notes=(),
        calibration=SimpleNamespace(load=load),
        quant=QuantSpec(),
        entry_layer=2,
    )
    sizes = {"num_layers": 3, "resident": 3, "capacity": 9}
    return SimpleNamespace(info=info, origin="here", device="cpu", **sizes)


def test_a_calibrated_model_sets_the_slider():
    card = model_card(model(lambda: MADE))
    assert card.scale == MADE.scale()
    assert card.advice == (
        "Calibrated: 0.99 keeps 99.0% of the backbone's next tokens at 2.5 of 3 layers."
    )


@pytest.mark.parametrize("load", [lambda: None, None])
def test_without_a_calibration_the_page_says_how_to_get_one(load):
    made = model(load)
    if load is None:
        made.info.calibration = None
    card = model_card(made)
    assert card.scale == (0.4, 0.001)
    assert "python -m river_core calibrate" in card.advice


@pytest.mark.parametrize(
    ("quant", "text"),
    [
        (QuantSpec(), "river: HQQ, 4 bits, groups of 64"),
        (QuantSpec(4, 64, "awq"), "river: AWQ, 4 bits, groups of 64"),
        (QuantSpec.parse("awq:a/b"), "river: AWQ checkpoint a/b, 4 bits, groups of 128"),
        (QuantSpec(16), "river: 16 bits, the backbone's own weights"),
    ],
)
def test_the_back_end_is_named(quant, text):
    made = model(lambda: MADE)
    made.info.quant = quant
    assert model_card(made).river == text


def test_a_damaged_calibration_is_named():
    def load():
        raise RecordError("x.json is damaged; run calibrate again.")

    assert model_card(model(load)).advice == "x.json is damaged; run calibrate again."
