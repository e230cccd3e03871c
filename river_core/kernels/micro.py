"""Timing one kernel with cold weights, after checking it; random matrices to time with.

Knows one kernel at a time; which of several to take is choose.py's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from ..devices import settle
from ..errors import KernelUnavailable
from .base import Linear, QuantMatrix

Shape = tuple[int, int]
COLD_BYTES = 48 << 20  # more than the caches that decode streams through


def random_matrix(shape: Shape, group: int, seed: int, code_bits: int = 4) -> QuantMatrix:
    """A quantised matrix [N, K] of random codes with plausible scales, for timing and shapes."""
    finer = 2 ** (code_bits - 4)
    n, k = shape
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16 * finer, (n, k), dtype=torch.uint8, generator=generator)
    scale = (torch.rand(n, k // group, generator=generator) * 0.01 + 0.005) / finer
    zero = (torch.rand(n, k // group, generator=generator) * 4 + 6) * finer
    return QuantMatrix(codes, scale, zero, group, code_bits)


def random_weight(shape: Shape, seed: int) -> Tensor:
    """A random matrix fp32 [N, K] of plausible size, for timing; rows repeat after 1,024."""
    n, k = shape
    rows = torch.randn(min(n, 1024), k, generator=torch.Generator().manual_seed(seed))
    return rows.repeat(-(-n // rows.shape[0]), 1)[:n] * 0.05


def time_kernel(build: Callable[[int], Linear], shape: Shape, device: torch.device) -> float:
    """Microseconds of one-row products with cold weights, after checking the result.

    The fastest counts: what else the machine does only ever adds to a time.

    Raises KernelUnavailable where the kernel cannot be built or disagrees with its own weights.
    """
    n, k = shape
    copies = max(2, min(24, COLD_BYTES // (2 * n * k)))
    kernels = [build(seed) for seed in range(copies)]
    x = torch.randn(1, k, generator=torch.Generator().manual_seed(7)).to(device)
    verify(kernels[0], x)
    spent: list[float] = []
    for _ in range(4):
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
