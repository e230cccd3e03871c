"""Activation-aware twins: the same function where steps are fine, norms of their own, one cache."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import river_core
from river_core import loading
from river_core.errors import KernelUnavailable, ModelUnavailable, SettingsError
from river_core.execution.eager import EagerExecution
from river_core.execution.fused import FusedExecution, can_fuse
from river_core.kernels.native_library import load_library
from river_core.layer import NORMS, LayerWeights
from river_core.settings import QuantSpec
from tests.tiny.awq_checkpoints import OwnNormsReference
from tests.tiny.resident import QUIET, ids, shown
from tests.tiny.test_fused import fusable, run
from tests.tiny.tiny_models import FEW
from tests.tiny.words import TEXT, Words

AWQ = QuantSpec(4, 64, "awq")
SCHEDULE = [4, 1, 2, 3, 1, 5, 2]


@pytest.fixture(scope="module")
def rivers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for the tests of this file: a river is made once."""
    return tmp_path_factory.mktemp("rivers")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, rivers: Path) -> Callable[..., Any]:
    """Load a tiny model with that tokenizer and a short text."""
    monkeypatch.setattr("river_core.input_moments.bundled_text", lambda: TEXT)
    monkeypatch.setenv("RIVER_CACHE", str(rivers))

    def get(tiny: Any, folder: Path | None = None, **settings: Any) -> Any:
        words = Words(tiny.config.vocab)
        monkeypatch.setattr(loading._Loader, "_tokenizer", lambda self: words)
        settings = {"river": AWQ, "dtype": "float32"} | settings
        model = river_core.load(folder or tiny.folder, **settings)
        model.tokenizer = None
        return model

    return get


def forced(model: Any, tiny: Any, tokens: list[int]) -> Any:
    given = {"exit": "schedule", "options": {"exit_layers": SCHEDULE}}
    return river_core.teacher_forced(model, tiny.prompt, tokens, policy="river", **given)


@pytest.mark.few
def test_with_fine_steps_the_twins_are_the_backbone(tiny, load):
    """What the scales take, the norms or `up` give. The shared cache as well."""
    model = load(tiny, river=QuantSpec(8, 64, "awq"))
    tokens = [1, 2, 3, 4, 5, 6, 7]
    with torch.no_grad():
        exact = tiny.reference(torch.tensor([tiny.prompt + tokens])).logits[0]
    exact = exact[len(tiny.prompt) - 1 : -1]
    rough = (forced(model, tiny, tokens).logits - exact).norm() / exact.norm()
    assert rough < 0.02
    written = [(model.cache.k[n].clone(), model.cache.v[n].clone()) for n in range(5)]
    river_core.teacher_forced(model, tiny.prompt, tokens, policy="backbone")
    used = len(tiny.prompt) + len(tokens) - 1
    for layer, sides in enumerate(written):
        for side, own in zip(sides, (model.cache.k[layer], model.cache.v[layer]), strict=True):
            a, b = side[:, :used], own[:, :used]
            per_channel = (a * b).sum((0, 1)) / b.square().sum((0, 1))
            assert (per_channel - 1).abs().max() < 0.1  # in the backbone's units
            assert (a - b).norm() < 0.03 * b.norm()
    twin, own = model.twin(3), model.layer(3)
    folded = [name for name in NORMS.values() if name in own.small]
    assert bool(folded) == (model.shape.norms != "after")
    for name, vector in own.small.items():
        assert (twin.small[name] is vector) == (name not in folded)
    ratios = [(own.small[name] / twin.small[name]).std() for name in folded]
    ratios.append((twin.down.dense().norm(dim=0) / own.down.dense().norm(dim=0)).std())
    assert max(ratios) > 0.02  # some scale was worth it


def test_mixed_exits_equal_the_slow_reference(one_tiny, load):
    """In 4 bits: transformers' layers with the twins' weights and their norms."""
    model = load(one_tiny)
    model.ensure_full_river()
    slow = OwnNormsReference(one_tiny.reference, [_named(model.twin(n)) for n in range(1, 6)])
    expected, logits = slow.greedy(one_tiny.prompt, SCHEDULE)
    assert (forced(model, one_tiny, expected).logits - logits).abs().max() < 2e-4


def _named(twin: Any) -> dict[str, torch.Tensor]:
    """A plain twin's weights by transformers' names."""
    q, k, v = twin.qkv.dense().split([64, 32, 32])
    gate, up = twin.gate_up.dense().chunk(2)
    found = {"q_proj": q, "k_proj": k, "v_proj": v, "gate_proj": gate, "up_proj": up}
    found |= {"o_proj": twin.out.dense(), "down_proj": twin.down.dense()}
    return found | {"input_layernorm": twin.attn_norm, "post_attention_layernorm": twin.ffn_norm}


def test_a_second_load_is_bit_identical(one_tiny, load, monkeypatch, tmp_path):
    monkeypatch.setenv("RIVER_CACHE", str(tmp_path))
    first = load(one_tiny)
    monkeypatch.setattr(loading._Loader, "_text", None)  # not asked for again
    again = load(one_tiny)
    for a, b in zip(first.river[1:], again.river[1:], strict=True):
        assert all(torch.equal(a.linears[n].dense(), b.linears[n].dense()) for n in a.linears)
        assert all(torch.equal(t, b.small[n]) for n, t in a.small.items())


@pytest.mark.few
def test_evicted_layers_come_back_with_their_own_norms(tiny, load):
    model, whole = load(tiny), load(tiny)
    before = [shown(river_core.generate(whole, tiny.prompt, policy="backbone", **QUIET))]
    before.append(ids(river_core.generate(whole, tiny.prompt, threshold=0.5, **QUIET)))
    model.set_resident(1)
    assert model.memory()["backbone"] < whole.memory()["backbone"]
    river_core.generate(model, tiny.prompt, policy="river", **QUIET)
    model.set_resident(tiny.config.layers)
    after = [shown(river_core.generate(model, tiny.prompt, policy="backbone", **QUIET))]
    after.append(ids(river_core.generate(model, tiny.prompt, threshold=0.5, **QUIET)))
    assert before == after
    for n in range(1, tiny.config.layers + 1):
        own, kept = model.layer(n), whole.layer(n)
        assert all(torch.equal(t, own.small[name]) for name, t in kept.small.items())


def test_norms_that_changed_meanwhile_are_refused(one_tiny, load, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(one_tiny.folder, folder)
    model = load(one_tiny, folder)
    model.set_resident(2)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.3.input_layernorm.weight"] += 1
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelUnavailable, match=r"layer 4 .* is not what was loaded"):
        model.set_resident(5)
    assert model.resident == 2


@pytest.mark.few
def test_the_ledger_counts_norms_of_the_twins_own(tiny, load):
    """Once for each bank where both have the layer; evicting takes the backbone's away."""
    shape, layers = tiny.load().shape, tiny.config.layers
    model = load(tiny)
    own = 4 * sum(shape.hidden for name in NORMS.values() if name in shape.vectors)
    shared = tiny.load(bits=4).memory()["norms"]
    assert model.memory()["norms"] == shared + (layers - 1) * own
    model.set_resident(2)
    assert model.memory()["norms"] == shared + own
    model.set_resident(layers)
    assert model.memory()["norms"] == shared + (layers - 1) * own


def test_full_quantization_builds_the_layers_below(one_tiny, load):
    model = load(one_tiny)
    run = river_core.generate(model, one_tiny.prompt, policy="full-quant", max_new_tokens=3)
    assert {t.exit_layer for t in run.tokens} == {0}
    assert not torch.equal(model.twin(1).attn_norm, model.layer(1).attn_norm)


def test_a_model_without_a_tokenizer_is_refused(one_tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("RIVER_CACHE", str(tmp_path))
    with pytest.raises(SettingsError, match=r"'awq' runs a text through .* use method 'hqq'"):
        river_core.load(one_tiny.folder, river=AWQ)


def test_the_few_have_every_kind_of_norm() -> None:
    assert {"gemma3", "olmo2", "qwen2-windows"} <= set(FEW)


def test_fused_steps_take_each_banks_own_norms(one_tiny):
    """The C++ steps equal eager torch where the twins' norms are not the backbone's."""
    try:
        load_library()
    except KernelUnavailable as reason:
        pytest.skip(str(reason))
    model = fusable(one_tiny.load(bits=4), torch.float32)
    model.river[1:] = [_other_norms(weights) for weights in model.river[1:]]
    assert can_fuse(model)
    with torch.inference_mode():
        rows, exits = [(7 * n + 3) % model.vocab for n in range(7)], [1, 3, 2]
        fused = run(FusedExecution(model), model, rows, exits)
        eager = run(EagerExecution(model), model, rows, exits)
    for (_, x), (_, y) in zip(fused, eager, strict=True):
        assert (x - y).norm() / y.norm() < 1e-4


def _other_norms(weights: Any) -> Any:
    changed = {name: weights.small[name].roll(1) * 1.5 for name in NORMS.values()}
    return LayerWeights.of(weights.linears, weights.small | changed)
