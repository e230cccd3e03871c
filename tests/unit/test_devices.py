"""Devices by name, and what a device without kernels of its own runs."""

from __future__ import annotations

import pytest
import torch

from river_core.devices import find_device, processor, settle
from river_core.errors import KernelUnavailable, SettingsError
from river_core.kernels.choose import DEQUANTISED, Chooser
from river_core.settings import DEVICES, LoadSettings

ELSEWHERE = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}


def test_auto_is_a_device_that_is_here() -> None:
    found = find_device("auto")
    assert found.type == ("cuda" if ELSEWHERE["cuda"] else "cpu")
    settle(found)
    assert processor(found)
    assert find_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_here_is_one_sentence(name: str) -> None:
    if ELSEWHERE[name[:4].rstrip(":")]:
        pytest.skip(f"{name} is here")
    with pytest.raises(KernelUnavailable, match="use device='cpu'"):
        find_device(name)


@pytest.mark.parametrize("name", ["cpu:x", "cpuu", "tpu", ""])
def test_unknown_names(name: str) -> None:
    with pytest.raises(SettingsError):
        find_device(LoadSettings(device=name).device)


def test_every_kind_is_a_setting() -> None:
    for name in DEVICES:
        assert LoadSettings(device=name).device == name


def test_an_apple_gpu_runs_plain_torch() -> None:
    """fp16 unless asked otherwise; no int4 kernel: the river's weights are dequantised, and said.

    Nothing is computed here; on such a machine the loop is the same.
    """
    chooser = Chooser(torch.device("mps"))
    assert chooser._dtypes("auto") == ["fp16"]
    assert chooser._dtypes("bfloat16") == ["bf16"]
    assert chooser._int4((64, 64)) == {DEQUANTISED: 0.0}
    assert any("dequantised" in note for note in chooser._notes)
