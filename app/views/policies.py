"""What the page says of a policy: its name, its sentence, and which settings it can use."""

from __future__ import annotations

from typing import Any

from river_core.policies import POLICIES

from .wording import listed, say, sentences

ON_PAGE = ("similarity", "confidence", "gap", "fixed")  # the other exit rules need a list of layers


def policy_name(policy: str) -> str:
    """'River', 'Backbone', ...; a policy of a recorded run that is not known here, as it is."""
    return say(f"policy.{policy}") if policy in POLICIES else policy


def policy_choices() -> list[tuple[str, str]]:
    """(name on the page, policy) in the table's order."""
    return [(policy_name(policy), policy) for policy in POLICIES]


def leaves(policy: str) -> bool:
    """Whether its tokens may leave before the last layer."""
    row = POLICIES.get(policy)
    return row is None or row.exits != ("never",)


def usable(policy: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Those of the page's settings `exit`, `head`, `prefill` that the policy can use."""
    row = POLICIES[policy]
    allowed = {"exit": row.exits, "head": row.heads, "prefill": row.prefills}
    return {name: value for name, value in settings.items() if value in allowed[name]}


def first_exit(policy: str, entry_layer: int) -> int | None:
    """First layer after which a token may leave by its own similarity alone; None: not by that."""
    row = POLICIES.get(policy)
    if row is None or row.exits[0] != "similarity" or row.wrap is not None:
        return None
    return max(entry_layer - 1, int(row.options.get("min_exit", 0)))


def policy_sentence(policy: str) -> str:
    """What it does and what it can be given, in sentences."""
    row = POLICIES[policy]
    exits = [rule for rule in row.exits if rule in ON_PAGE]
    parts = [say(f"policy.{policy}.about")]
    if len(exits) > 1:
        parts.append(say("policy.exits", rules=listed(say(f"rule.{rule}") for rule in exits)))
    elif not leaves(policy):
        parts.append(say("policy.never"))
    parts.append(say("policy.heads" if len(row.heads) > 1 else f"policy.head_{row.heads[0]}"))
    parts.append(say("policy.prefills" if len(row.prefills) > 1 else "policy.prefill_fixed"))
    return sentences(parts)
