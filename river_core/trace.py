"""One pass over a finished run's tokens through every backbone layer that is there.

It leaves the model's cache alone: a scratch cache, on one device with a single slot for all layers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cache import Rows, SharedCache
from .execution.eager import EagerExecution
from .execution.split import SplitExecution
from .giving_up import go_on
from .model import RiverModel


def _scratch(model: RiverModel, rows: int) -> EagerExecution:
    """An execution over a cache of its own; on several devices the layers cannot share a slot."""
    heads = (model.shape.kv_heads, model.shape.head_dim)
    if model.placement:
        cache = SharedCache(model.num_layers, rows, heads, model.cache.dtype, model.placement)
        return SplitExecution(model, cache)
    cache = SharedCache(1, rows, heads, model.cache.dtype, model.device)
    return EagerExecution(model, cache, scratch=True)


@torch.inference_mode()
def full_trace(
    model: RiverModel, fed: tuple[int, ...], passes: int, pause: Callable[[], None] = go_on
) -> tuple[tuple[float, ...], ...]:
    """Similarities [pass][layer] of the last `passes` rows of `fed`, had no token left.

    Of all L layers, or where some are evicted of the resident ones: 1 to `model.resident`.
    Row n of `fed` is the row whose pass chose the token after it (records.md, full_trace). `pause`
    is called again and again; its errors end the work.
    """
    engine = _scratch(model, len(fed))
    engine.pause = pause
    engine.start(Rows(fed, tuple(range(len(fed)))))
    engine.backbone(1, model.resident)
    layers = engine.trace(model.resident)
    first = len(fed) - passes
    return tuple(tuple(row[first + n] for row in layers) for n in range(passes))
