"""Which kernels a model of a given shape needs, and how often a token reads each.

Turns sizes into a question to kernels/choose.py; knows nothing of weights.
"""

from __future__ import annotations

from pathlib import Path

import torch

from .kernels.choose import Chooser, KernelPlan
from .layer import BlockShape
from .settings import LoadSettings


def plan_kernels(
    shape: BlockShape,
    layers: int,
    vocab: int,
    device: torch.device,
    settings: LoadSettings,
    *,
    store: Path | None = None,
    wide: bool = False,
) -> KernelPlan:
    """Choose the kernels of a model of this shape (kernels/choose.py), weighed by a token's reads.

    `settings` gives dtype and river; `wide` models are kept from fp16. What `store` holds is
    recalled, anything else is measured; with None nothing is remembered. Raises KernelUnavailable
    where the dtype cannot run.
    """
    dense: dict[tuple[int, int], int] = {}
    for size in shape.matrices.values():
        dense[size] = dense.get(size, 0) + layers
    river = settings.river
    widths = [] if river.bits == 16 else [form.code_bits for form in river.forms]
    coded = {(bits, *size): uses for bits in widths for size, uses in dense.items()}
    head = (vocab, shape.hidden)
    dense[head] = dense.get(head, 0) + 1
    chooser = Chooser(device, river.group_size, store, wide=wide)
    return chooser.plan(dense, coded, settings.dtype)
