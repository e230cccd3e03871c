"""The named combinations of exit rule, fill, head and prefill, as a table.

A policy is data: adding one is a row here. The loop never asks for a policy's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import SettingsError
from .exits import ExitRule, build_exit
from .fills import FILLS, Fill
from .settings import DecodeSettings


@dataclass(frozen=True)
class Policy:
    """One row: what a policy does by default, and which exit rules it may be given instead."""

    sentence: str
    source: str
    exit: str
    fill: str = "river"
    head: str = "river"
    prefill: str = "exit"
    prefills: tuple[str, ...] = ("exit", "full")
    other_exits: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    full_river: bool = False  # also needs the twins below the entry layer


POLICIES: dict[str, Policy] = {
    "backbone": Policy(
        sentence="Every token runs all layers in 16 bits.",
        source="the model itself",
        exit="never",
        prefill="full",
        prefills=("full",),
    ),
    "river": Policy(
        sentence="A token leaves when a layer hardly changes it, and its remaining layers run in "
        "the 4-bit river, which writes the same KV cache.",
        source="River-LLM, arXiv 2604.18396, sections 3.1 and 4",
        exit="similarity",
        other_exits=("fixed", "schedule"),
    ),
    "full-quant": Policy(
        sentence="Every token runs all layers in the 4-bit river.",
        source="River-LLM, table 3, Full Quant.",
        exit="fixed",
        options={"exit_layer": 0},
        full_river=True,
    ),
}


@dataclass(frozen=True)
class Plan:
    """A policy and its settings, resolved for one model: what the loop runs by."""

    rule: ExitRule
    fill: Fill
    prefill: str
    head: str
    full_river: bool
    exit_name: str


def find_policy(name: str) -> Policy:
    """The row called `name`; raises SettingsError with the known names."""
    if name not in POLICIES:
        raise SettingsError(f"unknown policy {name!r}; known are {', '.join(POLICIES)}.")
    return POLICIES[name]


def resolve(settings: DecodeSettings, num_layers: int, entry_layer: int) -> Plan:
    """Turn settings into a Plan for a model of `num_layers` with twins from `entry_layer` on.

    Raises SettingsError for an unknown policy and for settings that the policy cannot use.
    """
    row, name = find_policy(settings.policy), settings.policy
    exit_name = _pick(name, "exit", settings.exit, row.exit, (row.exit, *row.other_exits))
    prefill = _pick(name, "prefill", settings.prefill, row.prefill, row.prefills)
    head = _pick(name, "head", settings.head, row.head, (row.head,))
    if row.options and settings.options:
        raise SettingsError(f"policy {name!r} takes no options, but got {dict(settings.options)}.")
    options = row.options or settings.options
    rule = build_exit(exit_name, options, allowed_exits(num_layers, entry_layer, row.full_river))
    return Plan(rule, FILLS[row.fill], prefill, head, row.full_river, exit_name)


def allowed_exits(num_layers: int, entry_layer: int, full_river: bool) -> Sequence[int]:
    """Exit layers that the model's twins allow: entry - 1 to L, and 0 with the full river."""
    layers = list(range(entry_layer - 1, num_layers + 1))
    return [0, *layers] if full_river else layers


def _pick(
    policy: str, setting: str, value: str | None, default: str, allowed: tuple[str, ...]
) -> str:
    if value is None:
        return default
    if value not in allowed:
        choices = " or ".join(repr(a) for a in allowed if a != "never") or "nothing"
        raise SettingsError(
            f"policy {policy!r} cannot use {setting}={value!r}; leave it out or use {choices}."
        )
    return value
