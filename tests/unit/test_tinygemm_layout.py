"""What can be checked of tinygemm's layout without a GPU: bytes, tiles, scales and zeros."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from river_core.errors import KernelUnavailable
from river_core.kernels.base import QuantMatrix
from river_core.kernels.micro import random_matrix
from river_core.kernels.torch_int4 import (
    AtenInt4,
    TinygemmInt4,
    _scales_and_zeros,
    inner_k_tiles,
    tinygemm_bytes,
)


def exact_matrix(n: int, k: int, group: int) -> QuantMatrix:
    """Scales are powers of two and zeros halves, so that bf16 holds every number exactly."""
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, generator=generator)
    powers = torch.randint(-7, -2, (n, k // group), generator=generator)
    halves = torch.randint(0, 31, (n, k // group), generator=generator)
    return QuantMatrix(codes, 2.0**powers, halves / 2, group)


def dequantised(packed: Tensor, meta: Tensor, group: int) -> Tensor:
    """Bytes [N, K / 2] and (scale, zero) [K / group, N, 2] -> fp32 [N, K], as the kernel reads."""
    high, low = packed >> 4, packed & 15
    codes = torch.stack([high, low], dim=-1).view(packed.shape[0], -1).float()
    scale, zero = (meta[..., n].float().t().repeat_interleave(group, dim=1) for n in (0, 1))
    return (codes - 8) * scale + zero


@pytest.mark.parametrize("group", [32, 64, 128])
def test_dequantising_by_hand_gives_the_quantised_matrix(group: int) -> None:
    matrix = exact_matrix(16, 256, group)
    meta = _scales_and_zeros(matrix)
    assert meta.shape == (256 // group, 16, 2)
    assert meta.dtype == torch.bfloat16
    found = dequantised(tinygemm_bytes(matrix.codes), meta, group)
    assert torch.equal(found, matrix.dense())


def test_the_shifted_zero_is_computed_before_it_is_rounded() -> None:
    matrix = random_matrix((16, 128), 64, seed=5)
    zeros = ((8 - matrix.zero) * matrix.scale).bfloat16()
    assert torch.equal(_scales_and_zeros(matrix)[..., 1], zeros.t())
    found = dequantised(tinygemm_bytes(matrix.codes), _scales_and_zeros(matrix), 64)
    error = (found - matrix.dense()).norm() / matrix.dense().norm()
    assert error < 4e-3  # bf16 keeps 8 bits of scale and zero


def test_even_columns_are_in_the_high_halves() -> None:
    codes = torch.tensor([[1, 2, 3, 4], [15, 0, 0, 15]], dtype=torch.uint8)
    assert tinygemm_bytes(codes).tolist() == [[0x12, 0x34], [0xF0, 0x0F]]


def test_atens_kernel_takes_the_same_numbers() -> None:
    matrix = exact_matrix(32, 256, 64)
    assert torch.equal(AtenInt4(matrix).dense(), matrix.dense().bfloat16().float())


@pytest.mark.parametrize(
    ("shape", "tiles"),
    [((3072, 2048), 8), ((960, 576), 4), ((576, 1536), 8), ((8, 64), 4), ((8, 32), 2)],
)
def test_inner_k_tiles(shape: tuple[int, int], tiles: int) -> None:
    assert inner_k_tiles(*shape) == tiles
    assert shape[1] % (16 * tiles) == 0


@pytest.mark.parametrize("shape", [(12, 64), (16, 48), (16, 16)])
def test_shapes_that_tinygemm_cannot_take_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(KernelUnavailable, match="rows in multiples of 8"):
        inner_k_tiles(*shape)


def test_tinygemm_on_the_cpu_is_refused() -> None:
    with pytest.raises(KernelUnavailable, match="CUDA"):
        TinygemmInt4(exact_matrix(16, 128, 64))
