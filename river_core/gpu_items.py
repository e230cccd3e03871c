"""What the GPU report measures, an item each: machine, dense, int4, decode, memory.

Random weights, torch only; on the CPU the same code runs at a tiny shape (the dry run). An item
returns plain values. Knows nothing of how items are run or shown.
"""

from __future__ import annotations

import gc
import math
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .bandwidth import ReadBytes, read_bandwidth
from .bench import interleave, rows
from .bench_report import Row, shown
from .cache_paths import cache_root
from .contenders import Engine, engines
from .decode import generate, stream
from .devices import processor, settle
from .errors import RiverError
from .kernels.base import QuantMatrix
from .kernels.micro import random_matrix
from .kernels.torch_int4 import AtenInt4, TinygemmInt4
from .model import RiverModel
from .random_model import random_model
from .recorder import versions
from .records import TokenRecord
from .shapes import SHAPES, ShapeSpec

MEAN_EXIT = 3.79  # the paper's mean exit layer of 16
Item = Callable[["Bench"], dict[str, Any]]


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
        """The random model of this shape; a dry run leaves no kernel choices behind."""
        store = cache_root() / "kernels.json" if self.device.type == "cuda" else None
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


def dense(bench: Bench) -> dict[str, Any]:
    """Read bandwidth; one-row products with bf16 weights, cold, at every shape and at the head."""
    sizes = {**bench.spec.block.matrices, "head": (bench.spec.vocab, bench.spec.block.hidden)}
    read = read_bandwidth(bench.device, bench.buffer)
    found = []
    for name, (n, k) in sizes.items():
        weights = [_random(bench, n, k) for _ in range(_copies(bench, 2 * n * k))]
        x = _random(bench, 1, k)
        calls = [partial(F.linear, x, weight) for weight in weights]
        found.append({"matrix": name, "shape": f"{n}x{k}", **_timed(bench, calls, 2 * n * k)})
    return {"read GB/s": round(read, 1), "buffer MiB": bench.buffer >> 20, "products": found}


def int4(bench: Bench) -> dict[str, Any]:
    """torch's int4 kernel (tinygemm on CUDA) against the dequantised weights, and its time."""
    found = []
    for name, (n, k) in bench.spec.block.matrices.items():
        matrix, x = _coded(bench, (n, k)), _random(bench, 1, k)
        kernels = [_int4_kernel(matrix) for _ in range(_copies(bench, n * k // 2))]
        error = _error(kernels[0](x.float()), x.float() @ matrix.dense().t())
        layout = _error(kernels[0].dense(), matrix.dense())
        size = int(n * k * kernels[0].bits / 8)
        calls = [_int4_call(kernel, x) for kernel in kernels]
        errors = {"error": round(error, 5), "layout error": round(layout, 5)}
        times = _timed(bench, calls, size)
        found.append({"matrix": name, "shape": f"{n}x{k}", **errors, **times})
    worst = max(max(row["error"], row["layout error"]) for row in found)
    if not worst < 0.02:
        raise RiverError(f"the int4 kernel is off by {worst} of the reference's norm: {found}")
    return {"kernel": kernels[0].name, "products": found}


def _random(bench: Bench, n: int, k: int) -> Tensor:
    return torch.randn(n, k, device=bench.device, dtype=torch.bfloat16)


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def _coded(bench: Bench, shape: tuple[int, int]) -> QuantMatrix:
    matrix = random_matrix(shape, 64, seed=1)
    codes, scale, zero = (t.to(bench.device) for t in (matrix.codes, matrix.scale, matrix.zero))
    return QuantMatrix(codes, scale, zero, matrix.group_size)


def _int4_kernel(matrix: QuantMatrix) -> AtenInt4 | TinygemmInt4:
    return TinygemmInt4(matrix) if matrix.codes.is_cuda else AtenInt4(matrix)


def _int4_call(kernel: AtenInt4 | TinygemmInt4, x: Tensor) -> Callable[[], Tensor]:
    """The bare operation, without the casts around it."""
    ops = torch.ops.aten
    op = ops._weight_int4pack_mm if x.is_cuda else ops._weight_int4pack_mm_for_cpu
    return lambda: op(x, kernel.packed, kernel.group, kernel.meta)


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
    """Backbone, full quantization and River in one loop, interleaved, with forced exits.

    The row at threshold 1 reads every layer's similarity and never leaves: what deciding costs.
    """
    model = bench.model()
    contenders = engines(model, bench.prompt, bench.tokens, [1.0], [MEAN_EXIT])
    found = rows(contenders, interleave(contenders, bench.tokens, bench.rounds))
    lines = [
        _decode_line(row) | _allocations(bench, engine)
        for row, engine in zip(found, contenders, strict=True)
    ]
    facts: dict[str, Any] = {
        "shape": bench.spec.name,
        "layers": bench.spec.layers,
        "capacity": model.capacity,
    }
    facts |= {"prompt": len(bench.prompt), "tokens": bench.tokens, "rounds": bench.rounds}
    facts |= {"rows": lines, "kernels": dict(model.info.kernels), "notes": [*model.info.notes]}
    return facts


def _decode_line(row: Row) -> dict[str, Any]:
    decision = row.decision_microseconds
    return {
        "name": row.name,
        "ms/token": round(row.ms_per_token, 3),
        "tok/s": round(row.tokens_per_second, 1),
        "min..max": f"{row.slowest:.1f}..{row.fastest:.1f}",
        "exit layer": round(row.mean_exit_layer, 2),
        "GB/s": shown(row.gigabytes_per_second, ".1f"),
        "byte bound": shown(row.byte_bound, ".2f"),
        "x backbone": round(row.to_backbone, 2),
        "decision us": None if decision is None else round(decision, 1),
    }


def _allocations(bench: Bench, engine: Engine) -> dict[str, float | None]:
    """Per token after the first: tensors allocated, and new memory taken from the device."""
    settings = {"max_new_tokens": bench.tokens, "full_trace": False, **engine.settings}
    counts = []
    for record in stream(engine.model, list(engine.prompt), **settings):
        if isinstance(record, TokenRecord):
            counts.append(_allocator(bench.device))
    names = ("allocations", "from device")
    if counts[0] is None or counts[-1] is None:
        return dict.fromkeys(names)
    steps = len(counts) - 1
    pairs = zip(names, counts[0], counts[-1], strict=True)
    return {name: round((last - first) / steps, 1) for name, first, last in pairs}


def _allocator(device: torch.device) -> tuple[int, int] | None:
    """Tensors and device segments allocated so far; torch counts them on CUDA only."""
    if device.type != "cuda":
        return None
    stats = torch.cuda.memory_stats(device)
    return stats["allocation.all.allocated"], stats["segment.all.allocated"]


def memory(bench: Bench) -> dict[str, Any]:
    """The model's ledger against the sum over its sizes, and against what the device holds."""
    for dtype in (torch.bfloat16, torch.float32):  # the libraries' own workspaces come first
        torch.randn(64, 64, device=bench.device, dtype=dtype).mm(
            torch.eye(64).to(bench.device, dtype)
        )
    before = _allocated(bench.device)
    model = bench.model()
    gc.collect()
    after = _allocated(bench.device)
    ledger = model.memory()
    total, formula = sum(ledger.values()), expected_bytes(bench.spec, model)
    facts = {f"{part} MiB": round(size / 2**20, 2) for part, size in ledger.items()}
    facts |= {"ledger MiB": round(total / 2**20, 2), "formula MiB": round(formula / 2**20, 2)}
    facts["ledger / formula"] = round(total / formula, 4)
    if before is not None and after is not None:
        settings = engines(model, bench.prompt, bench.tokens, [], [MEAN_EXIT])[-1].settings
        torch.cuda.reset_peak_memory_stats(bench.device)
        generate(
            model, list(bench.prompt), max_new_tokens=bench.tokens, full_trace=False, **settings
        )
        peak = torch.cuda.max_memory_allocated(bench.device)
        facts["allocated MiB"] = round((after - before) / 2**20, 2)
        facts["allocated / ledger"] = round((after - before) / total, 4)
        facts["peak while decoding MiB"] = round((peak - before) / 2**20, 2)
    return facts


def _allocated(device: torch.device) -> int | None:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else None


def expected_bytes(spec: ShapeSpec, model: RiverModel) -> float:
    """Bytes of `model` by arithmetic from its sizes and its kernels' bits per weight."""
    shape, reads, cache = spec.block, ReadBytes.of_model(model), model.cache
    kept, number = sum(w is not None for w in model.river), model.embedding.element_size()
    norms = (2 * spec.layers + 1) * shape.hidden * 4
    kv = 2 * spec.layers * cache.capacity * shape.kv_heads * shape.head_dim * number
    rope = 2 * cache.capacity * shape.head_dim * 4
    head = 0.0 if spec.tied else reads.head
    layers = spec.layers * reads.layer + kept * reads.twin
    return spec.vocab * shape.hidden * number + head + layers + norms + kv + rope


ITEMS: dict[str, Item] = {
    "machine": machine,
    "dense": dense,
    "int4": int4,
    "decode": decode,
    "memory": memory,
}
