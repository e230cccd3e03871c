"""Scales and ranges by what goes into a matrix: smaller output errors, codes in their bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from river_core.activation_aware import (
    channel_scales,
    clipped,
    in_backbone_units,
    row_ratios,
    scaled_layer,
)
from river_core.errors import ModelUnavailable, RiverError, SettingsError
from river_core.footprint import Layout, footprint
from river_core.quantize import RiverFile, quantize
from river_core.random_model import random_model
from river_core.settings import QuantSpec
from tests.unit.test_footprint import TINY

N, K = 96, 192


def drawn(seed: int, *size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def moments() -> Tensor:
    """Of correlated inputs with a few large channels, as a model's are."""
    mixed = drawn(1, 600, K) @ (torch.eye(K) + 0.3 * drawn(2, K, K) / K**0.5)
    mixed[:, ::31] *= 12
    return mixed.T @ mixed / len(mixed)


@pytest.fixture(scope="module")
def weight() -> Tensor:
    return drawn(3, N, K) * 0.05


def lost(weight: Tensor, dense: Tensor, moments: Tensor) -> float:
    return float(((dense - weight) @ moments * (dense - weight)).sum())


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_scales_and_ranges_lose_less_than_rounding(
    weight: Tensor, moments: Tensor, bits: int
) -> None:
    plain = quantize(weight, QuantSpec(bits, 64, "rtn")).dense()
    ranges = quantize(weight, QuantSpec(bits, 64, "awq"), moments=moments)
    scales = channel_scales(weight, moments, 64, 2**bits - 1)
    both = clipped(weight, moments, 64, 2**bits - 1, scales=scales)
    errors = [lost(weight, d, moments) for d in (plain, ranges.dense(), both.dense() / scales)]
    assert errors[1] < 0.97 * errors[0] and errors[2] < 0.6 * errors[0], errors
    for matrix in (ranges, both):
        assert matrix.codes.dtype == torch.uint8 and int(matrix.codes.max()) <= 2**bits - 1
        assert torch.equal(matrix.zero, matrix.zero.round().clamp(0, 2**bits - 1))
        assert bool((matrix.scale > 0).all())


def test_large_channels_get_large_scales(weight: Tensor, moments: Tensor) -> None:
    scales = channel_scales(weight, moments, 64, 15)
    assert scales[::31].min() > scales.median()
    assert float((scales.max() * scales.min()).log()) == pytest.approx(0, abs=1e-4)


def test_inputs_alike_need_no_scales(weight: Tensor) -> None:
    assert torch.equal(channel_scales(weight, torch.eye(K), 64, 15), torch.ones(K))
    assert torch.equal(channel_scales(weight, torch.zeros(K, K), 64, 15), torch.ones(K))


def test_all_parts_of_a_fused_matrix_are_looked_at(moments: Tensor) -> None:
    """The rows that judge lie over the whole matrix, the last ones too."""
    quiet = torch.zeros(1000, K)
    quiet[900:] = drawn(5, 100, K)
    assert not torch.equal(channel_scales(quiet, moments, 64, 15), torch.ones(K))


def test_rows_in_blocks_are_the_same(
    weight: Tensor, moments: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = clipped(weight, moments, 64, 15)
    monkeypatch.setattr("river_core.activation_aware.BLOCK", 7 * K)
    pieces = clipped(weight, moments, 64, 15)
    assert torch.equal(whole.codes, pieces.codes) and torch.equal(whole.scale, pieces.scale)


def test_a_scaled_layer_taken_apart_is_the_layer(moments: Tensor) -> None:
    """The norms' divisors and the rows of `up` undo the scales: what is left is rounding."""
    own = {
        "qkv": drawn(6, 64, K) * 0.05,
        "out": drawn(7, K, K) * 0.05,
        "gate_up": drawn(8, 2 * K, K) * 0.05,
        "down": drawn(9, K, K) * 0.05,
    }
    norms = {"attn_norm": drawn(10, K).abs() + 0.1, "ffn_norm": drawn(11, K).abs() + 0.1}
    seen = dict.fromkeys(own, moments)
    made = scaled_layer(own, seen, norms, 64, 255)
    assert made.divisors.keys() == norms.keys()
    dense = {name: matrix.dense() for name, matrix in made.matrices.items()}
    twin_norms = {name: norms[name] / by for name, by in made.divisors.items()}
    apart = in_backbone_units(own, norms, dense, twin_norms)
    for name, weight in own.items():
        assert (apart[name] - weight).norm() < 0.02 * weight.norm(), name
    assert (dense["down"] - own["down"]).norm() > 0.1 * own["down"].norm()
    x = drawn(12, 5, K)
    gate, up = (x @ own["gate_up"].T).chunk(2, 1)
    exact = (gate.sigmoid() * up) @ own["down"].T
    s = made.divisors["ffn_norm"]
    gate, up = ((x / s) @ dense["gate_up"].T).chunk(2, 1)
    assert ((gate.sigmoid() * up) @ dense["down"].T - exact).norm() < 0.05 * exact.norm()


def test_without_norms_before_only_down_is_scaled(moments: Tensor) -> None:
    own = {"qkv": drawn(6, 64, K), "out": drawn(7, K, K), "gate_up": drawn(8, 2 * K, K)}
    own["down"] = drawn(9, K, K)
    made = scaled_layer(own, dict.fromkeys(own, moments), ("attn_post_norm",), 64, 15)
    assert made.divisors == {}
    plain = clipped(own["qkv"], moments, 64, 15)
    assert torch.equal(made.matrices["qkv"].scale, plain.scale)
    assert (made.matrices["down"].dense() - own["down"]).norm() > 0.2 * own["down"].norm()


def test_ratios_of_rows_of_zeros_are_one() -> None:
    own, factors = drawn(4, 3, K), torch.tensor([2.0, 0.5, 1.0])
    own[2] = 0
    assert torch.allclose(row_ratios(own, own * factors[:, None]), factors)


def test_moments_that_are_missing_or_not_finite_are_refused(weight: Tensor) -> None:
    with pytest.raises(SettingsError, match="'awq' needs inputs"):
        quantize(weight, QuantSpec(method="awq"))
    with pytest.raises(RiverError, match="not finite"):
        quantize(weight, QuantSpec(method="awq"), moments=torch.full((K, K), torch.nan))
    with pytest.raises(RiverError, match="not finite"):
        channel_scales(weight, torch.full((K, K), torch.inf), 64, 15)


def test_vectors_beside_the_codes_reload_bit_identical(weight: Tensor, tmp_path) -> None:
    spec = QuantSpec(method="awq")
    matrices = {"qkv": quantize(weight, QuantSpec(method="rtn"))}
    vectors = {"attn_norm": drawn(1, K), "ffn_norm": drawn(2, K)}
    RiverFile.of(tmp_path, "abc", spec).save(matrices, 1.0, vectors)
    file = RiverFile.of(tmp_path, "abc", spec)
    assert torch.equal(file.load()["qkv"].codes, matrices["qkv"].codes)
    assert file.vectors.keys() == vectors.keys()
    assert all(torch.equal(t, file.vectors[name]) for name, t in vectors.items())
    file.path.write_bytes(file.path.read_bytes()[:-7])
    with pytest.raises(ModelUnavailable, match="damaged"):
        file.load()


def test_other_methods_have_no_vectors(weight: Tensor, tmp_path) -> None:
    """Their files are as before, byte by byte: nothing is named in them."""
    file = RiverFile.of(tmp_path, "abc", QuantSpec(method="rtn"))
    file.save({"qkv": quantize(weight, QuantSpec(method="rtn"))})
    assert b"vectors" not in file.path.read_bytes()
    assert RiverFile.of(tmp_path, "abc", QuantSpec(method="rtn")).load() and file.vectors == {}


@pytest.mark.parametrize("resident", [1, 2, None])
def test_norms_of_the_twins_own_are_weighed(resident: int | None) -> None:
    """Twice where both banks have the layer, once where its backbone layer is away."""
    river, keep = QuantSpec(method="awq"), {"resident_layers": resident, "capacity": 96}
    made = random_model(TINY, dtype="bfloat16", river=river, **keep).memory()  # type: ignore[arg-type]
    size = footprint(TINY, Layout(river, 2, resident), tokens=96)
    assert size.parts == made
    plain = footprint(TINY, Layout(QuantSpec(), 2, resident), tokens=96)
    both = (TINY.layers if resident is None else resident) - 1
    assert size.norms - plain.norms == 4 * 2 * TINY.block.hidden * both
    assert size.total - plain.total == size.norms - plain.norms
