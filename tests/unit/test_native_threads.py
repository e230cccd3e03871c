"""The compiled kernels give the same bits with any number of threads: products, steps, choices."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from river_core.execution.native import ATTENTION, FEED_FORWARD, NativeLayer, NativeStep
from river_core.kernels.base import Linear
from river_core.kernels.native_library import NativeLibrary, load_library
from tests.unit.test_native_kernels import (  # noqa: F401 (_one_thread)
    CAPACITY,
    CODED_ERROR,
    CODED_KINDS,
    DTYPES,
    _one_thread,
    error,
    fused,
    make,
    pytestmark,
    rope,
)

THREADS = (2, 3, 5)  # beside one; five are more than some shapes have rows or heads to share out
LONG = (0, 1, 127, 128, 300)  # positions: the last ones read two and three chunks of the cache


@pytest.fixture(scope="module")
def library() -> NativeLibrary:
    return load_library()


@pytest.mark.parametrize("kind", [*DTYPES, *CODED_KINDS])
@pytest.mark.parametrize("rows", [7, 192, 1003])
def test_products(library: NativeLibrary, kind: str, rows: int) -> None:
    """Of one to 33 rows; and of several rows each as if it were alone."""
    linear = make(rows, 640 if kind.endswith("-128") else 576, kind, library)
    x = torch.randn(33, linear.shape[1])
    counts = (1, 2, 3, 7, 11, 16, 33)
    once, dense = [linear(x[:count]) for count in counts], linear.dense()
    alone = torch.cat([linear(row[None]) for row in x[:16]])
    for threads in THREADS:
        torch.set_num_threads(threads)
        for count, before in zip(counts, once, strict=True):
            assert torch.equal(linear(x[:count]), before), (threads, count)
            assert count > 16 or torch.equal(before, alone[:count])
        assert torch.equal(linear.dense(), dense)


def steps(
    layers: list[NativeLayer],
    dtype: torch.dtype,
    together: bool,
    library: NativeLibrary,
) -> list[Tensor]:
    """Everything that rows through two layers leave behind: states, cosines, keys and values."""
    shape = layers[0].shape
    step = NativeStep([rope(shape.head_dim)], library)
    generator = torch.Generator().manual_seed(3)
    size = (2, 2, shape.kv_heads, CAPACITY, shape.head_dim)
    k, v = torch.randn(size, generator=generator).to(dtype)
    bank = step.bank(layers, k.unbind(), v.unbind())
    seen: list[Tensor] = []
    for position in LONG:
        h = torch.randn(shape.hidden, generator=generator)
        step.keys_values(bank, h, position + 1, 0, 2)
        seen += [k[:, :, position + 1].clone(), v[:, :, position + 1].clone()]
        if together:
            cosines = step.run(bank, h, position, 0, 2)
        else:
            cosines = [c for n in (0, 1) for c in step.run(bank, h, position, n, n + 1)]
        seen += [h.clone(), torch.tensor(cosines)]
        for part in (ATTENTION, FEED_FORWARD):
            seen += [torch.tensor(step.run(bank, h, position, 0, 2, part)), h.clone()]
    return [*seen, k, v]


@pytest.mark.parametrize(
    ("kind", "repeat", "cache"),
    [
        *((kind, 3, "fp16") for kind in (*DTYPES, "int4-32", "int4-64", "int4-128", "int8-64")),
        *((kind, 1, kind) for kind in DTYPES),
    ],
)
def test_layers(library: NativeLibrary, kind: str, repeat: int, cache: str) -> None:
    """Also over a cache of several chunks, and whether or not one call runs both layers."""
    layers = [fused(kind, repeat, 64, library) for _ in range(2)]
    once = steps(layers, DTYPES[cache], False, library)
    assert all(tensor.isfinite().all() for tensor in once)
    for threads in (1, *THREADS):
        torch.set_num_threads(threads)
        again = steps(layers, DTYPES[cache], True, library)
        for n, (before, after) in enumerate(zip(once, again, strict=True)):
            assert torch.equal(before, after), (threads, n)


def heard(step: NativeStep, norm: Tensor, head: Linear, h: Tensor, size: int) -> list[Tensor]:
    """The scores of a row, and what they say."""
    logits = torch.empty(size)
    step.head(norm, 1e-5, head, h, logits)
    best, logprob, entropy = step.choice(logits, None, 5)
    return [logits, torch.tensor([*chain(*best), logprob, entropy])]


@pytest.mark.parametrize("kind", [*DTYPES, "int4-64", "int8-64"])
@pytest.mark.parametrize("size", [3, 331, 4097])
def test_head_and_choice(library: NativeLibrary, kind: str, size: int) -> None:
    head, norm, h = make(size, 576, kind, library), torch.rand(576), torch.randn(576)
    step = NativeStep([rope(64)], library)
    once = heard(step, norm, head, h, size)
    assert error(once[0], F.rms_norm(h, h.shape, norm, 1e-5), head) < CODED_ERROR
    for threads in THREADS:
        torch.set_num_threads(threads)
        again = heard(step, norm, head, h, size)
        assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True)), threads
