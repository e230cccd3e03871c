"""Attention of captured graphs by our Triton kernel, which reads the length on the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from ..errors import KernelUnavailable
from ..kernels import torch_step
from ..kernels.triton_loading import load_triton, require_power
from ..layer import BlockShape
from ..model import RiverModel
from .device import Device, KernelCall
from .pieces import Attention, MaskedAttention, State

Attend = Callable[..., None]


class KernelAttention:
    """One graph serves every length: only the valid slots are read, once, in their own dtype."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def reach(self, position: int, capacity: int) -> int:
        """All slots, for every position."""
        return capacity

    def __call__(
        self, state: State, q: Tensor, layer: int, shape: BlockShape, reach: int
    ) -> Tensor:
        """q [1, H, D] over slots 0..its position of 1-based `layer` -> fp32 [1, H * D]."""
        heads = shape.heads, shape.head_dim
        own = q.reshape(heads).float()
        k, v, out = state.keys[layer - 1], state.values[layer - 1], state.attended.view(heads)
        scale = shape.head_dim**-0.5 if shape.scale is None else shape.scale

        def call(attend: Attend) -> None:
            attend(own, k, v, state.position, out, scale=scale, window=shape.window)

        run, reference = partial(call, _attend), partial(call, torch_step.attend)
        self._device.kernel(KernelCall("attention", run, reference, [state.attended]))
        return state.attended


def _attend(*tensors: Tensor, scale: float, window: int | None) -> None:
    from ..kernels import triton_step  # imports triton, which a CPU has no use for

    triton_step.attend(*tensors, scale=scale, window=window)


def attention_on(model: RiverModel, device: Device) -> Attention:
    """By the kernel; where it cannot run, masked attention, and the device's notes say why."""
    try:
        require_power(model.shape.head_dim)
        load_triton(model.device)
    except KernelUnavailable as reason:
        said = f"Attention masks slots instead of counting them: {reason}"
        device.notes = (*device.notes, said)
        return MaskedAttention()
    return KernelAttention(device)
