"""Mixed precision on tiny models: what is measured, what is raised, what a second load does."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import river_core
from river_core import loading, mixed_river
from river_core.compare import kl_divergence
from river_core.errors import ModelUnavailable, SettingsError
from river_core.input_moments import sequences
from river_core.mixed_bits import SensitivityFile, choose
from river_core.quantize import quantize
from river_core.random_model import random_model
from river_core.sensitivity import SEQUENCES, measure
from river_core.settings import QuantSpec
from tests.tiny.slow_layers import split
from tests.tiny.slow_reference import MixedLinear, MixedReference
from tests.tiny.test_input_moments import PARTS, Words

MIXED = QuantSpec(4, 64, "rtn", {"budget": 6.0})
SCHEDULE = [4, 1, 2, 3, 1, 5, 2]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache."""
    monkeypatch.setenv("RIVER_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Load a tiny model with a tokenizer of a kind and a short text."""
    text = [("the river runs past", "the old mill " * 5), ("one two", "three " * 9)]
    monkeypatch.setattr("river_core.input_moments.bundled_text", lambda: text)

    def get(tiny: Any, budget: float | None = 6.0, **settings: Any) -> Any:
        words = Words(tiny.config.vocab)
        monkeypatch.setattr(loading._Loader, "_tokenizer", lambda self: words)
        options = {} if budget is None else {"budget": budget}
        river = QuantSpec(4, 64, settings.pop("method", "rtn"), options)
        return river_core.load(tiny.folder, **{"river": river, "dtype": "float32"} | settings)

    return get


def raised(model: Any, plain: Any) -> set[tuple[int, str]]:
    """The matrices whose weights are not those of the river in 4 bits."""
    pairs = [(n, model.twin(n), plain.twin(n)) for n in range(2, model.num_layers + 1)]
    return {
        (n, name)
        for n, twin, four in pairs
        for name, linear in twin.linears.items()
        if not torch.equal(linear.dense(), four.linears[name].dense())
    }


OF_FUSED = {part: name for name, parts in PARTS.items() for part in parts}
OF_FUSED |= {"k_proj": "qkv", "v_proj": "qkv", "up_proj": "gate_up"}


def dequantised(config: Any, name: str, weight: Any, bits: int) -> torch.Tensor:
    """The twin of a linear of transformers' own, part by part."""
    parts = split(config, name, weight)
    return torch.cat([quantize(part, QuantSpec(bits, 64, "rtn")).dense() for part in parts])


class ByMatrix(MixedReference):
    """The slow reference with matrices of either width: `finer` has those in 8 bits."""

    def __init__(self, model: Any, finer: set[tuple[int, str]]) -> None:
        self.exits: list[int] = []
        self.model = deepcopy(model)
        for n, layer in enumerate(self.model.model.layers, start=1):
            for owner in (layer.self_attn, layer.mlp):
                for name, own in list(owner.named_children()):
                    if name in OF_FUSED:
                        bits = 8 if (n, OF_FUSED[name]) in finer else 4
                        twin = dequantised(self.model.config, name, own.weight, bits)
                        setattr(owner, name, MixedLinear(own, twin, n, self.exits))


@pytest.mark.few
def test_mixed_exits_equal_the_slow_reference(tiny, load):
    """Some matrices in 8 bits, the others in 4, as transformers' layers have them."""
    model = load(tiny)
    finer = raised(model, load(tiny, None))
    assert 0 < len(finer) < 4 * (tiny.config.layers - 1)
    model.tokenizer = None
    settings = {"exit": "schedule", "options": {"exit_layers": SCHEDULE}, "policy": "river"}
    expected, logits = ByMatrix(tiny.reference, finer).greedy(tiny.prompt, SCHEDULE)
    forced = river_core.teacher_forced(model, tiny.prompt, expected, **settings)
    assert (forced.logits - logits).abs().max() < 2e-4


@pytest.mark.few
def test_what_is_measured_is_what_a_slow_computation_finds(tiny, load):
    """transformers' model with one dequantised matrix, against itself without."""
    plain = load(tiny, None)
    text = sequences(plain.tokenizer)[:SEQUENCES]
    found = measure(plain, text, lambda *_: None)
    assert list(found) == [(n, name) for n in range(2, tiny.config.layers + 1) for name in PARTS]

    def logits() -> torch.Tensor:
        with torch.no_grad():
            return torch.cat([tiny.reference(torch.tensor([ids])).logits[0] for ids in text])

    own = logits()
    for (n, fused), value in found.items():
        layer, kept = tiny.reference.model.layers[n - 1], {}
        for owner in (layer.self_attn, layer.mlp):
            for name, module in owner.named_children():
                if OF_FUSED.get(name) == fused:
                    kept[module] = module.weight.data
                    module.weight.data = dequantised(tiny.reference.config, name, kept[module], 4)
        slow = float(kl_divergence(own, logits()).double().mean())
        for module, weight in kept.items():
            module.weight.data = weight
        assert value == pytest.approx(slow, rel=0.02, abs=2e-6)
    assert max(found.values()) > 1e-3


@pytest.mark.parametrize("method", ["hqq", "gptq", "rtn"])
def test_a_second_load_is_bit_identical(one_tiny, load, fresh, monkeypatch, method):
    """And does not measure, nor quantise; also where layers are evicted."""
    said: list[str] = []
    first = load(one_tiny, method=method, progress=lambda text, share: said.append(text))
    assert f"measuring layer 3 of {one_tiny.config.layers}: gate_up" in said
    monkeypatch.setattr(mixed_river, "measure", None)
    monkeypatch.setattr("river_core.banks.quantize_fused", None)
    again = load(one_tiny, method=method)
    away = load(one_tiny, method=method, resident_layers=2)
    for other in (again, away):
        assert other.info.river_seconds == pytest.approx(first.info.river_seconds)
        assert other.info.river_bits == first.info.river_bits
        for a, b in zip(first.river[1:], other.river[1:], strict=True):
            assert all(torch.equal(a.linears[n].dense(), b.linears[n].dense()) for n in a.linears)
    away.set_resident(one_tiny.config.layers)
    assert not raised(away, again)


def test_every_budget_and_entry_layer_chooses_by_the_same_numbers(one_tiny, load, monkeypatch):
    plain = load(one_tiny, None)
    assert plain.info.river_bits is None
    first = load(one_tiny, 5.0)
    assert first.info.river_seconds > plain.info.river_seconds
    monkeypatch.setattr(mixed_river, "measure", None)
    folder, weights = plain.info.calibration.path.parent, first.info.calibration._key["weights"]
    file = SensitivityFile(folder, weights, QuantSpec(4, 64, "rtn"), mixed_river.MEASURED_ON)
    kl = file.load().kl
    sizes = {
        m: first.twin(m[0]).linears[m[1]].shape[0] * first.twin(m[0]).linears[m[1]].shape[1]
        for m in kl
    }
    for budget in (4.5, 5.0, 7.0, 8.5):
        model = load(one_tiny, budget)
        assert raised(model, plain) == choose(kl, sizes, budget, (4.5, 8.5))
        assert model.info.river_bits <= budget
    later = load(one_tiny, 6.0, entry_layer=3)
    four = load(one_tiny, None, entry_layer=3)
    left = {m: n for m, n in sizes.items() if m[0] > 2}
    found = {m for m in raised(later, four) if m[0] > 2}
    assert found == choose({m: kl[m] for m in left}, left, 6.0, (4.5, 8.5))


def test_the_ledger_stays_within_the_budget(one_tiny, load, monkeypatch):
    """In 16 bits: kernels for codes of both widths, planned, and counted exactly."""
    bounds = {}
    for budget in (4.5, 5.5, 8.5):
        model = load(one_tiny, budget, dtype="float16", capacity=64)
        linears = [x for w in model.river[1:] for x in w.linears.values()]
        assert {x.bits for x in linears} <= {4.5, 8.5}
        weights = sum(x.shape[0] * x.shape[1] for x in linears)
        stored = model.memory()["river"] * 8 / weights
        assert stored == pytest.approx(model.info.river_bits)
        assert stored <= budget
        bounds[budget] = stored
        assert {key.split()[-1] for key in model.info.kernels} == {"dense", "int4", "int8"}
    assert bounds[4.5] == 4.5 and bounds[8.5] == 8.5 and bounds[5.5] > 5.0


def test_full_quantization_builds_the_layers_below_in_4_bits(one_tiny, load):
    model = load(one_tiny, 8.5)
    model.ensure_full_river()
    plain = load(one_tiny, None)
    assert torch.equal(model.twin(1).down.dense(), plain.twin(1).down.dense())
    assert len(raised(model, plain)) == 4 * (one_tiny.config.layers - 1)


# --- refusals


def test_what_cannot_be_measured_is_refused(one_tiny, load, fresh):
    with pytest.raises(SettingsError, match=r"resident_layers keeps 2; load once without it"):
        load(one_tiny, resident_layers=2)
    model = load(one_tiny)
    with pytest.raises(SettingsError, match="needs the model on one device"):
        measure(replace(model, placement=(model.device,) * 5), [[1, 2]], lambda *_: None)
    with pytest.raises(SettingsError, match=r"budget .* leave it out"):
        random_model("tiny", river=MIXED)


def test_a_model_without_a_tokenizer_is_refused(one_tiny, fresh):
    with pytest.raises(SettingsError, match="no tokenizer; leave the budget out"):
        river_core.load(one_tiny.folder, river=MIXED)


def test_a_damaged_measurement_is_one_sentence(one_tiny, load, fresh):
    load(one_tiny)
    (path,) = (fresh / "rivers").glob("*.sensitivity.json")
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ModelUnavailable, match=r"damaged .* measured again\.$"):
        load(one_tiny)
    path.unlink()
    assert load(one_tiny).info.river_bits is not None
