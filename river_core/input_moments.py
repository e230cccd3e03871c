"""What goes into every linear while a bundled text runs through the backbone: second moments.

Layer by layer, as the layers are read, so that one layer's weights at a time are enough. Knows the
block, not how layers are read or quantised.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

import torch
from torch import Tensor

from .block import BlockRows, Rope, run_block
from .cache import Rows, SharedCache
from .errors import RiverError
from .kernels.base import Linear
from .layer import BlockShape, LayerWeights

TEXT = "text-1"  # counts up with the bundled text, so that rivers made with another are not read
TOKENS = 4096  # at most, of the text
SEQUENCE = 256  # tokens that see each other


def bundled_text() -> list[str]:
    """Prompts of ours with answers that SmolLM2 gave through this engine."""
    text = files("river_core").joinpath("data/activations.json").read_text(encoding="utf-8")
    return [f"{p['prompt']}\n\n{p['text']}" for p in json.loads(text)["passages"]]


def sequences(encode: Callable[[str], list[int]]) -> list[list[int]]:
    """The bundled text as token ids, cut to sequences."""
    found: list[list[int]] = []
    for passage in bundled_text():
        ids = encode(passage)
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
        self._inner, self._rows = inner, 0
        self._sum: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        product = x.t() @ x
        self._sum = product if self._sum is None else self._sum.add_(product)
        self._rows += x.shape[0]
        return self._inner(x)

    def moments(self) -> Tensor:
        """The mean of x x^T so far, fp32 [K, K]."""
        if self._sum is None:
            raise RiverError(f"nothing went through the linear {self.shape}.")
        return self._sum / self._rows

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
