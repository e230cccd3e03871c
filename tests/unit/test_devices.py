"""Devices by name, and what a device without kernels of its own runs."""

from __future__ import annotations

import pytest
import torch

from river_core.devices import find_device, processor, settle
from river_core.errors import KernelUnavailable, SettingsError
from river_core.kernels import choose
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
    plan = chooser.plan({}, {(4, 64, 64): 1, (8, 64, 64): 1}, "auto")
    assert set(plan.coded.values()) == {DEQUANTISED}
    assert [note for note in plan.notes if "dequantised" in note] == [
        "no int4 kernel runs 64 x 64: dequantised there.",
        "no int8 kernel runs 64 x 64: dequantised there.",
    ]


def test_a_wide_model_is_kept_from_fp16() -> None:
    """Its values would overflow there; who asks for fp16 by name gets it, with a note."""
    for device, other in (("cpu", ["bf16", "fp32"]), ("mps", ["fp32"])):
        chooser = Chooser(torch.device(device), wide=True)
        assert chooser._dtypes("auto") == other
        assert chooser._dtypes("float16") == ["fp16"]
        assert any("leave its range" in note for note in chooser._notes)


def test_fp32_has_to_be_much_faster_to_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes twice the memory, and a busy machine makes single times doubtful."""
    shape = (64, 64)
    for fp32, chosen in ((0.85, torch.bfloat16), (0.75, torch.float32)):
        chooser = Chooser(torch.device("cpu"))
        costs = {"torch-fp16": 1.1, "torch-bf16": 1.0, "torch-fp32": fp32}
        monkeypatch.setattr(
            choose,
            "time_in_turns",
            lambda rows, _, costs=costs: [
                {name: costs[name] for name in row.names if name in costs} for row in rows
            ],
        )
        assert chooser.plan({shape: 1}, {}, "auto").dtype == chosen
