"""One pass over a finished run's tokens through every backbone layer that is there.

It leaves the model's cache alone: a scratch cache with a single slot serves every layer in turn.
"""

from __future__ import annotations

import torch

from .cache import Rows, SharedCache
from .execution.eager import EagerExecution
from .model import RiverModel


@torch.inference_mode()
def full_trace(
    model: RiverModel, fed: tuple[int, ...], passes: int
) -> tuple[tuple[float, ...], ...]:
    """Similarities [pass][layer] of the last `passes` rows of `fed`, had no token left.

    Of all L layers, or where some are evicted of the resident ones: 1 to `model.resident`.
    Row n of `fed` is the row whose pass chose the token after it (records.md, full_trace).
    """
    shape = model.shape
    scratch = SharedCache(
        1, len(fed), (shape.kv_heads, shape.head_dim), model.cache.k.dtype, model.device
    )
    engine = EagerExecution(model, scratch, scratch=True)
    engine.start(Rows(fed, tuple(range(len(fed)))))
    engine.backbone(1, model.resident)
    layers = engine.trace(model.resident)
    first = len(fed) - passes
    return tuple(tuple(row[first + n] for row in layers) for n in range(passes))
