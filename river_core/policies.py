"""The named combinations of exit rule, fill, head and prefill, as a table.

A policy is data: adding one is a row here. The loop never asks for a policy's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import SettingsError
from .exits import ExitRule, NeverDeeper, Schedule
from .fills import AdaSkip, FeedForwardSkip, Skip

ANY_EXIT = ("similarity", "confidence", "gap", "fixed", "schedule", "oracle")


@dataclass(frozen=True)
class Policy:
    """One row: what a policy does by default, and what it may be given instead.

    `options` are option names with their defaults (None: no default); `exits` the exit rules it
    can use, its own first; `heads` likewise; `keep_first` positions whose tokens never leave;
    `threshold` a default that is not the model's; `wrap` (rule, options, deepest exit layer, new
    tokens) puts another rule around it; `offloads` says that it also runs where only the first
    backbone layers are resident: rows that reach the last of them have to leave there.
    """

    sentence: str
    source: str
    exits: tuple[str, ...]
    fill: str = "river"
    heads: tuple[str, ...] = ("river",)
    prefills: tuple[str, ...] = ("exit", "full")
    options: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)  # of its exit rule, not to be changed
    skip: Callable[[Mapping[str, Any]], Skip] | None = None
    wrap: Callable[[ExitRule, Mapping[str, Any], int, int], ExitRule] | None = None
    full_river: bool = False  # also needs the twins below the entry layer
    offloads: bool = False
    keep_first: int = 0
    threshold: float | None = None


def _decay(rule: ExitRule, options: Mapping[str, Any], deepest: int, new_tokens: int) -> ExitRule:
    """SkipDecode's own schedule where `decay` asks for it: linear from the deepest down to it."""
    least = options["decay"]
    if least is None:
        return NeverDeeper(rule)
    drop = (deepest - least) / max(1, new_tokens - 1)
    return Schedule(tuple(round(deepest - drop * i) for i in range(new_tokens)))


FROM_SIMILARITY = ("similarity", *(name for name in ANY_EXIT if name != "similarity"))
FULL = ("full",)
BOTH_HEADS = ("river", "lens")

POLICIES: dict[str, Policy] = {
    "backbone": Policy(
        sentence="Every token runs all layers in 16 bits.",
        source="the model itself",
        exits=("never",),
        prefills=FULL,
    ),
    "river": Policy(
        sentence="A token leaves when a layer hardly changes it, and its remaining layers run in "
        "the 4-bit river, which writes the same KV cache.",
        source="River-LLM, arXiv 2604.18396, sections 3.1 and 4",
        exits=FROM_SIMILARITY,
        offloads=True,
    ),
    "full-quant": Policy(
        sentence="Every token runs all layers in the 4-bit river.",
        source="River-LLM, table 3, Full Quant.",
        exits=("fixed",),
        fixed={"exit_layer": 0},
        full_river=True,
        offloads=True,
    ),
    "kv-mask": Policy(
        sentence="Skipped layers keep no keys and values of the token; later tokens do not see it "
        "there. The first two positions and the prompt stay complete.",
        source="D-LLM, NeurIPS 2024; River-LLM, KV Mask",
        exits=FROM_SIMILARITY,
        fill="mask",
        heads=BOTH_HEADS,
        prefills=FULL,
        options={"min_exit": 2},
        keep_first=2,
    ),
    "state-propagation": Policy(
        sentence="Skipped layers take their keys and values from the state at the exit.",
        source="CALM, arXiv 2207.07061; ELLM, arXiv 2407.20272",
        exits=FROM_SIMILARITY,
        fill="propagate",
        heads=BOTH_HEADS,
        prefills=FULL,
    ),
    "batch-recompute": Policy(
        sentence="The state at the exit waits; the next token that goes deeper carries it along, "
        "so the cache becomes exact later.",
        source="EE-LLM, arXiv 2312.04916",
        exits=FROM_SIMILARITY,
        fill="defer",
        heads=BOTH_HEADS,
        prefills=FULL,
    ),
    "mono-decreasing": Policy(
        sentence="No token goes deeper than the one before it, so nothing is ever missing.",
        source="SkipDecode, arXiv 2307.02628",
        exits=FROM_SIMILARITY,
        fill="none",
        heads=BOTH_HEADS,
        prefills=FULL,
        options={"decay": None},
        wrap=_decay,
        offloads=True,
    ),
    "fixed-exit": Policy(
        sentence="The whole sequence, prompt included, leaves after one layer: half of them, or "
        "size 'L' (3/4), 'M' (1/2), 'S' (1/4).",
        source="Balcony, arXiv 2503.05005; sequence-level exit",
        exits=("fixed",),
        fill="none",
        heads=BOTH_HEADS,
        prefills=("exit",),
        options={"exit_layer": None, "size": "M", "fill": None},
        offloads=True,
    ),
    "self-speculative": Policy(
        sentence="The first layers draft tokens with an untrained head; the other layers verify "
        "them together, so the text is the backbone's.",
        source="LayerSkip, arXiv 2404.16710",
        exits=("fixed",),
        fill="defer",
        heads=("lens",),
        prefills=FULL,
        options={"exit_layer": None, "size": "S", "draft": 6},
    ),
    "adaskip": Policy(
        sentence="Attention or feed-forward halves that changed the prompt least become a scale; "
        "further feed-forward halves after the first tokens.",
        source="AdaSkip, arXiv 2501.02336",
        exits=("never",),
        prefills=FULL,
        options={"halves": None, "observed": 20},
        skip=lambda options: AdaSkip(options["halves"], options["observed"]),
        threshold=0.98,
    ),
    "ffn-skip": Policy(
        sentence="Attention always runs; the feed-forward half is left out where attention hardly "
        "changed the token.",
        source="DiffSkip, Findings of ACL 2025.377, in a training-free form",
        exits=("never",),
        prefills=FULL,
        skip=lambda options: FeedForwardSkip(),
        threshold=0.999,
    ),
    "river-verified": Policy(
        sentence="Tokens are drafted through the river, then verified in one backbone pass that "
        "also overwrites their keys and values: greedy text is the backbone's.",
        source="ours: River-LLM's exits inside speculative decoding",
        exits=FROM_SIMILARITY,
        prefills=FULL,
        options={"draft": 4},
    ),
}
SIZES = {"L": 3 / 4, "M": 1 / 2, "S": 1 / 4}  # Balcony's, rounded up


def find_policy(name: str) -> Policy:
    """The row called `name`; raises SettingsError with the known names."""
    if name not in POLICIES:
        raise SettingsError(f"unknown policy {name!r}; known are {', '.join(POLICIES)}.")
    return POLICIES[name]
