"""Products of the Triton kernels against plain torch, interpreted: test_triton_interpreted.py runs
this file in a process of its own, because the interpreter is chosen when a kernel is imported.

A program takes more rows of the weight here than on a GPU: the interpreter's time is per operation.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from river_core.block import rms_norm
from river_core.kernels.base import Linear
from river_core.kernels.gemv_plan import Cut, Fused
from river_core.kernels.micro import random_matrix, random_weight
from river_core.kernels.triton_linear import TritonDense, TritonInt4

EPS = 1e-5
CLOSE = 2e-6  # of the largest value: fp32 sums in another order


def int4(shape: tuple[int, int], group: int = 64, splits: int = 1) -> TritonInt4:
    return TritonInt4(random_matrix(shape, group, seed=3), Cut(64, 16, splits))


def dense(
    shape: tuple[int, int], dtype: torch.dtype = torch.float16, splits: int = 1
) -> TritonDense:
    return TritonDense(random_weight(shape, dtype), Cut(64, 256, splits))


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def expected(linear: Linear, x: Tensor, fused: Fused) -> Tensor:
    """The same in plain torch, one step after the other."""
    if fused.norm is not None:
        x = rms_norm(x, fused.norm, fused.eps)
    y = x @ linear.dense().t()
    if fused.gated:
        gate, up = y.chunk(2, dim=-1)
        y = F.silu(gate) * up
    return y if fused.residual is None else y + fused.residual


def check(
    linear: TritonInt4 | TritonDense, rows: int, fused: Fused, *, twice: bool = False
) -> None:
    """Equal to plain torch; with `twice` the same bits when run again."""
    x = drawn(rows, linear.shape[1])
    width = linear.shape[0] // (2 if fused.gated else 1)
    found = linear.project(x, torch.full((rows, width), 7.0), fused)
    wanted = expected(linear, x, fused)
    assert (found - wanted).abs().max() <= CLOSE * wanted.abs().max()
    if twice:
        assert torch.equal(found, linear.project(x, torch.empty(rows, width), fused))


def norm(columns: int) -> Tensor:
    return drawn(columns, seed=5).abs() + 0.5


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("splits", [1, 3])
def test_int4_with_the_norm_before_it(group: int, splits: int) -> None:
    linear = int4((192, 576), group, splits)
    check(linear, 1, Fused(norm=norm(576), eps=EPS), twice=group == 64)
    assert (linear.dense() - random_matrix((192, 576), group, 3).dense()).abs().max() < 2e-4


@pytest.mark.parametrize("splits", [1, 2])
def test_int4_in_groups_of_128_with_rows_that_fill_no_program(splits: int) -> None:
    check(int4((50, 1152), 128, splits), 2, Fused(norm=norm(1152), eps=EPS))


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("make", [int4, dense])
def test_gate_and_up(make, splits: int) -> None:
    check(make((2 * 100, 576), splits=splits), 1, Fused(norm=norm(576), eps=EPS, gated=True))


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("make", [int4, dense])
def test_a_residual_added_in_place(make, splits: int) -> None:
    linear, x, stream = make((576, 1536), splits=splits), drawn(1, 1536), drawn(1, 576, seed=9)
    wanted = expected(linear, x, Fused(residual=stream.clone()))
    linear.project(x, stream, Fused(residual=stream))
    assert (stream - wanted).abs().max() <= CLOSE * wanted.abs().max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(960, 576), (50, 1040), (1, 16)], ids=str)
def test_dense_with_the_norm_before_it(shape: tuple[int, int], dtype: torch.dtype) -> None:
    fused = Fused(norm=norm(shape[1]), eps=EPS)
    check(dense(shape, dtype, splits=3 if shape[0] == 50 else 1), 1, fused, twice=shape[0] == 50)


@pytest.mark.parametrize("kind", ["int4", "dense"])
def test_the_cut_of_a_small_card(kind: str) -> None:
    """The cut that the shape chooses, splits included; many rows go through torch."""
    shape = (10, 192)
    linear = (
        TritonInt4(random_matrix(shape, 32, 3))
        if kind == "int4"
        else TritonDense(random_weight(shape, torch.bfloat16))
    )
    check(linear, 1, Fused(norm=norm(192), eps=EPS))
    x = drawn(9, 192)
    bound = 1e-2 if kind == "dense" else CLOSE
    assert (linear(x) - x @ linear.dense().t()).abs().max() < bound * linear(x).abs().max()
    assert isinstance(linear, Linear)
