"""Every back end, method x bits x group: its file and every kernel for its codes."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from river_core.errors import KernelUnavailable, SettingsError
from river_core.kernels.base import QuantMatrix
from river_core.kernels.choose import CODED, CODED_ON
from river_core.kernels.torch_int8 import TorchInt8
from river_core.quantize import RiverFile, quantize
from river_core.settings import GROUP_SIZES, METHODS, QuantSpec

N, K = 48, 384
SPECS = [QuantSpec(b, g, m) for m in METHODS for b in (2, 3, 4, 8) for g in GROUP_SIZES]
WEIGHT = torch.randn(N, K, generator=torch.Generator().manual_seed(4)) * 0.05
KERNEL_ERROR = {"native": 1e-3, "torch": 1e-3}  # of the quantizer's own product
# aten's zeros are bf16, (8 - zero) * scale: several times as large as the weights of a 2-bit code
ATEN_ERROR = {2: 4e-2, 3: 2e-2, 4: 1e-2}
ROUGH = {2: 0.9, 3: 0.4, 4: 0.2, 8: 0.012}  # error of the weights; a quarter step of 8 bits


def made(spec: QuantSpec, weight: Tensor = WEIGHT) -> QuantMatrix:
    inputs = torch.randn(500, weight.shape[1], generator=torch.Generator().manual_seed(5))
    return quantize(weight, spec, "down", inputs.T @ inputs / 500)


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.label)
def test_back_end(spec: QuantSpec, tmp_path) -> None:
    """Codes within their bits, a bit-identical reload, and kernels equal to the plain product."""
    assert QuantSpec.parse(spec.label) == spec
    matrix = made(spec)
    assert matrix.code_bits == spec.code_bits == (8 if spec.bits == 8 else 4)
    assert matrix.codes.dtype == torch.uint8 and int(matrix.codes.max()) <= spec.top
    assert (matrix.dense() - WEIGHT).norm() / WEIGHT.norm() < ROUGH[spec.bits]
    file = RiverFile.of(tmp_path, "abc", spec)
    file.save({"down": matrix})
    again = RiverFile.of(tmp_path, "abc", spec).load()["down"]
    assert (again.group_size, again.code_bits) == (spec.group_size, spec.code_bits)
    for field in ("codes", "scale", "zero"):
        assert torch.equal(getattr(again, field), getattr(matrix, field))
    x = torch.randn(20, K, generator=torch.Generator().manual_seed(2))
    expected = x @ matrix.dense().T
    for name in CODED_ON["cpu", spec.code_bits]:
        if "native" in name and shutil.which("g++") is None:
            continue
        kernel = CODED[name](again)
        bound = KERNEL_ERROR.get(name.split("-")[0]) or ATEN_ERROR[spec.bits]
        for rows in (1, 3, 16, 20):
            off = (kernel(x[:rows]) - expected[:rows]).norm() / expected[:rows].norm()
            assert off < bound, (name, rows)
        assert kernel.bits == spec.code_bits + 32 / spec.group_size


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_group_that_does_not_divide_is_refused_by_name(method: str, bits: int) -> None:
    for columns in (64, 192, 576):
        with pytest.raises(SettingsError, match=f"128 does not divide the {columns} columns of do"):
            made(QuantSpec(bits, 128, method), torch.randn(8, columns))


def test_one_file_may_hold_both_widths(tmp_path) -> None:
    """Stacked and moved matrices keep theirs; codes of 8 bits take twice the bytes."""
    four, eight = made(QuantSpec(4)), made(QuantSpec(8))
    assert QuantMatrix.cat([eight, eight]).code_bits == eight.to(torch.device("cpu")).code_bits == 8
    file = RiverFile.of(tmp_path, "abc", QuantSpec())
    file.save({"qkv": four, "down": eight})
    found = file.load()
    assert torch.equal(found["qkv"].codes, four.codes) and found["qkv"].code_bits == 4
    assert torch.equal(found["down"].codes, eight.codes) and found["down"].code_bits == 8
    with safe_open(file.path, framework="pt") as stored:
        assert stored.get_tensor("qkv.codes").nbytes * 2 == stored.get_tensor("down.codes").nbytes


def test_a_file_that_does_not_say_its_code_bits_has_four(tmp_path) -> None:
    """As all had before there were others."""
    matrix, file = made(QuantSpec()), RiverFile.of(tmp_path, "abc", QuantSpec())
    codes = matrix.codes[:, ::2] | matrix.codes[:, 1::2] << 4
    tensors = {"a.codes": codes, "a.scale": matrix.scale, "a.zero": matrix.zero}
    meta = {"format": "river-2", "weights": "abc", "spec": "hqq-4bit-g64", "seconds": "1.0"}
    save_file(tensors, file.path, metadata=meta | {"groups": json.dumps({"a": 64})})
    found = file.load()["a"]
    assert torch.equal(found.codes, matrix.codes) and torch.equal(found.dense(), matrix.dense())
    assert found.code_bits == 4


def test_plain_int8_refuses_what_it_cannot_hold() -> None:
    matrix = made(QuantSpec(8))
    with pytest.raises(KernelUnavailable, match="codes of 4 bits"):
        TorchInt8(made(QuantSpec(4)))
    matrix.zero[3, 2] = 1e5
    with pytest.raises(KernelUnavailable, match="65504"):
        TorchInt8(matrix)
