"""What a process of its own weighs, for test_memory.py: `python -m tests.tiny.memory_probe CASE`.

Prints one JSON object, sizes in bytes. Kernels are pinned: measuring them takes a minute.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from river_core import banks, loading, random_model
from river_core.errors import KernelUnavailable
from river_core.kernels.base import QuantMatrix
from river_core.kernels.choose import DEQUANTISED, KernelPlan
from river_core.kernels.native_library import load_library
from river_core.quantize import quantize_fused
from river_core.settings import QuantSpec


def status(name: str) -> int:
    """A line of /proc/self/status, such as VmRSS (now) or VmHWM (most so far)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))


def pinned(shape: Any, layers: int, vocab: int, *others: Any, **more: Any) -> KernelPlan:
    """bf16, native where there is a compiler."""
    sizes = [*shape.matrices.values(), (vocab, shape.hidden)]
    try:
        load_library()
        names = "native-bf16", "native-int4"
    except KernelUnavailable:
        names = "torch-bf16", DEQUANTISED
    dense, coded = names
    return KernelPlan(
        torch.bfloat16, dict.fromkeys(sizes, dense), {(4, *size): coded for size in sizes}, {}
    )


def filled(maker: Any, size: tuple[int, int], random: torch.Generator) -> Tensor:
    """Weights whose values do not matter, faster than random ones."""
    return torch.full(size, 0.01, dtype=maker.plan.dtype)


def coded(parts: Any, spec: Any, moments: Any = None) -> QuantMatrix:
    """Codes that do not matter, faster than HQQ's."""
    rows, columns = sum(len(p) for p in parts.values()), next(iter(parts.values())).shape[1]
    scale = torch.ones(rows, columns // spec.group_size)
    codes = torch.ones(rows, columns, dtype=torch.uint8)
    return QuantMatrix(codes, scale, scale.clone(), spec.group_size)


def partly_coded(parts: Any, spec: Any, moments: Any = None) -> QuantMatrix:
    """HQQ at work on a single matrix, attention's last: all of a layer would take a minute."""
    (first, *others) = parts
    return quantize_fused(parts, spec) if "o_proj" in first and not others else coded(parts, spec)


def ledger() -> dict[str, Any]:
    """Llama-3.2-1B's shape: the ledger and the process, before and after evicting to 4 layers."""
    with (
        mock.patch.object(random_model, "plan_kernels", pinned),
        mock.patch.object(random_model._Maker, "_weight", filled),
    ):
        random_model.random_model("tiny")
        base = status("VmRSS")
        model = random_model.random_model("llama-3.2-1b")
        found = {"process": status("VmRSS") - base, "memory": model.memory()}
        before = status("VmRSS")
        model.set_resident(4)
        fell = before - status("VmRSS")
        return found | {"peak": status("VmHWM"), "fell": fell, "evicted": model.memory()}


def load(folder: str, entry_layer: str, resident: str, quantizer: str) -> dict[str, Any]:
    """Load a folder, with HQQ for a part or with codes that cost nothing."""
    quantize = coded if quantizer == "none" else partly_coded
    with (
        mock.patch.object(loading, "plan_kernels", pinned),
        mock.patch.object(banks, "quantize_fused", quantize),
    ):
        loading.block_shapes(loading.read_config(Path(folder)))  # imports what a load imports
        quantize_fused({"": torch.ones(64, 64)}, QuantSpec())
        base = status("VmRSS")
        model = loading.load(
            folder,
            device="cpu",
            entry_layer=int(entry_layer),
            resident_layers=int(resident),
            capacity=256,
        )
        return {"base": base, "peak": status("VmHWM"), "memory": model.memory()}


if __name__ == "__main__":
    case, *arguments = sys.argv[1:]
    print(json.dumps({"ledger": ledger, "load": load}[case](*arguments)))
