"""The threshold that a run starts with: a number as given, the model's default, or "auto".

"auto" is looked up once, before the first pass; nothing here measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import SettingsError
from .model import RiverModel
from .planning import Plan, resolve
from .settings import DecodeSettings


@dataclass(frozen=True)
class Threshold:
    """The number in force, what it came from ("" unless "auto" was asked for), notes on it."""

    value: float
    origin: str = ""
    notes: tuple[str, ...] = ()


def threshold_of(model: RiverModel, settings: DecodeSettings, plan: Plan) -> Threshold:
    """What `settings.threshold` comes to for this model.

    Raises SettingsError for "auto" where the policy reads no similarity or nothing is stored,
    RecordError where what is stored is damaged.
    """
    asked = settings.threshold
    if asked is None:
        own = plan.threshold
        return Threshold(model.info.default_threshold if own is None else own)
    if not isinstance(asked, str):
        return Threshold(asked)
    if plan.rule.reads != "similarity":
        raise SettingsError(
            f"threshold 'auto' is for exits by similarity, but policy {settings.policy!r} leaves "
            f"by exit rule {plan.exit_name!r}; leave threshold out."
        )
    return _auto(model, settings.target_match, plan.prefill)


def resolved(model: RiverModel, **settings: Any) -> Threshold:
    """What a run with these fields of DecodeSettings would start with on this model.

    Raises SettingsError for settings that the policy cannot use, and as `threshold_of` does.
    """
    checked = DecodeSettings.from_keywords(settings)
    sizes = (model.num_layers, model.info.entry_layer, model.resident)
    return threshold_of(model, checked, resolve(checked, *sizes))


def _auto(model: RiverModel, target: float, prefill: str) -> Threshold:
    file = model.info.calibration
    found = None if file is None else file.load()
    if found is None:
        raise SettingsError(
            "threshold is 'auto', but no calibration is stored for this model, river and entry "
            "layer; run `python -m river_core calibrate` or river_core.calibrate(model), or give "
            "a number."
        )
    notes = []
    if prefill != found.prefill:
        notes.append(
            f"the threshold was calibrated with prefill {found.prefill!r}; this run uses "
            f"{prefill!r}."
        )
    value = found.smallest_threshold(target)
    if value is None:
        value = 1.0
        notes.append(
            f"no calibrated threshold reaches a match of {target:g}; 1 (never leave) is used."
        )
    return Threshold(value, f"auto, target_match {target:g}", tuple(notes))
