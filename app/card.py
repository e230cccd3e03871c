"""From a loaded model to what the top bar and the slider say of it. Loads and decodes nothing."""

from __future__ import annotations

from typing import Any

from river_core.errors import RiverError
from river_core.settings import DecodeSettings, QuantSpec

from .views.english import known, told
from .views.run import ModelCard
from .views.wording import say


def model_card(model: Any, instead: str = "") -> ModelCard:
    """The card of a model that is ready; `instead` says why it is not the one asked for."""
    scale, advice = _scale(model)
    return ModelCard(
        state="ready",
        message=say("model.ready_instead" if instead else "model.ready"),
        name=model.info.name,
        origin=_origin(known(model.origin), instead),
        device=str(model.device),
        num_layers=model.num_layers,
        threshold=model.info.default_threshold,
        capacity=model.capacity,
        scale=scale,
        advice=advice,
        notes=tuple(model.info.notes),
        river=_river(model.info.quant),
        entry_layer=model.info.entry_layer,
        resident=model.resident,
    )


def _origin(origin: str, instead: str) -> str:
    return say("bar.origin_instead", origin=origin, instead=instead) if instead else origin


def _river(quant: QuantSpec) -> str:
    """The quantization back end, in words."""
    if quant.bits == 16:
        return say("bar.river_whole")
    named = quant.method.upper()
    _, _, checkpoint = quant.shown.partition(":")
    method = say("bar.river_checkpoint", method=named, name=checkpoint) if checkpoint else named
    bits = quant.bits if quant.budget is None else quant.budget
    names = {"method": method, "bits": bits, "group": quant.group_size}
    return say("bar.river_coded", **names)


def _scale(model: Any) -> tuple[tuple[float, float], str]:
    """The slider's lowest value and step, and what the stored calibration says, if there is one."""
    target, usual = DecodeSettings().target_match, (0.4, 0.001)
    try:
        found = model.info.calibration and model.info.calibration.load()
    except RiverError as error:
        return usual, told(error)
    if not found:
        return usual, say("threshold.uncalibrated")
    best = found.smallest_threshold(target)
    if best is None:
        return found.scale(), say("threshold.none_calibrated", match=f"{target:.0%}")
    point = next(p for p in found.points if p.threshold == best)
    return found.scale(), say(
        "threshold.calibrated",
        threshold=f"{best:.4g}",
        match=f"{point.match:.1%}",
        mean=f"{point.mean_exit_layer:.1f}",
        layers=model.num_layers,
    )
