"""Timing kernels with cold weights, after checking them; random matrices to time with.

Which of several to take is choose.py's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from ..devices import settle
from ..errors import KernelUnavailable
from .base import Linear, QuantMatrix

Shape = tuple[int, int]
COLD_BYTES = 48 << 20  # more than the caches that decode streams through
MOST_COPIES = 128
VISITS = 2


@dataclass(frozen=True)
class Candidates:
    """Kernels that could serve one shape: their names, and how to build one with random weights."""

    names: tuple[str, ...]
    shape: Shape
    build: Callable[[str], Linear]  # by name; each time over other memory


def random_matrix(shape: Shape, group: int, seed: int, code_bits: int = 4) -> QuantMatrix:
    """A quantised matrix [N, K] of random codes with plausible scales, for timing and shapes."""
    finer = 2 ** (code_bits - 4)
    n, k = shape
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16 * finer, (n, k), dtype=torch.uint8, generator=generator)
    scale = (torch.rand(n, k // group, generator=generator) * 0.01 + 0.005) / finer
    zero = (torch.rand(n, k // group, generator=generator) * 4 + 6) * finer
    return QuantMatrix(codes, scale, zero, group, code_bits)


def random_weight(shape: Shape, dtype: torch.dtype) -> Tensor:
    """A random matrix [N, K] of plausible size, for timing; rows repeat after 1,024."""
    n, k = shape
    rows = _rows(min(n, 1024), k, dtype)
    return rows.repeat(-(-n // rows.shape[0]), 1)[:n]  # memory of its own


@lru_cache(maxsize=1)
def _rows(n: int, k: int, dtype: torch.dtype) -> Tensor:
    return (torch.randn(n, k, generator=torch.Generator().manual_seed(1)) * 0.05).to(dtype)


def random_codes(shape: Shape, group: int, code_bits: int) -> QuantMatrix:
    """The same quantised matrix again, in memory of its own: copies of it are read cold."""
    made = _matrix(shape, group, code_bits)
    return replace(made, codes=made.codes.clone())


@lru_cache(maxsize=1)
def _matrix(shape: Shape, group: int, code_bits: int) -> QuantMatrix:
    return random_matrix(shape, group, 1, code_bits)


def time_in_turns(every: Sequence[Candidates], device: torch.device) -> list[dict[str, float]]:
    """Microseconds by name for each of `every`: the fastest of two visits, all others in between.

    A program that is busy for a second or two would otherwise decide a choice that is kept. Kernels
    that cannot be built here, or disagree with their own weights, are left out; the note of the
    library that they need says why.
    """
    costs: list[dict[str, float]] = [dict.fromkeys(row.names, float("inf")) for row in every]
    for _ in range(VISITS):
        for row, found in zip(every, costs, strict=True):
            for name in list(found):
                try:
                    spent = time_kernel(partial(row.build, name), row.shape, device)
                except KernelUnavailable:
                    del found[name]
                else:
                    found[name] = min(found[name], spent)
    for cached in (_rows, _matrix):
        cached.cache_clear()
    return costs


def time_kernel(build: Callable[[], Linear], shape: Shape, device: torch.device) -> float:
    """Microseconds of one-row products with cold weights, after checking the result.

    The fastest counts: what else the machine does only ever adds to a time.

    Raises KernelUnavailable where the kernel cannot be built or disagrees with its own weights.
    """
    first = build()
    x = torch.randn(1, shape[1], generator=torch.Generator().manual_seed(7)).to(device)
    verify(first, x)
    size = sum(held.nbytes for held in first.tensors())
    copies = max(2, min(MOST_COPIES, COLD_BYTES // size))
    kernels = [first, *(build() for _ in range(copies - 1))]
    spent: list[float] = []
    for _ in range(3):
        for kernel in kernels:
            settle(device)
            start = time.perf_counter()
            kernel(x)
            settle(device)
            spent.append(time.perf_counter() - start)
    return round(min(spent[copies:]) * 1e6, 2)


def verify(kernel: Linear, x: Tensor) -> None:
    """Hold a kernel to the plain fp32 product of the weights it says it computes with."""
    expected = x @ kernel.dense().t()
    error = (kernel(x) - expected).norm() / expected.norm()
    if not error < 0.02:
        raise KernelUnavailable(
            f"{kernel.name} is off by {float(error):.3f} on {kernel.shape} and is not used."
        )
