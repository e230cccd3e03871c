"""Weights moved to large pages are the same weights, and their memory goes when they go."""

from __future__ import annotations

import gc
import sys

import pytest
import torch

from river_core.errors import KernelUnavailable
from river_core.kernels.micro import random_matrix
from river_core.kernels.native import NativeDense, NativeInt4, on_large_pages
from river_core.kernels.pages import ADVICE, HUGE, together


def test_copies_are_equal_aligned_and_side_by_side():
    shapes = [(7, 100), (960, 576), (3, 5)]
    tensors = [torch.randn(shape).to(t) for shape in shapes for t in (torch.float16, torch.float32)]
    tensors.append(torch.randint(0, 9, (77, 3), dtype=torch.int16))
    copies = together(tensors)
    assert all(
        torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(tensors, copies, strict=True)
    )
    if ADVICE is None:
        pytest.skip("no large pages on request here: the tensors stay where they are")
    assert copies[0].data_ptr() % HUGE == 0
    assert all(copy.data_ptr() % 64 == 0 for copy in copies)
    assert len({copy.untyped_storage().data_ptr() for copy in copies}) == 1


def test_little_stays_where_it_is():
    tensor = torch.randn(100, 100)
    assert together([tensor])[0] is tensor


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc/self/statm here")
@pytest.mark.skipif(ADVICE is None, reason="no large pages on request here")
def test_memory_is_given_back():
    def resident() -> int:
        gc.collect()
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    before = resident()
    copies = together([torch.ones(64 << 20, dtype=torch.uint8)])
    assert resident() - before > 60 << 20
    del copies
    assert resident() - before < 8 << 20


def test_moved_kernels_compute_the_same():
    try:
        linears = [NativeDense(torch.randn(960, 576)), NativeInt4(random_matrix((960, 576), 64, 1))]
    except KernelUnavailable as reason:
        pytest.skip(str(reason))
    x = torch.randn(2, 576)
    before = [(linear(x), linear.dense()) for linear in linears]
    on_large_pages(linears)
    for linear, (product, weights) in zip(linears, before, strict=True):
        assert torch.equal(linear(x), product)
        assert torch.equal(linear.dense(), weights)
