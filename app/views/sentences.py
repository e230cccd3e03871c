"""One sentence per token for screen readers, and the line that is read aloud every few seconds.

records.md: token i is described by the pass at position P+i-1, and stands at position P+i.
"""

from __future__ import annotations

from river_core.records import TokenRecord

from .display import quoted
from .numbers import decimal, seconds, spans
from .run import Lane, Run
from .wording import listed, say


def token_sentence(token: TokenRecord, num_layers: int) -> str:
    """The whole of a cell in one sentence: its text, its exit, and what the cache received."""
    return say(
        "token.sentence",
        number=token.index + 1,
        text=quoted(token.text, token.raw, token.token_id),
        exit=exit_phrase(token, num_layers),
        cache=cache_phrase(token),
    )


def exit_phrase(token: TokenRecord, num_layers: int) -> str:
    """'chosen after 14 of 30 layers, similarity 0.97', or why it did not leave early."""
    if token.exit_layer == 0:
        return say("token.all_river", layers=num_layers)
    if token.exit_layer == num_layers:
        return say("token.never_left", layers=num_layers)
    key = "token.forced" if token.forced else "token.left"
    last = token.similarities[token.exit_layer - 1] if token.similarities else None
    return say(key, exit=token.exit_layer, layers=num_layers, similarity=decimal(last, 4))


def cache_phrase(token: TokenRecord) -> str:
    """What the row at position P+i-1 received from elsewhere than the backbone."""
    position = token.position - 1
    parts = [
        say(
            f"source.{letter}.one" if first == last else f"source.{letter}.many",
            layers=layer_span(first, last),
            position=position,
        )
        for letter, first, last in spans(token.kv_source)
        if letter != "b"
    ]
    if not parts:
        return say("token.cache_backbone", position=position)
    return say("token.cache", parts=listed(parts))


def layer_span(first: int, last: int) -> str:
    """'layer 3' or 'layers 3 to 7'."""
    if first == last:
        return say("layer.one", layer=first)
    return say("layer.span", first=first, last=last)


def prompt_sentence(lane: Lane) -> str:
    """How deep the prompt pass went and how long it took; empty before it has run."""
    prompt = lane.prompt
    if prompt is None:
        return ""
    never = prompt.exit_layer == lane.num_layers
    key = "prompt.never_left" if never and lane.exits else "prompt.depth"
    return say(
        key,
        tokens=len(prompt.token_ids),
        exit=prompt.exit_layer,
        layers=lane.num_layers,
        seconds=seconds(prompt.seconds),
    )


def live_line(run: Run) -> str:
    """The polite summary: what is going on and how far it is."""
    if run.error:
        return run.error
    return say(
        f"live.{run.phase}",
        upper=len(run.upper.tokens),
        lower=len(run.lower.tokens),
        first=run.upper.title,
        second=run.lower.title,
    )
