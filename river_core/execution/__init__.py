"""How the steps of a pass run: one interface over static buffers, one file per way."""

from __future__ import annotations

from ..model import RiverModel
from .base import Execution
from .eager import EagerExecution
from .fused import FusedExecution, can_fuse
from .split import SplitExecution


def open_execution(model: RiverModel) -> Execution:
    """The fastest way this model's kernels allow; the model tells it when layers are evicted."""
    engine: EagerExecution
    if model.placement:
        engine = SplitExecution(model)
    else:
        fuse = can_fuse(model) and model.info.execution != "eager"
        engine = FusedExecution(model) if fuse else EagerExecution(model)
    model.engines.add(engine)
    return engine
