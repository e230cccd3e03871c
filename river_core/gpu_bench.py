"""Where and how large the GPU report measures, and how it takes a time.

A real GPU, or the dry run: the same code on the CPU at a tiny shape. Knows no items.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import Tensor

from .cache_paths import cache_root
from .devices import settle
from .errors import SettingsError
from .footprint import Layout, footprint
from .kernels.base import QuantMatrix
from .model import RiverModel
from .random_model import random_model
from .shapes import SHAPES, ShapeSpec

MEAN_EXIT = 3.79  # the paper's mean exit layer of 16
ROOM = 1.15  # of a model's own bytes, what building and decoding take beside it
Facts = dict[str, Any]
Item = Callable[["Bench"], Iterator[Facts]]  # gives what it finds as it finds it


@dataclass(frozen=True)
class Bench:
    """What to measure on: `spec` is the small shape, `large` the large one.

    `lengths` are positions in the cache, `buffer` the bytes read to measure bandwidth, `cold` bytes
    of weights that no cache holds together.
    """

    device: torch.device
    spec: ShapeSpec
    large: ShapeSpec
    tokens: int
    rounds: int
    lengths: tuple[int, ...]
    buffer: int
    cold: int

    @classmethod
    def open(cls, dry_run: bool) -> Bench:
        """The sizes to run with; a dry run sets torch to one thread."""
        if dry_run:
            torch.set_num_threads(1)  # matrices this small only lose by being split
            tiny = SHAPES["tiny"]
            return cls(torch.device("cpu"), tiny, tiny, 5, 1, (8, 16, 32), 8 << 20, 1 << 18)
        device = torch.device("cuda", torch.cuda.current_device())
        buffer = min(4 << 30, torch.cuda.mem_get_info(device)[0] // 4 // 4096 * 4096)
        small, large = SHAPES["llama-3.2-1b"], SHAPES["llama-3.1-8b"]
        return cls(device, small, large, 64, 5, (512, 4096, 16384), buffer, 256 << 20)

    @property
    def on_gpu(self) -> bool:
        """Whether this is no dry run."""
        return self.device.type == "cuda"

    def model(self, spec: ShapeSpec | None = None, capacity: int = 512) -> RiverModel:
        """A random model of the small shape, or of another; a dry run leaves no choices behind."""
        store = cache_root() / "kernels.json" if self.on_gpu else None
        return random_model(spec or self.spec, device=self.device, capacity=capacity, store=store)

    def largest(self) -> tuple[ShapeSpec, str | None]:
        """The large shape where it fits this card, else the small one and a sentence about it."""
        if not self.on_gpu:
            return self.large, None
        needed = footprint(self.large, Layout(entry_layer=1), tokens=512).total * ROOM
        free = torch.cuda.mem_get_info(self.device)[0]
        if needed <= free:
            return self.large, None
        return self.spec, (
            f"{self.large.name} takes {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free:"
            f" measured at {self.spec.name} instead."
        )

    @property
    def prompt(self) -> tuple[int, ...]:
        """Sixteen token ids."""
        return tuple(range(1, 17))

    def random(self, n: int, k: int) -> Tensor:
        """Values bf16 [n, k] on the device."""
        return torch.randn(n, k, device=self.device, dtype=torch.bfloat16)

    def coded(self, shape: tuple[int, int], group: int = 64) -> QuantMatrix:
        """A random 4-bit matrix [N, K], made on the device."""
        n, k = shape
        codes = torch.randint(0, 16, (n, k), device=self.device, dtype=torch.uint8)
        scale = torch.rand(n, k // group, device=self.device) * 0.01 + 0.005
        zero = torch.rand(n, k // group, device=self.device) * 4 + 6
        return QuantMatrix(codes, scale, zero, group)

    def copies(self, size: int) -> int:
        """How many matrices of `size` bytes no cache holds together."""
        return min(96, max(2, math.ceil(self.cold / size)))

    def timed(self, calls: Sequence[Callable[[], object]], size: float) -> Facts:
        """Microseconds per call as the host issues them, and without the host (a CUDA graph).

        `size` in bytes is what a call reads; GB/s are of the shorter time.
        """
        issued = self.per_call(lambda: [call() for call in calls], len(calls))
        row = {"us issued": round(issued, 2), "us device": None, "GB/s": rate(size, issued)}
        if self.on_gpu:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                kept = [call() for call in calls]
            device = self.per_call(graph.replay, len(kept))
            row |= {"us device": round(device, 2), "GB/s": rate(size, device)}
        return row

    def per_call(self, run: Callable[[], object], calls: int) -> float:
        """Microseconds of one of the `calls` that `run` makes: a median, after a warm-up."""
        spent = []
        for _ in range(8):
            settle(self.device)
            start = time.perf_counter()
            run()
            settle(self.device)
            spent.append(time.perf_counter() - start)
        return median(spent[3:]) / calls * 1e6


def rate(size: float, microseconds: float) -> float:
    """GB/s of `size` bytes in that time."""
    return round(size / microseconds / 1e3, 1)


def error(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what is expected."""
    return float((found.float() - expected).norm() / expected.norm())


def built(module: str) -> Any:
    """A file of this package by its dotted name, or None where it is not built (or not for here).

    How parts that a machine may lack join the report without its importing them.
    """
    name = f"{__package__}.{module}"
    try:
        return import_module(name) if find_spec(name) is not None else None
    except ImportError:  # what it needs, such as triton, is not installed
        return None


def find_item(items: dict[str, Item], name: str) -> Item:
    """The item called `name`; SettingsError with the known names."""
    if name not in items:
        raise SettingsError(f"unknown item {name!r}; known are {', '.join(items)}.")
    return items[name]
