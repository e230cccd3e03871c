"""Packing a run for the page, small enough to send ten times a second.

A lane's tokens are lines, a JSON array per token in the order of `FIELDS`; a snapshot carries the
lines from an index on (window.py). Similarities are three base-36 digits each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from river_core.records import PromptRecord, TokenRecord

from . import colour
from .agreement import first_difference
from .cache import pack_updates, prompt_rows, run_lengths
from .comparison import comparison
from .display import show
from .numbers import decimal
from .packing import pack_trace
from .preview import preview
from .readouts import live_mean_exit, live_rate, readouts
from .run import Lane, ModelCard, Run
from .sentences import live_line, prompt_sentence, token_sentence
from .wording import say

FIELDS = (
    "text",  # what the cell shows
    "kind",  # "text", "bytes" or "empty"
    "gap",  # 1 when the token begins with a space
    "exit",  # exit layer
    "bin",  # fill number
    "entry",  # legend entry
    "trace",  # packed similarities
    "kv",  # KV source of the row at position - 1, in runs ("b14r16")
    "position",
    "threshold",
    "probability",
    "entropy",
    "alternatives",  # [[shown text, probability, id], ...]
    "seconds",
    "id",
    "label",  # the sentence for screen readers
    "forced",  # 1 when it had to leave because no more layers are resident
    "parts",  # {part: milliseconds} in profile mode, else null
)


def pack_token(token: TokenRecord, num_layers: int) -> str:
    """One line of a lane: a JSON array in the order of `FIELDS`, without the line end."""
    shown = show(token.text, token.raw, token.token_id)
    values = [
        shown.text,
        shown.kind,
        int(shown.gap),
        token.exit_layer,
        colour.bin_of(token.exit_layer, num_layers),
        colour.legend_index(token.exit_layer, num_layers),
        pack_trace(token.similarities),
        run_lengths(token.kv_source),
        token.position,
        round(token.threshold, 4),
        round(math.exp(min(token.logprob, 0.0)), 4),
        round(token.entropy, 3),
        [_alternative(*a) for a in token.alternatives],
        round(token.seconds, 4),
        token.token_id,
        token_sentence(token, num_layers),
        int(token.forced),
        _parts(token),
    ]
    return json.dumps(values, ensure_ascii=True, separators=(",", ":"))


def _alternative(token_id: int, text: str, logprob: float) -> list[Any]:
    shown = show(text, token_id=token_id)
    mark = "·" if shown.gap else ""
    return [mark + shown.text, round(math.exp(min(logprob, 0.0)), 4), token_id]


def _parts(token: TokenRecord) -> dict[str, float] | None:
    if token.parts is None:
        return None
    return {part: round(spent, 3) for part, spent in token.parts.items()}


def append(lane: Lane, token: TokenRecord) -> None:
    """Add a token to a lane, and its line."""
    lane.tokens.append(token)
    lane.lines.append(pack_token(token, lane.num_layers))


def snapshot(run: Run, card: ModelCard, starts: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Everything the page draws, as JSON-able values; no HTML.

    `starts` gives per lane the first token to send; without it all are sent.
    """
    starts = starts or {}
    finished = all(lane.phase == "done" for lane in run.lanes)
    difference = first_difference(run.upper.token_ids, run.lower.token_ids, finished=finished)
    layers = run.upper.num_layers or card.num_layers
    return {
        "run": run.id,
        "phase": run.phase,
        "status": status_line(run, card),
        "error": run.error,
        "live": live_line(run),
        "layers": layers,
        "difference": difference,
        "legend": _legend(run.upper, layers) if layers else [],
        "lanes": {lane.name: _lane(lane, difference, starts) for lane in run.lanes},
        "preview": preview(run),
        "comparison": comparison(run),
        "readouts": readouts(run),
        "card": card_view(card),
    }


def pack(view: Mapping[str, Any]) -> str:
    """A view as one JSON string: the browser compares it cheaply, and no tag can appear in it."""
    return json.dumps(view, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


def status_line(run: Run, card: ModelCard) -> str:
    """The chip in the top bar while a run is on."""
    if run.phase in ("waiting", "loading") and card.state == "loading":
        return card.message
    return say(f"status.{run.phase}", seconds=decimal(run.waited, 1), ahead=run.ahead)


def card_view(card: ModelCard) -> dict[str, Any]:
    """The top bar: chips as [text, explanation], and the status with its state."""
    chips = [[card.name, card.origin], [card.device, say("bar.device")]]
    chips.append([card.river, say("bar.river")])
    return {
        "state": card.state,
        "status": card.message,
        "chips": [chip for chip in chips if chip[0]],
        "origin": card.origin,
        "notes": list(card.notes),
        "layers": card.num_layers,
        "resident": card.resident,
    }


def _lane(lane: Lane, difference: int | None, starts: Mapping[str, int]) -> dict[str, Any]:
    start, changed = starts.get(lane.name, 0), starts.get(f"{lane.name}.updates", 0)
    return {
        "phase": lane.phase,
        "title": lane.title,
        "policy": lane.policy,
        "from": start,
        "tokens": "\n".join(lane.lines[start:]),
        "caption": _caption(lane),
        "different": _different(lane, difference),
        "ended": lane.summary is not None and lane.summary.stop_reason == "eos",
        "exits": lane.exits,
        "depth": prompt_sentence(lane),
        "prompt": _prompt_tokens(lane.prompt) if lane.name == "upper" else [],
        "prompt_length": len(lane.prompt.token_ids) if lane.prompt else 0,
        "prompt_kv": prompt_rows(lane.prompt),
        "updates": [changed, pack_updates(lane.updates, changed)],
    }


def _prompt_tokens(prompt: PromptRecord | None) -> list[list[Any]]:
    if prompt is None:
        return []
    raw = prompt.raw
    texts = zip(prompt.texts, prompt.token_ids, strict=True)
    shown = [show(text, raw.get(i, ""), token) for i, (text, token) in enumerate(texts)]
    return [[s.text, s.kind, int(s.gap)] for s in shown]


def _caption(lane: Lane) -> str:
    if not lane.tokens:
        return say(f"caption.{lane.name}.{lane.phase}")
    rate = decimal(live_rate(lane))
    if not lane.exits:
        return say("caption.all", layers=lane.num_layers, n=len(lane.tokens), rate=rate)
    return say(
        "caption.leaves",
        threshold=decimal(lane.tokens[-1].threshold, 3),
        mean=decimal(live_mean_exit(lane)),
        layers=lane.num_layers,
        n=len(lane.tokens),
        rate=rate,
    )


def _different(lane: Lane, difference: int | None) -> str:
    if difference is None or lane.name == "upper":
        return ""
    if difference >= len(lane.tokens):
        return say("lane.ends_first", number=difference)
    token = lane.tokens[difference]
    shown = show(token.text, token.raw, token.token_id)
    return say("lane.different", text=shown.text, number=difference + 1)


def _legend(lane: Lane, layers: int) -> list[dict[str, Any]]:
    numbers = colour.counts([t.exit_layer for t in lane.tokens], layers)
    return [
        {
            "fill": entry.fill,
            "never": entry.never,
            "last": entry.last,
            "text": _entry(entry),
            "count": count,
        }
        for entry, count in zip(colour.legend(layers), numbers, strict=True)
    ]


def _entry(entry: colour.Bin) -> str:
    if entry.never:
        return say("legend.never", layers=entry.last)
    return f"{entry.first}–{entry.last}" if entry.first < entry.last else str(entry.first)
