"""What goes into every linear while a bundled text runs through the backbone: second moments.

Layer by layer, as the layers are read, so that one layer's weights at a time are enough. Knows the
block, not how layers are read or quantised.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from .block import BlockRows, Rope, run_block
from .cache import Rows, SharedCache
from .errors import RiverError
from .kernels.base import Linear
from .layer import BlockShape, LayerWeights
from .text import chat_ids, raw_ids

TEXT = "text-2"  # counts up with the bundled text, so that rivers made with another are not read
TOKENS = 3072  # at most, of the text
SEQUENCE = 256  # tokens that see each other
ROWS = 1024  # inputs that are multiplied at once


def bundled_text() -> list[tuple[str, str]]:
    """Prompts of ours with the answers that SmolLM2 gave through this engine."""
    text = files("river_core").joinpath("data/activations.json").read_text(encoding="utf-8")
    return [(p["prompt"], p["text"]) for p in json.loads(text)["passages"]]


def sequences(tokenizer: Any) -> list[list[int]]:
    """The bundled text as token ids, cut to sequences.

    As the model sees a chat where its tokenizer has a template, else as plain text.
    """
    found: list[list[int]] = []
    for prompt, answer in bundled_text():
        if tokenizer.chat_template:
            start = chat_ids(tokenizer, [{"role": "user", "content": prompt}])
            ids = [*start, *tokenizer(answer, add_special_tokens=False)["input_ids"]]
        else:
            ids = list(raw_ids(tokenizer, f"{prompt}\n\n{answer}"))
        found += [ids[n : n + SEQUENCE] for n in range(0, len(ids), SEQUENCE)]
    kept, total = [], 0
    for ids in found:
        if total < TOKENS and len(ids) > 1:
            kept.append(ids)
            total += len(ids)
    return kept


class _Tap:
    """A linear that adds up x^T x of what it is given."""

    def __init__(self, inner: Linear) -> None:
        self.name, self.bits, self.shape = inner.name, inner.bits, inner.shape
        self._inner, self._count = inner, 0
        self._held: list[Tensor] = []
        self._sum: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        self._held.append(x)
        if sum(len(held) for held in self._held) >= ROWS:
            self._add()
        return self._inner(x)

    def _add(self) -> None:
        rows = torch.cat(self._held)
        self._held = []
        self._count += len(rows)
        if self._sum is None:
            self._sum = torch.zeros(rows.shape[1], rows.shape[1], device=rows.device)
        self._sum.addmm_(rows.t(), rows)

    def moments(self) -> Tensor:
        """The mean of x x^T so far, fp32 [K, K]."""
        if self._held:
            self._add()
        if self._sum is None:
            raise RiverError(f"nothing went through the linear {self.shape}.")
        return self._sum / self._count

    def dense(self) -> Tensor:
        """As the linear's own."""
        return self._inner.dense()

    def tensors(self) -> list[Tensor]:
        """As the linear's own."""
        return self._inner.tensors()


@dataclass
class InputMoments:
    """The residual streams of all sequences, `done` layers deep: fp32 [rows, d] each."""

    shapes: Sequence[BlockShape]
    ropes: Sequence[Rope]
    streams: list[Tensor]
    done: int = field(default=0)

    @torch.inference_mode()
    def through(self, weights: LayerWeights) -> dict[str, Tensor]:
        """Run the next layer; the mean of x x^T of each fused linear's inputs, fp32 [K, K]."""
        shape = self.shapes[self.done]
        taps = {name: _Tap(linear) for name, linear in weights.linears.items()}
        tapped = weights.with_linears(dict(taps))
        longest = max(len(x) for x in self.streams)
        heads = (shape.kv_heads, shape.head_dim)
        scratch = SharedCache(1, longest, heads, torch.float32, self.streams[0].device)
        for n, x in enumerate(self.streams):
            rows = Rows((0,) * len(x), tuple(range(len(x))))
            at = BlockRows.of(rows, self.ropes)
            self.streams[n] = run_block(x, tapped, shape, at, scratch, 1)
        self.done += 1
        return {name: tap.moments() for name, tap in taps.items()}
