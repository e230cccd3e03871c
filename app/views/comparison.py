"""Two finished answers side by side: how far they agree, where they part and what each thought.

Sent once both lanes are done, so that a snapshot stays small while tokens come.
"""

from __future__ import annotations

import math
from typing import Any

from river_core.records import TokenRecord

from .agreement import agreeing, first_difference
from .display import show
from .numbers import percent
from .run import Lane, Run
from .saved import saved
from .wording import say


def comparison(run: Run) -> dict[str, Any] | None:
    """`sentence`, `difference`, `after`, `saved`, and the seconds of each prompt pass; None until
    both lanes are done."""
    if any(lane.phase != "done" or lane.summary is None or not lane.tokens for lane in run.lanes):
        return None
    index = first_difference(run.upper.token_ids, run.lower.token_ids, finished=True)
    return {
        "sentence": _sentence(run, index),
        "difference": None if index is None else _difference(run, index),
        "after": "" if index is None else say("compare.after"),
        "saved": saved(run),
        "prefill": {lane.name: round(lane.prompt.seconds, 4) for lane in run.lanes if lane.prompt},
    }


def _sentence(run: Run, index: int | None) -> str:
    same, compared = agreeing(run.upper.token_ids, run.lower.token_ids)
    policies = {"upper": run.upper.title, "lower": run.lower.title}
    if index is None:
        return say("compare.equal", tokens=compared, **policies)
    return say(
        "compare.agree", same=same, compared=compared, share=percent(same / compared), **policies
    )


def _difference(run: Run, index: int) -> dict[str, Any]:
    """The pass that chose differently, in both lanes; a lane that has ended has no token there."""
    chosen = [lane.tokens[index] if index < len(lane.tokens) else None for lane in run.lanes]
    return {
        "index": index,
        "lanes": [
            _side(lane, other, own, others)
            for lane, other, own, others in (
                (run.upper, run.lower, chosen[0], chosen[1]),
                (run.lower, run.upper, chosen[1], chosen[0]),
            )
        ],
    }


def _side(
    lane: Lane, other: Lane, own: TokenRecord | None, others: TokenRecord | None
) -> dict[str, Any]:
    """What one lane chose and thought; `rows` are [text, probability, whose choice it was]."""
    if own is None:
        return {
            "lane": lane.name,
            "title": lane.title,
            "token": "",
            "rows": [],
            "said": say("compare.ended", policy=lane.title, tokens=len(lane.tokens)),
        }
    ids = {own.token_id: "own"} | ({others.token_id: "other"} if others else {})
    return {
        "lane": lane.name,
        "title": lane.title,
        "token": _text(own.text, own.raw, own.token_id),
        "rows": [
            [_text(text, "", token), _probability(logprob), ids.get(token, "")]
            for token, text, logprob in own.alternatives
        ],
        "said": _other(own, others, other),
    }


def _other(own: TokenRecord, others: TokenRecord | None, other: Lane) -> str:
    """Where the other lane's token stood in this one's opinion."""
    if others is None:
        return ""
    for rank, (token, _, logprob) in enumerate(own.alternatives, start=1):
        if token == others.token_id:
            share = f"{100 * _probability(logprob):.1f} %"
            return say("compare.rank", policy=other.title, rank=rank, share=share)
    return say("compare.unranked", policy=other.title, count=len(own.alternatives))


def _probability(logprob: float) -> float:
    return round(math.exp(min(logprob, 0.0)), 4)


def _text(text: str, raw: str, token_id: int) -> str:
    shown = show(text, raw, token_id)
    return ("·" if shown.gap else "") + shown.text
