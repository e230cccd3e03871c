"""How many backbone layers stay on the device, and where evicted ones wait.

The first k layers are resident: a token that has not left by then goes on in the river (River-LLM,
backbone offloading). Knows neither the model nor how a layer is read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .calibration_store import CalibrationFile
from .errors import SettingsError
from .kernels.base import Linear
from .settings import DecodeSettings, check_resident

COVERED = 0.95  # of the calibrated exits, by "auto"


@dataclass
class Shelf:
    """Weights of layers evicted from a GPU, in pinned host memory, by layer and fused linear.

    From a CPU nothing is kept: a copy would lie in the memory that eviction is to free.
    """

    kept: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def keep(self, layer: int, linears: Mapping[str, Linear]) -> None:
        """Copy the weights of 1-based `layer` where they are on a GPU."""
        tensors = {name: linear.tensors()[0] for name, linear in linears.items()}
        if all(t.device.type == "cuda" for t in tensors.values()):
            self.kept[layer] = {name: _pinned(t) for name, t in tensors.items()}

    def find(self, layer: int) -> dict[str, Tensor] | None:
        """What was kept of 1-based `layer`, weights [N, K] by fused linear."""
        return self.kept.get(layer)

    def drop(self, layer: int) -> None:
        """Let go of 1-based `layer`."""
        self.kept.pop(layer, None)


def _pinned(tensor: Tensor) -> Tensor:
    """A copy in host memory that the GPU reads directly."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)


def return_memory(device: torch.device) -> None:
    """Give memory that nothing uses any more back to the system, where an allocator keeps it.

    The pieces of a layer or of its making lie between pieces that stay; glibc keeps such gaps.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
    with suppress(AttributeError, OSError, TypeError):  # other C libraries have no such call
        ctypes.CDLL(None).malloc_trim(0)


def resident_layers(
    asked: int | str | None,
    layers: int,
    entry_layer: int,
    file: CalibrationFile | None,
    default_threshold: float,
) -> int:
    """The number of resident layers, of `layers`, that `asked` comes to; None is all of them.

    Raises SettingsError for one that is not possible and for "auto" where `file` holds nothing;
    RecordError where what it holds is damaged.
    """
    if asked is None:
        return layers
    asked, least = check_resident(asked), entry_layer - 1
    if isinstance(asked, str):
        return max(least, _calibrated(file, default_threshold))
    if not least <= asked <= layers:
        raise SettingsError(
            f"resident_layers is {asked}, but this model can keep {least} (the layer before the "
            f"river's first) to {layers} (all)."
        )
    return asked


def _calibrated(file: CalibrationFile | None, default_threshold: float) -> int:
    """Layers that cover COVERED of the exits at the threshold which "auto" takes, or the default.

    The default is not measured itself: the next measured threshold above it stands for it, at
    which tokens go no less deep.
    """
    found = None if file is None else file.load()
    if found is None:
        raise SettingsError(
            "resident_layers is 'auto', but no calibration is stored for this model, river and "
            "entry layer; run `python -m river_core calibrate`, or give a number."
        )
    best = found.smallest_threshold(DecodeSettings().target_match)
    return found.covering(default_threshold if best is None else best, COVERED)
