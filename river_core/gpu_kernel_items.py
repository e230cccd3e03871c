"""The GPU report on kernels: every product at the large shape, one layer and attention by length.

Errors stand before times; weights rotate, so that no cache holds them. Own kernels are those of
kernels/choose.py's tables: what joins the tables joins the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from .bandwidth import ReadBytes
from .cache import Rows
from .errors import KernelUnavailable, RiverError
from .execution import open_execution
from .execution.base import Execution
from .gpu_bench import Bench, Facts, built, error, rate
from .kernels.base import Linear
from .kernels.choose import CODED, CODED_ON, DENSE, DENSE_ON
from .kernels.torch_int4 import AtenInt4, TinygemmInt4
from .kernels.triton_loading import load_triton

WORST = 0.02  # relative error of a right kernel, its inputs rounded to 16 bits
OWN = "triton"  # what names of our own kernels begin with
Weights = TypeVar("Weights")


def kernels(bench: Bench) -> Iterator[Facts]:
    """Own kernels against cuBLAS and torch's int4 at every shape of the large model."""
    spec = bench.large
    yield {"shape": spec.name}
    yield from _missing()
    wrong = []
    sizes = {**spec.block.matrices, "head": (spec.vocab, spec.block.hidden)}
    for name, size in sizes.items():
        rows = [*_dense(bench, size), *([] if name == "head" else _coded(bench, size))]
        wrong += [row["kernel"] for row in rows if not row["error"] < WORST]
        yield {f"{name} {size[0]}x{size[1]}": rows}
    if wrong:
        raise RiverError(f"off by more than {WORST} of the reference's norm: {', '.join(wrong)}.")


def _missing() -> Iterator[Facts]:
    """A sentence where no own kernel is in the tables."""
    if not [name for name in [*DENSE, *CODED] if name.startswith(OWN)]:
        yield {"own kernels": "not built: no Triton kernel is among kernels/choose.py's"}


def _dense(bench: Bench, size: tuple[int, int]) -> list[Facts]:
    """cuBLAS's product, the bare operation; then our own 16-bit kernels."""
    n, k = size
    weights = [bench.random(n, k) for _ in range(bench.copies(2 * n * k))]
    x = bench.random(1, k)
    expected = x.float() @ weights[0].float().t()
    row = {"kernel": "torch bf16", "error": round(error(F.linear(x, weights[0]), expected), 5)}
    found = [row | bench.timed([partial(F.linear, x, w) for w in weights], 2 * n * k)]
    names = [name for name in DENSE_ON[bench.device.type] if name.startswith(OWN)]
    own = {f"{name}-bf16": DENSE[name] for name in names}
    return [*found, *_own(bench, own, weights, x)]


def _coded(bench: Bench, size: tuple[int, int]) -> list[Facts]:
    """torch's int4 (tinygemm on CUDA), the bare operation; then our own 4-bit kernels."""
    n, k = size
    matrices = [bench.coded(size) for _ in range(bench.copies(n * k // 2))]
    x = bench.random(1, k)
    found = [_tinygemm(bench, [_int4(matrix) for matrix in matrices], matrices[0].dense(), x)]
    names = [name for name in CODED_ON.get((bench.device.type, 4), ()) if name.startswith(OWN)]
    return [*found, *_own(bench, {name: CODED[name] for name in names}, matrices, x)]


def _int4(matrix: Any) -> AtenInt4 | TinygemmInt4:
    return TinygemmInt4(matrix) if matrix.codes.is_cuda else AtenInt4(matrix)


def _tinygemm(
    bench: Bench, made: list[AtenInt4 | TinygemmInt4], weights: Tensor, x: Tensor
) -> Facts:
    """Error of the product or of the weights read back, whichever is larger: a wrong layout shows.

    `weights` fp32 [N, K] are what the first of `made` stands for.
    """
    kernel = made[0]
    product = error(kernel(x.float()), x.float() @ weights.t())
    worst = max(product, error(kernel.dense(), weights))
    size = weights.numel() * kernel.bits / 8
    return {"kernel": kernel.name, "error": round(worst, 5)} | bench.timed(
        [partial(_call, one, x) for one in made], size
    )


def _call(kernel: AtenInt4 | TinygemmInt4, x: Tensor) -> Tensor:
    """The bare operation, without the casts around it."""
    ops = torch.ops.aten
    op = ops._weight_int4pack_mm if x.is_cuda else ops._weight_int4pack_mm_for_cpu
    product: Tensor = op(x, kernel.packed, kernel.group, kernel.meta)
    return product


def _own(
    bench: Bench,
    makers: Mapping[str, Callable[[Weights], Linear]],
    weights: list[Weights],
    x: Tensor,
) -> Iterator[Facts]:
    """A row per kernel of ours, called as the engine does: fp32 in and out."""
    row = x.float()
    for name, make in makers.items():
        try:
            if bench.device.type == "cuda":
                load_triton(bench.device)
            made = [make(matrix) for matrix in weights]
            off = round(error(made[0](row), row @ made[0].dense().t()), 5)
        except KernelUnavailable as problem:
            yield {"kernel": f"{name}: {problem}", "error": 0.0}
            continue
        size = made[0].shape[0] * made[0].shape[1] * made[0].bits / 8
        calls = [partial(kernel, row) for kernel in made]
        yield {"kernel": name, "error": off} | bench.timed(calls, size)


def steps(bench: Bench) -> Iterator[Facts]:
    """One layer of each bank, as the engine runs it and in eager torch, and attention alone.

    At three lengths: a layer's time grows with the cache that it reads.
    """
    spec = replace(bench.large, layers=2)
    model = bench.model(spec, capacity=max(bench.lengths) + 1)
    model.ensure_full_river()
    yield {"shape": f"two layers of {bench.large.name}"}
    reads = ReadBytes.of_model(model)
    ways = {way.name: way for way in (open_execution(model), open_execution(model.eagerly()))}
    for length in bench.lengths:
        rows = []
        slots = Rows((0,) * length, tuple(range(length)))
        model.cache.reset()
        model.cache.mark(1, slots, "b" * spec.layers)
        for name, way in ways.items():
            for bank, size in (("backbone", reads.layer), ("river", reads.twin)):
                spent = _layer(bench, way, bank, length) / spec.layers
                kv = 4 * length * spec.block.kv_heads * spec.block.head_dim
                row = {"way": name, "layer of": bank, "us": round(spent, 1)}
                rows.append(row | {"GB/s": rate(size + kv, spent)})
        yield {f"at position {length}": rows}
        yield {f"attention at {length}, us": _attention(bench, length)}


@torch.inference_mode()
def _layer(bench: Bench, way: Execution, bank: str, position: int) -> float:
    """Microseconds of both layers of a bank for one row, from its token id on."""
    run, rows = way.backbone if bank == "backbone" else way.river, Rows((1,), (position,))

    def eight() -> None:
        for _ in range(8):
            way.start(rows)
            run(1, 2)

    return bench.per_call(eight, 8)


def _attention(bench: Bench, length: int) -> Facts:
    """torch's attention of one row over `length` slots, queries of a group as rows; then ours."""
    block = bench.large.block
    shared = block.heads // block.kv_heads
    query = bench.random(block.kv_heads * shared, block.head_dim).view(block.kv_heads, shared, -1)
    keys, values = (
        bench.random(block.kv_heads * length, block.head_dim).view(block.kv_heads, length, -1)
        for _ in range(2)
    )
    call = partial(F.scaled_dot_product_attention, query, keys, values)
    found = {
        "torch": bench.timed([call] * 8, 2 * keys.nbytes)[
            "us device" if bench.on_gpu else "us issued"
        ]
    }
    own = built("kernels.triton_step")
    if own is None or not bench.on_gpu:
        return found | {"own": "not built" if own is None else "needs a GPU"}
    place = torch.tensor([length - 1], device=bench.device)
    out = torch.empty(block.heads, block.head_dim, device=bench.device)
    wide = query.reshape(block.heads, -1).float()
    call = partial(own.attend, wide, keys, values, place, out, scale=block.head_dim**-0.5)
    call()
    expected = F.scaled_dot_product_attention(query, keys, values).reshape(block.heads, -1).float()
    off = round(error(out, expected), 5)
    return found | {"own": bench.timed([call] * 8, 2 * keys.nbytes)["us device"], "own error": off}
