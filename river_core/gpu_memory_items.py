"""The GPU report on memory: ledger against arithmetic and allocator, eviction, allocations."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import pairwise

import torch

from .bandwidth import ReadBytes
from .contenders import Engine, engines
from .decode import generate, stream
from .errors import RiverError
from .gpu_bench import MEAN_EXIT, Bench, Facts
from .model import RiverModel
from .records import TokenRecord
from .shapes import ShapeSpec

MIB = 2**20
EXIT_LAYER = 2


def memory(bench: Bench) -> Iterator[Facts]:
    """The ledger against the sum over sizes and what the device holds; eviction; allocations."""
    for dtype in (torch.bfloat16, torch.float32):  # the libraries' own workspaces come first
        torch.randn(64, 64, device=bench.device, dtype=dtype).mm(
            torch.eye(64).to(bench.device, dtype)
        )
    before = allocated(bench.device)
    model = bench.model()
    gc.collect()
    after = allocated(bench.device)
    ledger = model.memory()
    total, formula = sum(ledger.values()), expected_bytes(bench.spec, model)
    yield {f"{part} MiB": round(size / MIB, 2) for part, size in ledger.items()}
    yield {"ledger MiB": round(total / MIB, 2), "formula MiB": round(formula / MIB, 2)}
    yield {"ledger / formula": round(total / formula, 4)}
    if before is not None and after is not None:
        yield {"allocated MiB": round((after - before) / MIB, 2)}
        yield {"allocated / ledger": round((after - before) / total, 4)}
    rows = engines(model, bench.prompt, bench.tokens, [1.0], [MEAN_EXIT])
    yield {"per token after a warm-up": [_allocations(bench, engine) for engine in rows]}
    if before is not None:
        peak = torch.cuda.max_memory_allocated(bench.device)
        yield {"peak while decoding MiB": round((peak - before) / MIB, 2)}
    yield from _eviction(bench, model)


def _eviction(bench: Bench, model: RiverModel) -> Iterator[Facts]:
    """Half of the backbone leaves and comes back: bytes by ledger and allocator, same tokens."""
    before, kept = allocated(bench.device), sum(model.memory().values())
    tokens = _tokens(bench, model)
    model.set_resident(model.num_layers // 2)
    gone, without = allocated(bench.device), sum(model.memory().values())
    yield {"resident layers": model.resident, "evicted MiB by ledger": _mib(kept, without)}
    if before is not None and gone is not None:
        yield {"evicted MiB by allocator": _mib(before, gone)}
    away = _tokens(bench, model)
    model.set_resident(model.num_layers)
    back = _tokens(bench, model)
    yield {"same tokens while evicted": away == tokens, "same tokens restored": back == tokens}
    if not away == back == tokens:
        raise RiverError("evicting and restoring layers changed the tokens.")


def _mib(more: int, less: int) -> float:
    return round((more - less) / MIB, 2)


def _tokens(bench: Bench, model: RiverModel) -> list[int]:
    """What is decoded where every token leaves after layer EXIT_LAYER, evicted or not."""
    run = generate(
        model,
        list(bench.prompt),
        max_new_tokens=bench.tokens,
        full_trace=False,
        exit="fixed",
        options={"exit_layer": EXIT_LAYER},
    )
    return [token.token_id for token in run.tokens]


def _allocations(bench: Bench, engine: Engine) -> Facts:
    """Per token after the second: tensors allocated, and new memory taken from the device."""
    engine.run(bench.tokens)
    settings = {"max_new_tokens": bench.tokens, "full_trace": False, **engine.settings}
    counts = []
    for record in stream(engine.model, list(engine.prompt), **settings):
        if isinstance(record, TokenRecord):
            counts.append(_allocator(bench.device))
    names = ("allocations", "from device")
    found: Facts = {"name": engine.name, **dict.fromkeys(names)}
    known = [count for count in counts[1:] if count is not None]
    if known:
        steps = [[b - a for a, b in zip(*pair, strict=True)] for pair in pairwise(known)]
        found |= {n: max(column) for n, column in zip(names, zip(*steps, strict=True), strict=True)}
    return found


def _allocator(device: torch.device) -> tuple[int, int] | None:
    """Tensors and device segments allocated so far; torch counts them on CUDA only."""
    if device.type != "cuda":
        return None
    stats = torch.cuda.memory_stats(device)
    return stats["allocation.all.allocated"], stats["segment.all.allocated"]


def allocated(device: torch.device) -> int | None:
    """Bytes that tensors hold now; torch counts them on CUDA only."""
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
