"""HQQ to codes and back; the river's file: bit-identical, keyed, refused for other weights."""

from __future__ import annotations

import pytest
import torch

from river_core.errors import ModelUnavailable, SettingsError
from river_core.quantize import RiverFile, quantize, quantize_fused
from river_core.settings import QuantSpec


@pytest.fixture
def weight():
    return torch.randn(48, 192, generator=torch.Generator().manual_seed(4)) * 0.05


def test_hqq_is_close_and_beats_a_coarser_group(weight):
    def error(group):
        return (quantize(weight, QuantSpec(group_size=group)).dense() - weight).norm()

    assert error(64) / weight.norm() < 0.12
    assert error(32) < error(64)


def test_groups_do_not_straddle_rows(weight):
    """A row scaled by 100 changes no other row's codes, scale or zero."""
    scaled = weight.clone()
    scaled[3] *= 100
    a, b = quantize(weight, QuantSpec()), quantize(scaled, QuantSpec())
    keep = [n for n in range(48) if n != 3]
    assert (a.dense()[keep] - b.dense()[keep]).abs().max() < 0.02
    assert b.scale[3].min() > 50 * a.scale[keep].max() / 10


def test_a_group_that_does_not_divide_is_refused_by_name(weight):
    with pytest.raises(SettingsError, match=r"128 does not divide the 192 columns of down"):
        quantize(weight, QuantSpec(group_size=128), "down")


def test_fused_is_each_matrix_by_itself(weight):
    parts = {"q": weight[:32], "k": weight[32:]}
    fused = quantize_fused(parts, QuantSpec())
    alone = quantize(weight[32:], QuantSpec())
    assert torch.equal(fused.codes[32:], alone.codes)
    assert torch.equal(fused.scale[32:], alone.scale)


def test_a_reload_is_bit_identical(weight, tmp_path):
    file = RiverFile(tmp_path / "r" / "river.safetensors", "abc", QuantSpec())
    matrices = {"2.qkv": quantize(weight, QuantSpec()), "2.down": quantize(weight * 2, QuantSpec())}
    assert not file.exists()
    file.save(matrices)
    loaded = RiverFile(file.path, "abc", QuantSpec()).load()
    assert loaded.keys() == matrices.keys()
    for name, matrix in matrices.items():
        for field in ("codes", "scale", "zero"):
            assert torch.equal(getattr(loaded[name], field), getattr(matrix, field))
    assert [p.name for p in file.path.parent.iterdir()] == ["river.safetensors"]


def test_a_file_of_other_weights_or_settings_is_refused(weight, tmp_path):
    path = tmp_path / "river.safetensors"
    RiverFile(path, "abc", QuantSpec()).save({"2.qkv": quantize(weight, QuantSpec())})
    with pytest.raises(ModelUnavailable, match="other weights"):
        RiverFile(path, "abd", QuantSpec()).load()
    with pytest.raises(ModelUnavailable, match="other weights or settings"):
        RiverFile(path, "abc", QuantSpec(group_size=32)).load()


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_damaged_file_is_one_sentence(weight, tmp_path, keep):
    path = tmp_path / "river.safetensors"
    RiverFile(path, "abc", QuantSpec()).save({"2.qkv": quantize(weight, QuantSpec())})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelUnavailable, match="damaged"):
        RiverFile(path, "abc", QuantSpec()).load()


def test_an_interrupted_write_leaves_no_file(weight, tmp_path, monkeypatch):
    def broken(tensors, name, metadata):
        name.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.torch.save_file", broken)
    file = RiverFile(tmp_path / "river.safetensors", "abc", QuantSpec())
    with pytest.raises(OSError, match="disk full"):
        file.save({"2.qkv": quantize(weight, QuantSpec())})
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_an_earlier_format_is_left_alone(weight, tmp_path, monkeypatch):
    """A newer version makes its own beside it, and says nothing."""
    monkeypatch.setattr("river_core.quantize.FORMAT", "river-0")
    RiverFile.of(tmp_path, "abc", QuantSpec()).save({"qkv": quantize(weight, QuantSpec())})
    monkeypatch.undo()
    assert not RiverFile.of(tmp_path, "abc", QuantSpec()).exists()
    assert len(list(tmp_path.iterdir())) == 1


def test_the_time_it_took_is_kept(weight, tmp_path):
    file = RiverFile.of(tmp_path, "abc", QuantSpec())
    file.save({"qkv": quantize(weight, QuantSpec())}, 1.5)
    again = RiverFile.of(tmp_path, "abc", QuantSpec())
    again.load()
    assert file.seconds == again.seconds == 1.5
