"""How the steps of a pass run: one interface over static buffers, one file per way."""

from __future__ import annotations

from ..errors import KernelUnavailable
from ..model import RiverModel
from ..settings import LAYER_GRAPHS
from .base import Execution
from .cuda_device import CudaDevice
from .eager import EagerExecution
from .fused import FusedExecution, can_fuse
from .graphs import open_graphs
from .split import SplitExecution

NO_GRAPHS = f"execution={LAYER_GRAPHS!r} chooses between CUDA graphs, and this device has none."


def open_execution(model: RiverModel) -> Execution:
    """The fastest way this model's kernels allow, or the one that was asked for; its notes say why
    not a faster one. The model tells it when layers are evicted."""
    engine = _engine(model)
    model.engines.add(engine)
    return engine


def _engine(model: RiverModel) -> EagerExecution:
    if model.placement:
        return SplitExecution(model)
    if model.info.execution == "eager":
        return EagerExecution(model)
    if model.device.type == "cuda":
        return _on_cuda(model)
    engine = FusedExecution(model) if can_fuse(model) else EagerExecution(model)
    if model.info.execution == LAYER_GRAPHS:
        engine.notes = (*engine.notes, NO_GRAPHS)
    return engine


def _on_cuda(model: RiverModel) -> EagerExecution:
    """Graphs, or eager torch with a note why not."""
    try:
        return open_graphs(model, lambda: CudaDevice(model.device))
    except KernelUnavailable as reason:
        engine = EagerExecution(model)
        engine.notes = (str(reason),)
        return engine
