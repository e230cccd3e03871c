"""What the page was asked, as settings of its two lanes; refused in one sentence before any work.

A setting goes to each lane whose policy can use it; one that neither can use is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from river_core.policies import find_policy
from river_core.settings import DecodeSettings

from .views.english import Refused
from .views.policies import policy_name, usable
from .views.run import LANES
from .views.wording import say

DEFAULTS: dict[str, Any] = {
    "prompt": "",
    "threshold": None,
    "max_new_tokens": 64,
    "upper": "river",
    "lower": "backbone",
    "exit": "",  # of these four, empty: the policy's own
    "exit_layer": None,
    "head": "",
    "prefill": "",
    "temperature": 0.0,
    "seed": 0,
    "profile": False,
}

COMMON = ("threshold", "max_new_tokens", "temperature", "seed", "profile")


@dataclass(frozen=True)
class Ask:
    """One press on Run: the prompt, and by lane the keywords of DecodeSettings."""

    prompt: str
    lanes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def policy(self, lane: str) -> str:
        """The lane's policy."""
        return str(self.lanes[lane]["policy"])


def ask(values: Mapping[str, Any]) -> Ask:
    """From the page's values by the names of `DEFAULTS`. Raises RiverError."""
    chosen = {**DEFAULTS, **values}
    common = {name: chosen[name] for name in COMMON}
    special = {name: chosen[name] for name in ("exit", "head", "prefill") if chosen[name]}
    lanes, used = {}, set()
    for lane in LANES:
        policy = chosen[lane]
        row = find_policy(policy)
        fitting = usable(policy, special)
        used |= set(fitting)
        settings = {"policy": policy, **common, **fitting}
        rule = fitting.get("exit") or row.exits[0]
        if chosen["exit_layer"] is not None and rule == "fixed" and not row.fixed:
            settings["options"] = {"exit_layer": chosen["exit_layer"]}
            used.add("exit_layer")
        DecodeSettings.from_keywords(settings)
        lanes[lane] = settings
    for name in special:
        if name not in used:
            raise Refused(_unusable(name, special[name], chosen))
    return Ask(str(chosen["prompt"]), lanes)


def _unusable(name: str, value: object, chosen: Mapping[str, Any]) -> str:
    policies = [policy_name(chosen[lane]) for lane in LANES]
    return say(
        "error.unusable",
        setting=say(f"setting.{name}"),
        value=say(f"setting.{name}.{value}"),
        upper=policies[0],
        lower=policies[1],
    )
