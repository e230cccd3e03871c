"""The fused step with each option of the block, against the plain block in torch (block.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from river_core.block import BlockRows, Rope, run_attention, run_block, write_keys_values
from river_core.cache import Rows, SharedCache
from river_core.execution.native import ATTENTION, NativeLayer, NativeStep
from river_core.kernels.native_library import NativeLibrary
from river_core.layer import LayerWeights
from tests.unit.test_native_kernels import (  # noqa: F401 (fixtures)
    CAPACITY,
    _one_thread,
    fused,
    library,
    pytestmark,
    rope,
)

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"qkv_bias": True},
    "norms on heads": {"qk_norm": "head"},
    "norms over all heads": {"qk_norm": "all"},
    "no RoPE": {"rope": None},
    "second RoPE": {"rope": 1},
    "queries by position": {"rope": 2},
    "partial RoPE": {"rope": 3},
    "short window": {"window": 5},
    "long window": {"window": 200},
    "scale": {"scale": 0.3},
    "GELU": {"activation": "gelu_tanh"},
    "norms after": {"norms": "after"},
    "norms around": {"norms": "both"},
    "as Gemma 3": {
        "qk_norm": "head",
        "window": 9,
        "rope": 1,
        "scale": 0.2,
        "activation": "gelu_tanh",
        "norms": "both",
    },
    "as OLMo 2": {"qk_norm": "all", "norms": "after"},
    "biases and norms": {"qkv_bias": True, "qk_norm": "all", "window": 130},
}
WRONG: dict[str, dict[str, Any]] = {  # what stands in for an option, and has to be noticed
    "norms on heads": {"qk_norm": "all"},
    "norms over all heads": {"qk_norm": "head"},
    "no RoPE": {"rope": 0},
    "second RoPE": {"rope": 0},
    "queries by position": {"rope": 0},
    "partial RoPE": {"rope": 0},
    "short window": {"window": 4},
    "long window": {"window": None},
    "scale": {"scale": None},
    "GELU": {"activation": "silu"},
}
MISSING = {  # norms and biases that are left out, each on its own
    "biases": ("qkv_bias",),
    "norms on heads": ("qk_norm",),
    "norms over all heads": ("qk_norm",),
    "norms after": ("attn_post_norm", "ffn_post_norm"),
    "norms around": ("attn_norm", "ffn_norm", "attn_post_norm", "ffn_post_norm"),
}
DIM = 64


def tables(dim: int = DIM) -> tuple[Rope, ...]:
    """Of four kinds: plain, of another base, with a factor for queries, half of it unturned."""
    one, other, scaled, part = (rope(dim) for _ in range(4))
    other = Rope(other.cos.roll(1, 1), other.sin.roll(1, 1))
    scaled = replace(scaled, queries=1 + torch.arange(CAPACITY) / 50)
    for start in (dim // 4, 3 * dim // 4):
        part.cos[:, start : start + dim // 4] = 1
        part.sin[:, start : start + dim // 4] = 0
    return one, other, scaled, part


def filled(layers: list[NativeLayer], dtype: torch.dtype = torch.float32) -> SharedCache:
    """A cache of these layers with random rows everywhere, also where no row may read."""
    shape = layers[0].shape
    heads = (shape.kv_heads, shape.head_dim)
    cache = SharedCache(len(layers), CAPACITY, heads, dtype, torch.device("cpu"))
    for side in cache.tensors():
        side.copy_(torch.randn(side.shape))
    return cache


def copied(cache: SharedCache, layers: list[NativeLayer]) -> SharedCache:
    """Another cache with the same rows, none missing."""
    other = filled(layers, cache.dtype)
    for to, side in zip(other.tensors(), cache.tensors(), strict=True):
        to.copy_(side)
    return other


def at(position: int, dim: int = DIM) -> BlockRows:
    return BlockRows.of(Rows((0,), (position,)), tables(dim))


def native(
    layers: list[NativeLayer], cache: SharedCache, h: Tensor, position: int, lib: NativeLibrary
) -> Tensor:
    """h after these layers in C++."""
    step = NativeStep(tables(layers[0].shape.head_dim), lib)
    slots = cache.readable, cache.readable_count
    bank = step.bank(layers, cache.k.unbind(), cache.v.unbind(), slots)
    found = h.clone()
    step.run(bank, found, position, 0, len(layers))
    return found


def off(found: Tensor, expected: Tensor, h: Tensor) -> float:
    """The largest difference of what a layer added to h, relative to the largest addition."""
    return float((found - expected).abs().max() / (expected - h).abs().max())


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int4-64", "int8-64"])
@pytest.mark.parametrize("name", OPTIONS)
def test_each_option(library: NativeLibrary, kind: str, name: str) -> None:  # noqa: F811
    bound = 5e-4 if kind.startswith("int") else 1e-5
    for repeat, dim in ((4, DIM), (3, 32)):
        layer = fused(kind, repeat, dim, library, **OPTIONS[name])
        for position in (0, 1, 8, 63, 300):
            cache = filled([layer])
            held = copied(cache, [layer])
            h = 3 * torch.randn(layer.shape.hidden)
            found = native([layer], held, h, position, library)
            expected = run_block(h[None], layer.weights, layer.shape, at(position, dim), cache, 1)
            assert off(found, expected[0], h) < bound
            for mine, other in zip(held.tensors(), cache.tensors(), strict=True):
                assert torch.allclose(mine, other, atol=bound * float(other.abs().max()), rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["biases and norms", "as Gemma 3", "as OLMo 2"])
def test_a_cache_of_16_bits(library: NativeLibrary, dtype: torch.dtype, name: str) -> None:  # noqa: F811
    layer = fused("fp32", 4, DIM, library, **OPTIONS[name])
    cache = filled([layer], dtype)
    held, h = copied(cache, [layer]), torch.randn(layer.shape.hidden)
    found = native([layer], held, h, 290, library)
    expected = run_block(h[None], layer.weights, layer.shape, at(290), cache, 1)
    assert off(found, expected[0], h) < 2e-3
    for mine, other in zip(held.tensors(), cache.tensors(), strict=True):
        assert torch.allclose(mine.float(), other.float(), rtol=1e-2, atol=1e-4)


def mutants(layer: NativeLayer, name: str) -> list[NativeLayer]:
    """The layer with one of its options wrong or left out."""
    found = []
    if name in WRONG:
        found.append(NativeLayer(layer.weights, replace(layer.shape, **WRONG[name])))
    for part in MISSING.get(name, ()):
        wrong = replace(layer, weights=layer.weights, shape=layer.shape)
        setattr(wrong.descriptor, part, None)
        found.append(wrong)
    return found


@pytest.mark.parametrize("name", sorted(WRONG.keys() | MISSING.keys()))
def test_a_wrong_option_shows(library: NativeLibrary, name: str) -> None:  # noqa: F811
    """What `test_each_option` allows is a thousandth of what a mistake makes."""
    layer = fused("fp32", 4, DIM, library, **OPTIONS[name])
    cache, h, position = filled([layer]), torch.randn(layer.shape.hidden), 300
    expected = run_block(h[None], layer.weights, layer.shape, at(position), cache, 1)[0]
    assert off(native([layer], cache, h, position, library), expected, h) < 1e-5
    for wrong in mutants(layer, name):
        assert off(native([wrong], cache, h, position, library), expected, h) > 1e-2


def test_every_option_has_a_mutant() -> None:
    single = {name for name in OPTIONS if " and " not in name and not name.startswith("as ")}
    assert single - {"plain"} == WRONG.keys() | MISSING.keys()


@pytest.mark.parametrize("kind", ["fp32", "int4-64"])
@pytest.mark.parametrize("name", OPTIONS)
def test_missing_rows(library: NativeLibrary, kind: str, name: str) -> None:  # noqa: F811
    """Rows that are missing, inside a window and before it, are left out as in torch."""
    layer = fused(kind, 3, DIM, library, **OPTIONS[name])
    for missing in ([298], [7, 100, 295, 299], range(0, 290, 2), range(300), [2]):
        cache, h, position = filled([layer]), torch.randn(layer.shape.hidden), 300
        cache.mark(1, Rows((0,) * 300, tuple(range(300))), "b")
        cache.mark(1, Rows((0,) * len(missing), tuple(missing)), "m")
        expected = run_block(h[None], layer.weights, layer.shape, at(position), cache, 1)[0]
        for side in cache.tensors():
            side[0][:, list(missing)] = torch.nan
        found = native([layer], cache, h, position, library)
        assert off(found, expected, h) < (1e-5 if kind == "fp32" else 5e-4)


@pytest.mark.parametrize("kind", ["bf16", "int8-64"])
def test_layers_that_differ_repeat_whatever_the_threads(library: NativeLibrary, kind: str) -> None:  # noqa: F811
    """Every option in one bank: the same bits in one call or one per layer, on 1 to 5 threads."""
    layers = [fused(kind, 3, DIM, library, **options) for options in OPTIONS.values()]
    cache, h = filled(layers), torch.randn(layers[0].shape.hidden)
    slots = cache.readable, cache.readable_count

    def run(threads: int, together: bool) -> list[Tensor]:
        torch.set_num_threads(threads)
        held = copied(cache, layers)
        step, found = NativeStep(tables(), library), h.clone()
        bank = step.bank(layers, held.k.unbind(), held.v.unbind(), slots)
        count = len(layers)
        spans = [(0, count)] if together else [(n, n + 1) for n in range(count)]
        cosines = [c for a, b in spans for c in step.run(bank, found, 280, a, b)]
        return [found, torch.tensor(cosines), *held.tensors()]

    once = run(1, together=False)
    for threads in (1, 2, 3, 5):
        again = run(threads, together=True)
        assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True)), threads


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_keys_and_values_alone(library: NativeLibrary, threads: int) -> None:  # noqa: F811
    """The rows that block.py writes, in every layer, the same bits as the whole layer's."""
    torch.set_num_threads(threads)
    layers = [fused("fp32", 3, DIM, library, **options) for options in OPTIONS.values()]
    cache, h = filled(layers), torch.randn(layers[0].shape.hidden)
    alone, whole = copied(cache, layers), copied(cache, layers)
    step = NativeStep(tables(), library)
    for held in (alone, whole):
        slots = held.readable, held.readable_count
        bank = step.bank(layers, held.k.unbind(), held.v.unbind(), slots)
        if held is alone:
            step.keys_values(bank, h, 77, 0, len(layers))
        for n in range(len(layers) if held is whole else 0):
            step.run(bank, h.clone(), 77, n, n + 1)
    for n, layer in enumerate(layers, 1):
        write_keys_values(h[None], layer.weights, layer.shape, at(77), cache, n)
    for mine, other, slow in zip(alone.tensors(), whole.tensors(), cache.tensors(), strict=True):
        assert torch.equal(mine, other)
        assert torch.allclose(mine, slow, atol=1e-4)


@pytest.mark.parametrize("name", OPTIONS)
def test_half_a_layer(library: NativeLibrary, name: str) -> None:  # noqa: F811
    layer = fused("fp32", 4, DIM, library, **OPTIONS[name])
    cache, h = filled([layer]), torch.randn(layer.shape.hidden)
    step, found = NativeStep(tables(), library), h.clone()
    step.run(step.bank([layer], cache.k.unbind(), cache.v.unbind()), found, 20, 0, 1, ATTENTION)
    expected = run_attention(h[None], layer.weights, layer.shape, at(20), cache, 1)
    assert off(found, expected[0], h) < 1e-5


def test_gates_far_from_zero(library: NativeLibrary) -> None:  # noqa: F811
    """GELU where its exponential ends."""
    layer = fused("fp32", 4, DIM, library, activation="gelu_tanh")
    for factor in (1e-3, 10, 1e3):
        h = torch.randn(layer.shape.hidden)
        small = layer.weights.small | {"ffn_norm": factor * layer.weights.small["ffn_norm"]}
        other = NativeLayer(LayerWeights.of(layer.weights.linears, small), layer.shape)
        cache = filled([other])
        expected = run_block(h[None], other.weights, other.shape, at(20), cache, 1)[0]
        assert off(native([other], cache, h, 20, library), expected, h) < 1e-5


def test_norms_have_to_be_those_of_the_shape(library: NativeLibrary) -> None:  # noqa: F811
    layer = fused("fp32", 4, DIM, library, qkv_bias=True)
    with pytest.raises(ValueError, match="cannot have"):
        NativeLayer(layer.weights, replace(layer.shape, qkv_bias=False))
    with pytest.raises(ValueError, match="qkv_bias has to be"):
        NativeLayer(replace(layer.weights, qkv_bias=torch.zeros(3)), layer.shape)
