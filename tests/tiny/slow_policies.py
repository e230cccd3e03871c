"""The slow reference of every KV strategy: row by row over transformers' own weights.

Keys and values stand in plain dictionaries, attention is written out, every decision is a list of
exit layers. It shares no code with the engine but the quantizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from river_core.settings import QuantSpec
from tests.tiny.slow_layers import SlowLayer

Slots = list[dict[int, tuple[Tensor, Tensor]]]  # per layer: position -> k, v [kv_heads, D]


class SlowRows:
    """One row at a time; `twin` chooses the dequantised weights."""

    def __init__(self, model: Any, spec: QuantSpec) -> None:
        self.model = model
        self.layers = [SlowLayer(model, n, spec) for n in range(1, len(model.model.layers) + 1)]

    def embed(self, token: int) -> Tensor:
        return self.model.model.embed_tokens(torch.tensor([token]))[0].float()

    def logits(self, h: Tensor) -> Tensor:
        return self.model.lm_head.weight.float() @ self.model.model.norm(h)

    def keys_values(self, n: int, h: Tensor, at: int, twin: bool = False) -> tuple[Tensor, Tensor]:
        layer = self.layers[n - 1]
        x = layer.before("attention", h)
        return layer.turn(layer.heads("k", x, twin), at), layer.heads("v", x, twin)

    def attend(
        self, n: int, h: Tensor, at: int, slots: Slots, *, twin: bool = False
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The attention half over the slots of earlier positions and its own row."""
        layer, own = self.layers[n - 1], self.keys_values(n, h, at, twin)
        first = at + 1 - (layer.window or at + 1)
        seen = [kv for p, kv in sorted(slots[n - 1].items()) if first <= p < at] + [own]
        q = layer.turn(layer.heads("q", layer.before("attention", h), twin), at, query=True)
        mixed = []
        for head, query in enumerate(q):
            group = head * own[0].shape[0] // q.shape[0]
            scores = torch.stack([k[group] @ query for k, _ in seen]) * layer.scale
            weights = scores.softmax(0)
            mixed.append(sum(w * v[group] for w, (_, v) in zip(weights, seen, strict=True)))
        out = layer.linear("o_proj", torch.cat(mixed), twin)
        return h + layer.after("attention", out), own

    def feed(self, n: int, h: Tensor, *, twin: bool = False) -> Tensor:
        layer = self.layers[n - 1]
        x = layer.before("feed_forward", h)
        gated = layer.gate(layer.linear("gate_proj", x, twin)) * layer.linear("up_proj", x, twin)
        return h + layer.after("feed_forward", layer.linear("down_proj", gated, twin))

    def span(
        self, h: Tensor, at: int, first: int, last: int, slots: Slots, *, twin: bool = False
    ) -> tuple[Tensor, Slots]:
        """Layers first..last; returns h and what the row would write in each layer."""
        wrote: Slots = [{} for _ in self.layers]
        for n in range(first, last + 1):
            h, wrote[n - 1][at] = self.attend(n, h, at, slots, twin=twin)
            h = self.feed(n, h, twin=twin)
        return h, wrote


def put(slots: Slots, wrote: Slots) -> None:
    for mine, new in zip(slots, wrote, strict=True):
        mine.update(new)


@torch.no_grad()
def decode(
    slow: SlowRows, prompt: Sequence[int], exits: Sequence[int], fill: str, head: str
) -> tuple[list[int], Tensor]:
    """Greedy tokens and logits [n, V] under a KV strategy; exits[i] for the pass of token i.

    The prompt runs full depth, but for fill "none" with exits[0] < L (fixed exit).
    """
    last = len(slow.layers)
    slots: Slots = [{} for _ in slow.layers]
    exact: dict[int, Slots] = {}  # position -> what its full backbone row writes
    ids, rows = list(prompt), []
    for at in range(len(prompt)):
        h, wrote = slow.span(slow.embed(ids[at]), at, 1, exits[0], slots)
        put(slots, wrote)
    rows.append(slow.logits(h))
    for e in exits[1:]:
        ids.append(int(rows[-1].argmax()))
        at = len(ids) - 1
        for position, late in exact.items():  # a deeper token brings waiting rows along
            for n in range(1, e + 1):
                if position in late[n - 1]:
                    slots[n - 1][position] = late[n - 1][position]
        h, wrote = slow.span(slow.embed(ids[at]), at, 1, e, slots)
        put(slots, wrote)
        tail, stand_in = slow.span(h, at, e + 1, last, slots, twin=True)
        rows.append(slow.logits(tail if head == "river" else h))
        if fill == "propagate":
            for n in range(e + 1, last + 1):
                slots[n - 1][at] = slow.keys_values(n, h, at)
        if fill == "river" or (fill == "defer" and head == "river"):
            put(slots, stand_in)
        if fill == "defer" and e < last:
            complete: Slots = [dict(layer) for layer in slots]
            for late in exact.values():
                put(complete, late)
            exact[at] = slow.span(h, at, e + 1, last, complete)[1]
    ids.append(int(rows[-1].argmax()))
    return ids[len(prompt) :], torch.stack(rows)


Choose = Callable[[int, int, str, Tensor, Tensor | None], float | None]


@torch.no_grad()
def decode_halves(slow: SlowRows, prompt: Sequence[int], count: int, choose: Choose) -> list[int]:
    """Greedy tokens where `choose` may leave halves out.

    choose(index, layer, half, before, after): asked with after None for a factor (None: run it),
    told with after once a half ran.
    """
    slots: Slots = [{} for _ in slow.layers]
    ids = list(prompt)
    at = 0
    while len(ids) < len(prompt) + count:
        h = slow.embed(ids[at])
        index = max(0, at - len(prompt) + 1)
        for n in range(1, len(slow.layers) + 1):
            for half in ("attention", "feed_forward"):
                factor = choose(index, n, half, h, None)
                if factor is not None:
                    h = h * factor
                    continue
                before = h
                if half == "attention":
                    h, slots[n - 1][at] = slow.attend(n, h, at, slots)
                else:
                    h = slow.feed(n, h)
                choose(index, n, half, before, h)
        at += 1
        if at >= len(ids):
            ids.append(int(slow.logits(h).argmax()))
    return ids[len(prompt) :]
