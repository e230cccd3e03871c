"""A report on one CUDA machine with random weights: kernels, decode, memory, about a minute.

Every item runs in its own process with a time limit, so that one that fails or hangs is a line of
the report. Needs torch only. The dry run is the same code on the CPU at a tiny shape. Knows nothing
of the command line.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .bandwidth import ReadBytes, read_bandwidth, settle
from .bench import Engine, engines, interleave, rows
from .bench_report import save_lines, save_text, table
from .cache_paths import cache_root
from .decode import stream
from .errors import KernelUnavailable, RiverError
from .kernels.base import QuantMatrix
from .kernels.choose import processor, random_matrix
from .kernels.torch_int4 import AtenInt4, TinygemmInt4
from .model import RiverModel
from .random_model import SHAPES, ShapeSpec, random_model
from .recorder import versions
from .records import TokenRecord

MEAN_EXIT = 3.79  # the paper's mean exit layer of 16
Item = Callable[["Bench"], dict[str, Any]]
Say = Callable[[str, float | None], None]


@dataclass(frozen=True)
class Bench:
    """Where and how large: a real GPU at the 1B shape, or the dry run on the CPU."""

    device: torch.device
    spec: ShapeSpec
    tokens: int
    rounds: int
    buffer: int  # bytes read to measure bandwidth
    cold: int  # bytes of weights that no cache holds

    @classmethod
    def open(cls, dry_run: bool) -> Bench:
        """The sizes to run with."""
        if dry_run:
            return cls(torch.device("cpu"), SHAPES["tiny"], 8, 2, 32 << 20, 1 << 20)
        device = torch.device("cuda", torch.cuda.current_device())
        buffer = min(4 << 30, torch.cuda.mem_get_info(device)[0] // 4 // 4096 * 4096)
        return cls(device, SHAPES["llama-3.2-1b"], 32, 5, buffer, 256 << 20)

    def model(self) -> RiverModel:
        """The random model of this shape."""
        store = cache_root() / "kernels.json"
        return random_model(self.spec, device=self.device, capacity=512, store=store)

    @property
    def prompt(self) -> tuple[int, ...]:
        """Sixteen token ids."""
        return tuple(range(1, 17))


def machine(bench: Bench) -> dict[str, Any]:
    """Versions, driver, card."""
    facts: dict[str, Any] = {**versions(), "platform": platform.platform()}
    facts["CUDA"] = torch.version.cuda
    facts["driver"] = _driver()
    try:
        facts["triton"] = metadata.version("triton")
    except metadata.PackageNotFoundError:
        facts["triton"] = None
    facts["device"] = processor(bench.device)
    if bench.device.type == "cuda":
        properties = torch.cuda.get_device_properties(bench.device)
        facts["compute capability"] = f"{properties.major}.{properties.minor}"
        facts["memory GiB"] = round(properties.total_memory / 2**30, 2)
        facts["multiprocessors"] = properties.multi_processor_count
    return facts


def _driver() -> str | None:
    """The NVIDIA driver's version, as nvidia-smi says it."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else None


def bandwidth(bench: Bench) -> dict[str, Any]:
    """Read bandwidth."""
    return {
        "GB/s": round(read_bandwidth(bench.device, bench.buffer), 1),
        "buffer MiB": bench.buffer >> 20,
    }


def dense(bench: Bench) -> dict[str, Any]:
    """One-row products with bf16 weights, cold, at every shape of the model and at its head."""
    sizes = {**bench.spec.block.matrices, "head": (bench.spec.vocab, bench.spec.block.hidden)}
    found = []
    for name, (n, k) in sizes.items():
        x = torch.randn(1, k, device=bench.device).bfloat16()
        weights = [
            torch.randn(n, k, device=bench.device, dtype=torch.bfloat16)
            for _ in range(_copies(bench, 2 * n * k))
        ]
        calls = [lambda w=w: F.linear(x, w) for w in weights]  # type: ignore[misc]
        found.append({"matrix": name, "shape": f"{n}x{k}", **_timed(bench, calls, 2 * n * k)})
    return {"products": found}


def int4(bench: Bench) -> dict[str, Any]:
    """torch's int4 kernel (tinygemm on CUDA) against the dequantised weights, and its time."""
    found = []
    for name, (n, k) in bench.spec.block.matrices.items():
        copies = [_coded(bench, (n, k), seed) for seed in range(_copies(bench, n * k // 2))]
        x = torch.randn(1, k, device=bench.device).bfloat16()
        kernels = [_int4_kernel(matrix) for matrix in copies]
        weight = copies[0].dense()
        error = _distance(kernels[0](x.float()), x.float() @ weight.t())
        layout = _distance(kernels[0].dense(), weight)
        size = int(n * k * kernels[0].bits / 8)
        calls = [_int4_call(kernel, x) for kernel in kernels]
        errors = {"error": round(error, 5), "layout error": round(layout, 5)}
        times = _timed(bench, calls, size)
        found.append({"matrix": name, "shape": f"{n}x{k}", **errors, **times})
    worst = max(max(row["error"], row["layout error"]) for row in found)
    if not worst < 0.02:
        raise RiverError(f"the int4 kernel is off by {worst} of the reference's norm: {found}")
    return {"kernel": kernels[0].name, "products": found}


def _coded(bench: Bench, shape: tuple[int, int], seed: int) -> QuantMatrix:
    matrix = random_matrix(shape, 64, seed)
    parts = [t.to(bench.device) for t in (matrix.codes, matrix.scale, matrix.zero)]
    return QuantMatrix(*parts, 64)


def _int4_kernel(matrix: QuantMatrix) -> AtenInt4 | TinygemmInt4:
    return TinygemmInt4(matrix) if matrix.codes.is_cuda else AtenInt4(matrix)


def _int4_call(kernel: AtenInt4 | TinygemmInt4, x: Tensor) -> Callable[[], Tensor]:
    """The bare operation, without the casts around it."""
    ops = torch.ops.aten
    op = ops._weight_int4pack_mm if x.is_cuda else ops._weight_int4pack_mm_for_cpu
    return lambda: op(x, kernel.packed, kernel.group, kernel.meta)


def _distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def _copies(bench: Bench, size: int) -> int:
    """How many matrices of `size` bytes no cache holds together."""
    return min(96, max(2, math.ceil(bench.cold / size)))


def _timed(bench: Bench, calls: Sequence[Callable[[], Tensor]], size: int) -> dict[str, Any]:
    """Microseconds per call as the host issues them, and without the host (a CUDA graph)."""
    host = _per_call(bench, lambda: [call() for call in calls], len(calls))
    row = {"us issued": round(host, 2), "us device": None, "GB/s": round(size / host / 1e3, 1)}
    if bench.device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = [call() for call in calls]
        device = _per_call(bench, graph.replay, len(kept))
        row |= {"us device": round(device, 2), "GB/s": round(size / device / 1e3, 1)}
    return row


def _per_call(bench: Bench, run: Callable[[], object], calls: int) -> float:
    spent = []
    for _ in range(8):
        settle(bench.device)
        start = time.perf_counter()
        run()
        settle(bench.device)
        spent.append(time.perf_counter() - start)
    return median(spent[3:]) / calls * 1e6


def decode(bench: Bench) -> dict[str, Any]:
    """Backbone, full quantization and River in one loop, interleaved; exits are forced.

    The row at threshold 1 reads every layer's similarity and never leaves: what deciding costs.
    """
    model = bench.model()
    contenders = engines(model, bench.prompt, bench.tokens, [1.0], MEAN_EXIT)
    found = rows(contenders, interleave(contenders, bench.tokens, bench.rounds))
    allocated = [_allocations(c, bench) for c in contenders]
    return {
        "rows": [
            {
                "name": row.name,
                "ms/token": round(row.ms_per_token, 3),
                "tok/s": f"{row.tokens_per_second:.1f} ({row.slowest:.1f}..{row.fastest:.1f})",
                "exit layer": round(row.mean_exit_layer, 2),
                "GB/s": round(row.gigabytes_per_second, 1),
                "byte bound": round(row.byte_bound, 2),
                "x backbone": round(row.to_backbone, 2),
                "decision us": _rounded(row.decision_microseconds),
                **extra,
                "kernels": row.kernels,
            }
            for row, extra in zip(found, allocated, strict=True)
        ],
        "notes": list(model.info.notes),
    }
