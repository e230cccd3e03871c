"""Property 6: the fused C++ steps equal eager torch over the same kernels, exit by exit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import river_core
from river_core.cache import Rows, SharedCache
from river_core.errors import KernelUnavailable
from river_core.execution import open_execution
from river_core.execution.eager import EagerExecution
from river_core.execution.fused import FusedExecution, can_fuse
from river_core.execution.native import NativeLayer
from river_core.kernels.micro import random_matrix
from river_core.kernels.native import NativeDense, NativeInt4, NativeInt8
from river_core.kernels.native_library import load_library
from river_core.layer import LayerWeights
from river_core.model import RiverModel
from tests.tiny.tiny_models import TinyConfig

DECODED = [  # every fill, halves of layers, and several rows that follow single ones
    *("river", "kv-mask", "state-propagation", "batch-recompute", "self-speculative"),
    "ffn-skip",
]


@pytest.fixture(autouse=True)
def native_or_skip():
    try:
        load_library()
    except KernelUnavailable as reason:
        pytest.skip(str(reason))


def fusable(model: RiverModel, dtype: torch.dtype) -> RiverModel:
    """The model with native kernels in every place: dense backbone and head, a coded river.

    Of both widths: 8 bits in the feed-forward, 4 elsewhere.
    """

    def layer(weights: LayerWeights, coded: bool) -> LayerWeights:
        made = {}
        for name, linear in weights.linears.items():
            dense = NativeDense(linear.dense().to(dtype))
            kind, bits = (NativeInt8, 8) if name in ("gate_up", "down") else (NativeInt4, 4)
            made[name] = kind(random_matrix(linear.shape, 64, 1, bits)) if coded else dense
        return replace(weights, **made)

    shape = model.shape
    heads = (shape.kv_heads, shape.head_dim)
    return replace(
        model,
        backbone=[layer(w, False) for w in model.backbone],
        river=[None if w is None else layer(w, True) for w in model.river],
        head=NativeDense(model.head.dense().to(dtype)),
        cache=SharedCache(model.num_layers, 64, heads, dtype, model.device),
    )


def run(engine, model, ids, exits):
    """Feed `ids` with the given exit layers after a prompt pass over the first four rows."""
    found = []
    for start, stop, exit_layer in [(0, 4, 2), *((n, n + 1, e) for n, e in enumerate(exits, 4))]:
        engine.start(Rows(tuple(ids[start:stop]), tuple(range(start, stop))))
        engine.backbone(1, 1)
        if exit_layer > 1:
            engine.backbone(2, exit_layer)
        if exit_layer < model.num_layers:
            engine.river(exit_layer + 1, model.num_layers)
        found.append((engine.trace(exit_layer), engine.logits().clone()))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_fused_equals_eager(tiny, dtype):
    model = fusable(tiny.load(bits=4), dtype)
    assert can_fuse(model)
    assert isinstance(open_execution(model), FusedExecution)
    with torch.inference_mode():
        ids = [(7 * n + 3) % model.vocab for n in range(12)]
        exits = [1, 2, model.num_layers, 3, 1, 4, 2, model.num_layers]
        fused = run(FusedExecution(model), model, ids, exits)
        held = model.cache.k.clone(), model.cache.v.clone()
        eager = run(EagerExecution(model), model, ids, exits)
    loose = 1e-4 if dtype == torch.float32 else 2e-2  # K and V are rounded to the cache's type
    for (a, x), (b, y) in zip(fused, eager, strict=True):
        assert (x - y).norm() / y.norm() < loose
        for row_a, row_b in zip(a, b, strict=True):
            assert list(row_a) == pytest.approx(list(row_b), abs=loose)
    for mine, cached in zip(held, (model.cache.k, model.cache.v), strict=True):
        assert (mine.float() - cached.float()).norm() / cached.float().norm() < loose


@pytest.mark.parametrize("policy", DECODED)
@pytest.mark.few
def test_fused_decodes_as_eager(tiny, policy):
    """The same tokens, exits and KV sources by every policy, well past the windows."""
    fast = fusable(tiny.load(bits=4), torch.float32)
    slow = replace(fast, info=replace(fast.info, execution="eager"))
    assert isinstance(open_execution(fast), FusedExecution)
    assert not isinstance(open_execution(slow), FusedExecution)
    asked = {"policy": policy, "threshold": 0.6, "max_new_tokens": 20}
    runs = [river_core.generate(model, tiny.prompt, **asked) for model in (fast, slow)]
    found = [[(t.token_id, t.exit_layer, t.kv_source) for t in run.tokens] for run in runs]
    assert found[0] == found[1]


@pytest.mark.parametrize("exits", [[1, 5, 2, 3, 1, 4], [2, 2, 1]])
def test_fused_schedules_decode_as_eager(tiny, exits):
    fast = fusable(tiny.load(bits=4), torch.float32)
    slow = replace(fast, info=replace(fast.info, execution="eager"))
    asked = {"exit": "schedule", "options": {"exit_layers": exits * 8}, "max_new_tokens": 24}
    runs = [river_core.generate(model, tiny.prompt, **asked) for model in (fast, slow)]
    found = [[(t.token_id, t.exit_layer) for t in run.tokens] for run in runs]
    assert found[0] == found[1]


def test_odd_sizes_run_operation_by_operation(tiny_by_name):
    odd = tiny_by_name(TinyConfig("odd-heads", heads=16, kv_heads=16, head_dim=12))
    model = fusable(odd.load(bits=4), torch.float32)
    assert not can_fuse(model) and not isinstance(open_execution(model), FusedExecution)
    assert [n for n in model.info.notes if "no fused step for sizes that" in n]
    with pytest.raises(KernelUnavailable, match="multiples of 8, not 64, 128 and 12"):
        NativeLayer(model.layer(1), model.shape)


def test_families_have_no_note_of_a_slower_step(tiny):
    assert not [n for n in tiny.load(bits=4).info.notes if "no fused step" in n]


def test_a_model_with_other_kernels_runs_eagerly(one_tiny):
    model = fusable(one_tiny.load(bits=4), torch.float16)
    assert isinstance(open_execution(model), FusedExecution)
    other = replace(model, head=one_tiny.load(bits=4).head)
    if not isinstance(other.head, NativeDense):
        assert not isinstance(open_execution(other), FusedExecution)
