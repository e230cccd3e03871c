"""Each torch kernel against the plain product; the micro-test's choice and its memory."""

from __future__ import annotations

import json

import pytest
import torch

from river_core.errors import KernelUnavailable
from river_core.kernels import micro
from river_core.kernels.base import Linear, QuantMatrix
from river_core.kernels.choose import DEQUANTISED, Chooser, _pick, kind_of, slower
from river_core.kernels.micro import (
    Candidates,
    random_codes,
    random_matrix,
    random_weight,
    time_in_turns,
    verify,
)
from river_core.kernels.reference import ReferenceDense
from river_core.kernels.torch_dense import MkldnnDense, TorchDense
from river_core.kernels.torch_int4 import AtenInt4

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(64, 64), (17, 192), (192, 576), (960, 576)])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize(
    ("kind", "dtype", "error"),
    [
        (TorchDense, torch.float32, 1e-5),
        (TorchDense, torch.float16, 2e-3),
        (TorchDense, torch.bfloat16, 1e-2),
        (MkldnnDense, torch.float32, 1e-5),
        (MkldnnDense, torch.bfloat16, 1e-2),
    ],
)
def test_dense_kernels_equal_the_reference(kind, dtype, error, rows, shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    try:
        kernel = kind(weight)
    except KernelUnavailable as reason:
        pytest.skip(str(reason))
    x = torch.randn(rows, shape[1], generator=torch.Generator().manual_seed(2))
    expected = ReferenceDense(weight)(x)
    assert kernel(x).dtype == torch.float32
    assert (kernel(x) - expected).norm() / expected.norm() < error
    assert torch.equal(kernel.dense(), weight.float())
    assert isinstance(kernel, Linear)


@pytest.mark.parametrize("shape", [(64, 64), (192, 576), (576, 1536)])
@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_aten_int4_equals_the_dequantised_product(rows, group, shape):
    matrix = random_matrix(shape, group, 3)
    kernel = AtenInt4(matrix)
    x = torch.randn(rows, shape[1], generator=torch.Generator().manual_seed(2))
    expected = x @ matrix.dense().t()
    assert (kernel(x) - expected).norm() / expected.norm() < 1e-2
    assert (kernel.dense() - matrix.dense()).abs().max() < 0.02 * matrix.dense().abs().max()
    assert kernel.bits == 4 + 32 / group
    stored = sum(t.nbytes for t in kernel.tensors()) * 8 / (shape[0] * shape[1])
    assert stored == pytest.approx(kernel.bits)


def test_aten_int4_refuses_rows_it_cannot_pack():
    with pytest.raises(KernelUnavailable, match="multiples of 16"):
        AtenInt4(random_matrix((24, 64), 64, 1))


def test_dense_of_a_quantised_matrix_by_hand():
    codes = torch.tensor([[0, 15, 7, 8]], dtype=torch.uint8)
    matrix = QuantMatrix(codes, torch.tensor([[0.5, 2.0]]), torch.tensor([[3.0, 7.5]]), 2)
    assert matrix.dense().tolist() == [[-1.5, 6.0, -1.0, 1.0]]


def test_a_kernel_that_is_wrong_is_not_used():
    class Wrong(ReferenceDense):
        def __call__(self, x):
            return super().__call__(x) * 1.05

    with pytest.raises(KernelUnavailable, match="is off by"):
        verify(Wrong(torch.randn(8, 64)), torch.randn(1, 64))


SHAPES = {(64, 64): 2, (192, 64): 1}
CODED = {(bits, *shape): uses for bits in (4, 8) for shape, uses in SHAPES.items()}


def test_the_choice_is_stored_and_recalled(tmp_path):
    store = tmp_path / "kernels.json"
    first = Chooser(CPU, 64, store).plan(SHAPES, CODED, "auto")
    assert Chooser(CPU, 64, store).plan(SHAPES, CODED, "auto") == first
    rows = json.loads(store.read_text())
    assert all(row["choice"] in row["microseconds"] for row in rows.values())
    for shape in SHAPES:
        dense = first.make_dense(torch.randn(shape))
        assert dense.name == first.dense[shape]
        for bits in (4, 8):  # in one plan: a river may have both
            coded = first.make_coded(random_matrix(shape, 64, 1, bits))
            assert coded.name == first.coded[bits, *shape] != DEQUANTISED
            assert first.shown()[f"{shape[0]}x{shape[1]} int{bits}"] == coded.name
            assert kind_of(coded.name) == f"int{bits}"


def test_a_busy_moment_does_not_decide(monkeypatch):
    """What another program takes from one visit does not count; each name is visited twice."""
    spent = iter([90.0, 12.0, 30.0, 10.0, 11.0, 31.0])  # a, b, c; the first one beside a program
    monkeypatch.setattr(micro, "time_kernel", lambda *_: next(spent))
    rows = [Candidates(names, (8, 64), ReferenceDense) for names in (("a", "b"), ("c",))]
    assert time_in_turns(rows, CPU) == [{"a": 10.0, "b": 11.0}, {"c": 30.0}]


def test_a_kernel_that_cannot_be_built_is_left_out():
    def build(name):
        if name == "absent":
            raise KernelUnavailable("not here.")
        return ReferenceDense(random_weight((8, 64), torch.float16).float())

    (found,) = time_in_turns([Candidates(("absent", "there"), (8, 64), build)], CPU)
    assert list(found) == ["there"] and 0 < found["there"] < 1e6


def test_copies_that_are_timed_lie_in_memory_of_their_own():
    weights = [random_weight((1030, 64), torch.float32) for _ in range(2)]
    codes = [random_codes((8, 64), 64, 8).codes for _ in range(2)]
    for one, other in (weights, codes):
        assert torch.equal(one, other) and one.data_ptr() != other.data_ptr()


def test_a_stored_choice_holds_within_ten_per_cent(tmp_path):
    chooser = Chooser(CPU, 64, tmp_path / "k.json")
    assert chooser._remember("x", {"a": 10.0, "b": 20.0}, ["a", "b"]) == "a"
    assert chooser._remember("x", {"a": 10.9, "b": 10.0}, ["a", "b"]) == "a"
    assert chooser._remember("x", {"a": 11.1, "b": 10.0}, ["a", "b"]) == "b"


def test_a_damaged_store_is_measured_again(tmp_path):
    store = tmp_path / "kernels.json"
    store.write_text("{not json")
    Chooser(CPU, 64, store).plan(SHAPES, {}, "float32")
    assert json.loads(store.read_text())


def test_fp32_is_exact_and_dequantised(tmp_path):
    plan = Chooser(CPU, 64, None).plan(SHAPES, CODED, "float32")
    assert set(plan.coded.values()) == {DEQUANTISED}
    for bits in (4, 8):
        matrix = random_matrix((64, 64), 64, 5, bits)
        assert torch.equal(plan.make_coded(matrix).dense(), matrix.dense())


def test_a_plan_measures_only_the_code_bits_that_are_wanted():
    plan = Chooser(CPU, 64, None).plan(SHAPES, {(8, 64, 64): 1}, "float16")
    assert list(plan.coded) == [(8, 64, 64)]
    assert not any("int4" in name for name in plan.microseconds)


def test_fused_kernels_win_unless_they_cost_much():
    row = {"torch-fp16": 10.0, "native-fp16": 12.0}
    assert _pick({(1, 1): row}, {(1, 1): 3}) == {(1, 1): "native-fp16"}
    row = {"torch-fp16": 10.0, "native-fp16": 13.0}
    assert _pick({(1, 1): row}, {(1, 1): 3}) == {(1, 1): "torch-fp16"}
    row = {"torch-bf16": 1.0, "triton-bf16": 1.2}
    assert _pick({(1, 1): row}, {(1, 1): 3}) == {(1, 1): "triton-bf16"}, "fused on a GPU"


def test_a_river_that_is_slower_than_the_backbone_is_said() -> None:
    assert slower(80.0, 100.0) == slower(0.0, 100.0) == slower(80.0, 0.0) == []
    (note,) = slower(150.0, 100.0)
    assert "1.5 times as long" in note and "no time" in note
