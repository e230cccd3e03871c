"""On a CUDA GPU: int4 kernel against its reference, fp32 equal to the CPU, identical river."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from river_core import gpu_items
from river_core.cache import SharedCache
from river_core.decode import generate
from river_core.gpu_bench import Bench
from river_core.kernels.base import Linear, QuantMatrix
from river_core.kernels.micro import random_matrix
from river_core.kernels.torch_dense import TorchDense
from river_core.kernels.torch_int4 import TinygemmInt4
from river_core.layer import LayerWeights
from river_core.model import RiverModel
from river_core.random_model import random_model
from river_core.settings import QuantSpec
from river_core.shapes import SHAPES, ShapeSpec

CUDA = torch.device("cuda")
PROMPT = [5, 3, 250, 17, 99]
IDENTICAL = QuantSpec(bits=16)
needs_ampere = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0),
    reason="tinygemm and bf16 need compute capability 8.0",
)


@needs_ampere
@pytest.mark.parametrize("shape", [(3072, 2048), (2048, 8192), (960, 576), (576, 1536)], ids=str)
@pytest.mark.parametrize("rows", [1, 7])
def test_tinygemm_equals_its_reference(shape: tuple[int, int], rows: int) -> None:
    made = random_matrix(shape, 64, seed=1)
    parts = [t.to(CUDA) for t in (made.codes, made.scale, made.zero)]
    matrix = QuantMatrix(parts[0], parts[1], parts[2], 64)
    kernel = TinygemmInt4(matrix)
    x = torch.randn(rows, shape[1], device=CUDA).bfloat16().float()
    expected = x @ matrix.dense().t()
    assert (kernel(x) - expected).norm() / expected.norm() < 0.01
    layout = (kernel.dense() - matrix.dense()).abs().max() / matrix.dense().abs().max()
    assert layout < 0.01


def moved(model: RiverModel) -> RiverModel:
    """A copy of an fp32 model on the GPU, its river identical to its backbone."""

    def linear(source: Linear) -> TorchDense:
        return TorchDense(source.dense().to(CUDA))

    layers = [
        LayerWeights.of(
            {name: linear(source) for name, source in w.linears.items()},
            {name: tensor.to(CUDA) for name, tensor in w.small.items()},
        )
        for w in model.backbone
    ]
    shape = model.shape
    heads = (shape.kv_heads, shape.head_dim)
    return replace(
        model,
        embedding=model.embedding.to(CUDA),
        backbone=layers,
        river=[None, *layers[1:]],
        final_norm=model.final_norm.to(CUDA),
        head=linear(model.head),
        ropes=tuple(rope.to(CUDA) for rope in model.ropes),
        cache=SharedCache(len(layers), model.capacity, heads, torch.float32, CUDA),
        build_twin=lambda layer, own: own,
    )


def tokens(model: RiverModel, count: int, **settings: object) -> list[int]:
    run = generate(model, PROMPT, max_new_tokens=count, full_trace=False, **settings)
    return [t.token_id for t in run.tokens]


def test_backbone_equals_the_cpu_in_fp32() -> None:
    on_cpu = random_model("tiny", dtype="float32", river=IDENTICAL, capacity=64)
    assert tokens(moved(on_cpu), 12, policy="backbone") == tokens(on_cpu, 12, policy="backbone")


@pytest.mark.parametrize("prefill", ["exit", "full"])
def test_identical_river_equals_the_backbone(prefill: str) -> None:
    model = random_model("tiny", device=CUDA, dtype="float32", river=IDENTICAL, capacity=64)
    base = tokens(model, 16, policy="backbone")
    for seed in range(20):
        schedule = random.Random(seed).choices(range(1, model.num_layers + 1), k=16)
        options = {"exit_layers": schedule}
        assert tokens(model, 16, exit="schedule", options=options, prefill=prefill) == base
    assert tokens(model, 16, policy="full-quant") == base


@needs_ampere
def test_river_and_full_quantization_run_in_bf16() -> None:
    model = random_model("tiny", device=CUDA, capacity=64)
    first = tokens(model, 16, exit="fixed", options={"exit_layer": 2})
    assert first == tokens(model, 16, exit="fixed", options={"exit_layer": 2})
    assert len(tokens(model, 16, policy="full-quant")) == 16


@needs_ampere
@pytest.mark.parametrize("name", list(gpu_items.ITEMS))
def test_items_of_the_report_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "model", small)
    small_bench = replace(Bench.open(dry_run=True), device=CUDA, spec=SHAPES["smollm2-135m"])
    assert list(gpu_items.ITEMS[name](small_bench))


def small(bench: Bench, spec: ShapeSpec | None = None, capacity: int = 64) -> RiverModel:
    """The item's model without remembering kernel choices."""
    return random_model(spec or bench.spec, device=bench.device, capacity=capacity)


@needs_ampere
def test_the_ledger_and_eviction_are_the_allocators() -> None:
    """Within 3 % for a whole model, within 1 % for what eviction frees and restoring takes."""
    torch.cuda.empty_cache()
    random_model("tiny", device=CUDA, capacity=64)  # libraries take their workspaces
    base = torch.cuda.memory_allocated()
    model = random_model("smollm2-135m", device=CUDA)
    total = sum(model.memory().values())
    held = torch.cuda.memory_allocated() - base
    assert held == pytest.approx(total, rel=0.03)
    first = tokens(model, 8, exit="fixed", options={"exit_layer": 20})
    before = torch.cuda.memory_allocated()
    model.set_resident(4)
    evicted = total - sum(model.memory().values())
    assert before - torch.cuda.memory_allocated() == pytest.approx(evicted, rel=0.01)
    assert all(t.is_pinned() for kept in model.shelf.kept.values() for t in kept.values())
    assert len(model.shelf.kept) == model.num_layers - 4
    assert len(tokens(model, 8, threshold=1.0)) == 8
    model.set_resident(model.num_layers)
    assert not model.shelf.kept
    assert sum(model.memory().values()) == total
    assert tokens(model, 8, exit="fixed", options={"exit_layer": 20}) == first


@needs_ampere
def test_the_offloaded_form_is_never_whole_on_the_device() -> None:
    torch.cuda.empty_cache()
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model = random_model("llama-3.2-1b", device=CUDA, resident_layers=2)
    layer = model.memory()["backbone"] / 2
    peak = torch.cuda.max_memory_allocated() - base
    assert peak < sum(model.memory().values()) + 4 * layer
