"""Error compensation: smaller output errors than rounding, by its own measure and in fact."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from river_core import group_fit, second_order
from river_core.errors import RiverError, SettingsError
from river_core.group_fit import Refit, fit_groups
from river_core.quantize import quantize, quantize_fused
from river_core.second_order import Compensation, inverse_factor, round_columns
from river_core.settings import METHODS, QuantSpec
from tests.unit import slow_second_order
from tests.unit.slow_second_order import output_error

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
    new = Refit(weight, moments)(codes, scale, zero)
    after = output_error(weight, moments, codes, *new)
    assert bool((after <= before).all()) and after.sum() < 0.999 * before.sum()
    for seed in range(6):
        step = 1 + 1e-3 * drawn(seed, 2, N, K // 64)
        other = output_error(weight, moments, codes, new[0] * step[0], new[1] * step[1])
        assert bool((other >= after * (1 - 1e-4)).all())


def test_pieces_of_rows_change_nothing(
    weight: Tensor, moments: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Compensation(moments, 64, 15).solve(weight)
    monkeypatch.setattr(group_fit, "NUMBERS", 1)
    monkeypatch.setattr(group_fit, "REFIT_NUMBERS", 1)
    pieces = Compensation(moments, 64, 15).solve(weight)
    assert (whole.codes == pieces.codes).float().mean() > 0.999  # sums in another order
    assert torch.allclose(whole.dense(), pieces.dense(), atol=0.02 * float(weight.std()))


@pytest.fixture(scope="module")
def grid(weight: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
    """A column's own scale and zero [N, K] of a coarse grid, so that codes are far from exact."""
    scale, zero = fit_groups(weight, moments.diagonal(), 64, 7)
    return scale.repeat_interleave(64, 1), zero.repeat_interleave(64, 1)


def steady(moments: Tensor) -> Tensor:
    return second_order.steadied(moments)


def test_columns_in_blocks_are_rounded_as_one_by_one(
    weight: Tensor, moments: Tensor, grid: tuple[Tensor, Tensor]
) -> None:
    few = weight[:6]
    scale, zero = (side[:6] for side in grid)
    slow = slow_second_order.round_columns(few, steady(moments), scale, zero, 7)
    factor = inverse_factor(steady(moments))
    columns = [t.t().contiguous() for t in (few, scale, zero)]
    fast = round_columns(columns[0], factor, columns[1], columns[2], 7).t()
    assert (fast == slow).float().mean() > 0.995  # one rounding apart, all that follow may be
    assert (fast[:, :16] == slow[:, :16]).all()


def test_a_factor_is_of_the_inverse(moments: Tensor) -> None:
    factor = inverse_factor(steady(moments)).double()
    assert bool((factor.tril(-1) == 0).all())
    product = factor.T @ factor @ steady(moments).double()
    assert torch.allclose(product, torch.eye(K, dtype=torch.float64), atol=1e-3)


def test_the_quadratic_form_is_the_obvious_one(weight: Tensor, moments: Tensor) -> None:
    codes = torch.randint(0, 16, (5, K), generator=torch.Generator().manual_seed(5)).float()
    fast = group_fit._quadratic(moments, codes, 3)
    slow = slow_second_order.normal_equations(moments, codes, 3)
    assert torch.allclose(fast.double(), slow, rtol=1e-4)


def test_what_channels_share_is_halved_and_nothing_costs_nothing() -> None:
    seen = torch.tensor([[4.0, 2.0], [2.0, 0.0]])
    expected = torch.tensor([[4.02, 1.0], [1.0, 0.02]])
    assert torch.allclose(second_order.steadied(seen), expected)


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
