"""A policy's row and a run's settings, resolved into what the loop runs by.

Everything that a policy cannot use is refused here, before any work. Knows nothing of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from .errors import SettingsError
from .exits import EXITS, OPTION_OF, ExitRule, build_exit
from .fills import FILLS, Fill, Skip
from .policies import SIZES, Policy, find_policy
from .settings import DecodeSettings

LENS_THRESHOLD = 0.8  # of the rules that read probabilities: EE-LLM's own default
CHOICES: dict[str, tuple[str | None, ...]] = {
    "size": tuple(SIZES),
    "fill": (None, "none", "river"),
}


@dataclass(frozen=True)
class Plan:
    """A policy and its settings, resolved for one model: what the loop runs by.

    `last_exit` is the last backbone layer that is resident: rows that have not left go on from
    there as if they had.
    """

    exit_name: str
    head: str
    prefill: str
    fill: Fill
    num_layers: int
    last_exit: int
    options: Mapping[str, Any]
    rule: ExitRule
    skip: Skip | None
    full_river: bool
    first_exit: int
    keep_first: int
    threshold: float | None

    @property
    def lens(self) -> bool:
        """Whether tokens are chosen at the exit, not by the river tail."""
        return self.head == "lens"

    @property
    def by_threshold(self) -> bool:
        """Whether similarity and threshold decide, and who leaves runs the river before all else:
        then an engine may begin with either before the loop has asked."""
        return self.rule.reads == "similarity" and self.fill.kv == "r" and not self.lens

    @property
    def draft(self) -> int:
        """Tokens drafted before each verification; 0 without drafts."""
        return int(self.options.get("draft", 0))


def resolve(
    settings: DecodeSettings, num_layers: int, entry_layer: int, resident: int | None = None
) -> Plan:
    """Turn settings into a Plan for a model of `num_layers` with twins from `entry_layer` on.

    Its first `resident` backbone layers are on the device (None: all). Raises SettingsError for an
    unknown policy, and for settings that the policy cannot use or not with these layers.
    """
    row, name = find_policy(settings.policy), settings.policy
    last = num_layers if resident is None else resident
    if last < num_layers and not row.offloads:
        raise SettingsError(
            f"policy {name!r} needs all {num_layers} backbone layers, but {last} are resident; "
            f"restore them with model.set_resident({num_layers})."
        )
    exit_name = _pick(name, "exit", settings.exit, row.exits)
    own, given = _options(name, row, settings, exit_name, num_layers)
    _check(own, num_layers, entry_layer, last)
    if own.get("decay") is not None and exit_name != row.exits[0]:
        raise SettingsError(
            f"policy {name!r} with option 'decay' has its own exit layers; leave exit out."
        )
    fill, head = _fill_and_head(name, row, settings, own)
    lens_rule = EXITS[exit_name].reads == "lens"
    prefills = tuple(p for p in row.prefills if p == "full" or not lens_rule)
    if own.get("draft") and settings.temperature > 0:
        raise SettingsError(f"policy {name!r} verifies greedy text; use temperature=0.")
    allowed = allowed_exits(last, entry_layer, row.full_river)
    if exit_name == "fixed" and "size" in own and given.get("exit_layer") is None:
        given["exit_layer"] = max(entry_layer - 1, ceil(SIZES[own["size"]] * num_layers))
    missing = f" ({last} of {num_layers} backbone layers are resident)" if last < num_layers else ""
    rule = build_exit(exit_name, given, allowed, missing)
    plan = Plan(
        exit_name=exit_name,
        head=head,
        prefill=_pick(name, "prefill", settings.prefill, prefills),
        fill=FILLS[fill],
        num_layers=num_layers,
        last_exit=last,
        options=own,
        rule=rule,
        skip=row.skip(own) if row.skip else None,
        full_river=row.full_river,
        first_exit=max(entry_layer - 1, own.get("min_exit", 0)),
        keep_first=row.keep_first,
        threshold=LENS_THRESHOLD if lens_rule else row.threshold,
    )
    if row.wrap is None:
        return plan
    return Plan(**{**vars(plan), "rule": row.wrap(rule, own, last, settings.max_new_tokens)})


def _options(
    name: str, row: Policy, settings: DecodeSettings, exit_name: str, num_layers: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The policy's own options with their defaults, and those of its exit rule."""
    own, given = dict(row.options), dict(row.fixed)
    for_exit = OPTION_OF.get(exit_name) if not row.fixed else None
    known = [*row.options, *([for_exit] if for_exit and for_exit not in row.options else [])]
    for key, value in settings.options.items():
        if key not in known:
            takes = f"it takes {', '.join(map(repr, known))}" if known else "it takes none"
            raise SettingsError(
                f"policy {name!r} with exit rule {exit_name!r} has no option {key!r}; {takes}."
            )
        if key == for_exit:
            given[key] = value
        else:
            own[key] = value
    own.pop("exit_layer", None)
    if "halves" in own and own["halves"] is None:
        own["halves"] = num_layers // 8
    return own, given


def _check(own: Mapping[str, Any], num_layers: int, entry_layer: int, last: int) -> None:
    """Raise SettingsError for an option whose value is not possible."""
    most = {
        "min_exit": (1, last),
        "decay": (entry_layer - 1, last),
        "draft": (1, 64),
        "halves": (0, 2 * num_layers),
        "observed": (0, 1 << 20),
    }
    for key, value in own.items():
        if key in CHOICES and value not in CHOICES[key]:
            wanted = " or ".join(repr(v) for v in CHOICES[key] if v is not None)
            raise SettingsError(f"option {key!r} is {value!r}; use {wanted}.")
        if key not in most or (key == "decay" and value is None):
            continue
        least, largest = most[key]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= largest:
            raise SettingsError(f"option {key!r} is {value!r}; use {least} to {largest}.")


def _fill_and_head(
    name: str, row: Policy, settings: DecodeSettings, own: Mapping[str, Any]
) -> tuple[str, str]:
    """A river tail reads every layer's cache, so under that head nothing may be left unwritten."""
    asked = own.get("fill")
    first = "lens" if asked == "none" and "lens" in row.heads else row.heads[0]
    head = _pick(name, "head", settings.head, (first, *row.heads))
    fill = asked or row.fill
    if fill == "none" and head == "river":
        if asked:
            raise SettingsError(
                f"policy {name!r} with fill 'none' leaves nothing for a river tail to read; use "
                "head='lens' or fill 'river'."
            )
        fill = "river"
    return fill, head


def allowed_exits(last: int, entry_layer: int, full_river: bool) -> Sequence[int]:
    """Exit layers that the layers there allow: entry - 1 to `last`, and 0 with the full river."""
    layers = list(range(entry_layer - 1, last + 1))
    return [0, *layers] if full_river else layers


def _pick(policy: str, setting: str, value: str | None, allowed: tuple[str, ...]) -> str:
    """The value, or the first of `allowed`."""
    if value is None:
        return allowed[0]
    if value not in allowed:
        choices = " or ".join(dict.fromkeys(repr(a) for a in allowed if a != "never")) or "nothing"
        raise SettingsError(
            f"policy {policy!r} cannot use {setting}={value!r}; leave it out or use {choices}."
        )
    return value
