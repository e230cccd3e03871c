"""What a token reads and how fast the machine reads: the two sides of a byte bound.

Weights are read once per token at batch 1, so bytes are time. Knows nothing of runs or contenders.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean

import torch

from .devices import settle
from .kernels.base import Linear
from .layer import BlockShape
from .model import RiverModel


@dataclass(frozen=True)
class ReadBytes:
    """Bytes of weights that a token reads: of one backbone layer, one twin, the LM head.

    Without the embedding's one row, norms and the KV cache, which are small beside them.
    """

    layer: float
    twin: float
    head: float
    layers: int

    @classmethod
    def of_shape(
        cls, shape: BlockShape, layers: int, vocab: int, *, dense: float = 16, int4: float = 4.5
    ) -> ReadBytes:
        """From sizes and bits per weight; 4.5 is 4 bits with 16-bit scale and zero per 64."""
        weights = sum(n * k for n, k in shape.matrices.values())
        head = vocab * shape.hidden * dense / 8
        return cls(weights * dense / 8, weights * int4 / 8, head, layers)

    @classmethod
    def of_model(cls, model: RiverModel) -> ReadBytes:
        """From a model's own kernels."""
        layers = [_bytes(w.linears.values()) for w in model.backbone if w is not None]
        twins = [_bytes(w.linears.values()) for w in model.river if w is not None]
        return cls(fmean(layers), fmean(twins), _bytes([model.head]), model.num_layers)

    def at(self, exit_layer: float) -> float:
        """Bytes of a token that leaves after `exit_layer` backbone layers (a mean will do)."""
        twins = self.layers - exit_layer
        return exit_layer * self.layer + twins * self.twin + self.head


def _bytes(linears: Iterable[Linear]) -> float:
    return sum(x.bits / 8 * x.shape[0] * x.shape[1] for x in linears)


def read_bandwidth(device: torch.device, size: int = 512 << 20, repeats: int = 7) -> float:
    """GB/s of reading `size` bytes once with torch's current threads.

    The best of `repeats` of the fastest of three read-only passes over a buffer that no cache
    holds: a sum as fp32, a sum as int64, a matrix-vector product.
    """
    numbers = torch.ones(size // 4096, 1024, device=device)
    whole, vector = numbers.view(torch.int64), numbers[0].clone()
    passes: list[Callable[[], object]] = [
        lambda: numbers.sum(),
        lambda: whole.sum(),
        lambda: torch.mv(numbers, vector),
    ]
    calls = 10 if device.type == "cuda" else 1  # so that launching does not count
    best = math.inf
    for run in passes:
        for _ in range(repeats):
            settle(device)
            start = time.perf_counter()
            for _ in range(calls):
                run()
            settle(device)
            best = min(best, (time.perf_counter() - start) / calls)
    return numbers.nbytes / best / 1e9
