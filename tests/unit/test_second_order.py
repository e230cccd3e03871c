"""Error compensation: smaller output errors than rounding, by its own measure and in fact."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from river_core.errors import RiverError, SettingsError
from river_core.quantize import quantize, quantize_fused
from river_core.second_order import Compensation, fit_groups, output_error, refit
from river_core.settings import METHODS, QuantSpec

N, K = 40, 192


def drawn(seed: int, *size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def inputs() -> Tensor:
    """Correlated, with a few large channels, as a model's are."""
    mixed = drawn(1, 600, K) @ (torch.eye(K) + 0.3 * drawn(2, K, K) / K**0.5)
    mixed[:, ::31] *= 12
    return mixed


@pytest.fixture(scope="module")
def moments(inputs: Tensor) -> Tensor:
    return inputs.T @ inputs / len(inputs)


@pytest.fixture(scope="module")
def weight() -> Tensor:
    return drawn(3, N, K) * 0.05


def lost(weight: Tensor, inputs: Tensor, spec: QuantSpec, moments: Tensor) -> float:
    """Relative error of the products."""
    coded = quantize(weight, spec, moments=moments).dense()
    exact = inputs @ weight.T
    return float((inputs @ coded.T - exact).norm() / exact.norm())


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
@pytest.mark.parametrize("group", [32, 64])
def test_products_lose_less_than_by_any_other_method(
    weight: Tensor, inputs: Tensor, moments: Tensor, bits: int, group: int
) -> None:
    found = {m: lost(weight, inputs, QuantSpec(bits, group, m), moments) for m in METHODS}
    assert found["gptq"] < 0.75 * min(found["hqq"], found["rtn"]), found
    fresh = drawn(9, 300, K) @ torch.linalg.cholesky(moments + 1e-4 * torch.eye(K)).T
    again = {m: lost(weight, fresh, QuantSpec(bits, group, m), moments) for m in METHODS}
    assert again["gptq"] < 0.85 * min(again["hqq"], again["rtn"]), again  # inputs it has not seen


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_codes_stay_within_their_bits(
    weight: Tensor, moments: Tensor, method: str, bits: int
) -> None:
    matrix = quantize(weight, QuantSpec(bits, 64, method), moments=moments)
    assert matrix.codes.dtype == torch.uint8 and int(matrix.codes.max()) <= 2**bits - 1
    assert matrix.scale.shape == matrix.zero.shape == (N, K // 64)
    assert bool((matrix.scale > 0).all())
    rough = (matrix.dense() - weight).norm() / weight.norm()
    assert rough < {8: 0.012, 4: 0.2, 3: 0.4, 2: 0.9}[bits]


def test_a_fit_of_groups_is_never_worse_than_the_plain_range(weight: Tensor) -> None:
    scale, zero = fit_groups(weight, torch.ones(K), 64, 15)
    grouped, whole = weight.view(N, -1, 64), torch.eye(K)
    step = (grouped.amax(-1) - grouped.amin(-1)) / 15
    plain = step, -grouped.amin(-1) / step
    errors = [
        output_error(weight, whole, quantize_codes(weight, *grid), *grid)
        for grid in ((scale, zero), plain)
    ]
    assert bool((errors[0] <= errors[1] + 1e-9).all())
    assert errors[0].sum() < 0.95 * errors[1].sum()


def quantize_codes(weight: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    grouped = weight.view(N, -1, 64)
    return (grouped / scale[..., None] + zero[..., None]).round().clamp(0, 15).view(N, K)


def test_a_refit_is_the_least_squares_solution(weight: Tensor, moments: Tensor) -> None:
    """No row gets worse, and no small step from it makes one better."""
    scale, zero = fit_groups(weight, moments.diagonal(), 64, 15)
    codes = quantize_codes(weight, scale, zero)
    before = output_error(weight, moments, codes, scale, zero)
    new = refit(weight, moments, codes, scale, zero)
    after = output_error(weight, moments, codes, *new)
    assert bool((after <= before).all()) and after.sum() < 0.999 * before.sum()
    for seed in range(6):
        step = 1 + 1e-3 * drawn(seed, 2, N, K // 64)
        other = output_error(weight, moments, codes, new[0] * step[0], new[1] * step[1])
        assert bool((other >= after * (1 - 1e-4)).all())


def test_large_matrices_are_fitted_in_pieces(
    weight: Tensor, moments: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Compensation(moments, 64, 15).solve(weight)
    monkeypatch.setattr("river_core.second_order.REFIT_NUMBERS", 1)
    pieces = Compensation(moments, 64, 15).solve(weight)
    assert torch.equal(whole.codes, pieces.codes)
    assert torch.allclose(whole.scale, pieces.scale, rtol=1e-3)


def test_inputs_that_are_never_seen_cost_nothing_and_break_nothing(weight: Tensor) -> None:
    seen = torch.zeros(K, K)
    seen[:5, :5] = torch.eye(5)
    matrix = quantize(weight, QuantSpec(method="gptq"), moments=seen)
    assert bool(torch.isfinite(matrix.dense()).all())
    assert (matrix.dense()[:, :5] - weight[:, :5]).norm() < 0.1 * weight[:, :5].norm()


def test_a_matrix_of_zeros_stays_one(moments: Tensor) -> None:
    for method in METHODS:
        found = quantize(torch.zeros(8, K), QuantSpec(method=method), moments=moments).dense()
        assert bool((found.abs() < 1e-6).all())


def test_moments_that_are_missing_or_not_finite_are_refused(weight: Tensor) -> None:
    with pytest.raises(SettingsError, match="needs inputs"):
        quantize(weight, QuantSpec(method="gptq"))
    with pytest.raises(RiverError, match="not finite"):
        quantize(weight, QuantSpec(method="gptq"), moments=torch.full((K, K), torch.nan))


def test_fused_parts_are_rows_of_one_problem(weight: Tensor, moments: Tensor) -> None:
    spec = QuantSpec(method="gptq")
    whole = quantize(weight, spec, moments=moments)
    fused = quantize_fused({"q": weight[:16], "k": weight[16:]}, spec, moments)
    assert torch.equal(whole.codes, fused.codes) and torch.equal(whole.scale, fused.scale)
