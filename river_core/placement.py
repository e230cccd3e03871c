"""Which GPU holds which layer, where one is too small: in order, for capacity.

accelerate splits a skeleton that has the model's bytes and no values. Embedding, norm and LM head
stay on the first GPU, where a token begins and ends. Knows sizes, not weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .errors import SettingsError
from .footprint import Layout, footprint
from .shapes import ShapeSpec

ROOM = 0.9  # of a GPU's free memory; the rest is for what a step computes with


def layer_bytes(spec: ShapeSpec, layout: Layout, tokens: int) -> tuple[int, list[int]]:
    """Bytes of embedding, norm, head and RoPE; of every layer with its twin and its KV cache."""
    whole = footprint(spec, layout, tokens=tokens)
    ends = whole.embedding + whole.head + whole.buffers
    kept = spec.layers if layout.resident is None else layout.resident
    twins = spec.layers - layout.entry_layer + 1 if layout.river is not None else 0
    share = (whole.kv + whole.norms) / spec.layers
    own, coded = whole.backbone / max(1, kept), whole.river / max(1, twins)
    return ends, [
        round(share + (own if n <= kept else 0) + (coded if n >= layout.entry_layer else 0))
        for n in range(1, spec.layers + 1)
    ]


def place(ends: int, layers: Sequence[int], free: Mapping[int, int]) -> tuple[int, ...]:
    """The GPU number of every layer, in order; `free` has the bytes that each GPU has left.

    Raises SettingsError, with both sums, where all of them together are too small.
    """
    from accelerate import infer_auto_device_map

    room = {number: int(ROOM * size) for number, size in free.items()}
    skeleton = nn.Module()
    skeleton.ends = _Block(ends)
    skeleton.layers = nn.ModuleList([_Block(size) for size in layers])
    found: dict[str, Any] = infer_auto_device_map(
        skeleton, max_memory=dict(room), no_split_module_classes=[_Block.__name__]
    )
    split = [_device_of(found, f"layers.{n}") for n in range(len(layers))]
    if _device_of(found, "ends") != min(free) or not all(isinstance(n, int) for n in split):
        needed, there = (ends + sum(layers)) / 2**30, sum(free.values()) / 2**30
        raise SettingsError(
            f"this model needs {needed:.1f} GiB, and the {len(free)} GPUs have {there:.1f} GiB "
            "free; load it with resident_layers, or on the CPU."
        )
    return tuple(int(n) for n in split)


def _device_of(found: Mapping[str, Any], name: str) -> Any:
    """accelerate names a module, or one that holds it, or "" for all."""
    while name not in found and name:
        name = name.rpartition(".")[0]
    return found[name]


class _Block(nn.Module):
    """So many bytes, without memory."""

    def __init__(self, size: int) -> None:
        super().__init__()
        weight = torch.empty(size, dtype=torch.uint8, device="meta")
        self.weight = nn.Parameter(weight, requires_grad=False)


def free_gpus() -> dict[int, int]:
    """Bytes that every visible CUDA GPU has free; empty without any."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {number: torch.cuda.mem_get_info(number)[0] for number in range(count)}


def placement_of(
    spec: ShapeSpec, layout: Layout, tokens: int, free: Mapping[int, int]
) -> tuple[torch.device, ...]:
    """A device per layer where the first GPU is too small; empty where it is not, or is alone."""
    ends, layers = layer_bytes(spec, layout, tokens)
    if len(free) < 2 or ends + sum(layers) <= ROOM * free[min(free)]:
        return ()
    return tuple(torch.device("cuda", number) for number in place(ends, layers, free))
