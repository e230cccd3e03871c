"""On a CUDA GPU: Triton's kernels against their references, the same bits twice."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from river_core.kernels import torch_step
from river_core.kernels.gemv_plan import Fused
from river_core.kernels.micro import random_matrix, random_weight
from river_core.kernels.triton_loading import load_triton, triton_dense, triton_int4

CUDA = torch.device("cuda")
SHAPES = [(6144, 4096), (28672, 4096), (4096, 14336), (960, 576), (576, 1536)]


def drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(CUDA)


def test_triton_compiles_here() -> None:
    assert load_triton(CUDA)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["int4", "fp16"])
@pytest.mark.parametrize("gated", [False, True])
def test_products(shape: tuple[int, int], kind: str, gated: bool) -> None:
    if kind == "int4":
        linear = triton_int4(random_matrix(shape, 64, seed=1).to(CUDA))
    else:
        linear = triton_dense(random_weight(shape, torch.float16).to(CUDA))
    (n, k), x = shape, drawn(1, shape[1])
    norm, width = drawn(k, seed=3).abs(), n // 2 if gated else n
    residual = None if gated else drawn(1, n, seed=4)
    fused = Fused(norm=norm, eps=1e-5, gated=gated, residual=residual)
    first, again = (linear.project(x, torch.empty(1, width, device=CUDA), fused) for _ in range(2))
    normed = x * torch.rsqrt(x.square().mean() + 1e-5) * norm
    wanted = (normed.double() @ linear.dense().double().t()).float()
    if gated:
        gate, up = wanted.chunk(2, dim=-1)
        wanted = F.silu(gate) * up
    if residual is not None:
        wanted = wanted + residual
    assert (first - wanted).abs().max() < 1e-5 * wanted.abs().max()
    assert torch.equal(first, again)


@pytest.mark.parametrize("heads", [(32, 8, 128), (9, 3, 64)], ids=str)
@pytest.mark.parametrize("position", [0, 1000, 4095])
def test_a_step_beside_its_products(heads: tuple[int, int, int], position: int) -> None:
    from river_core.kernels import triton_step

    own, kv_heads, dim = heads
    at = torch.tensor([position], device=CUDA)
    qkv = drawn((own + 2 * kv_heads) * dim)
    angles = drawn(4096, dim // 2)
    rope = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    found = []
    for module in (triton_step, torch_step, triton_step):
        keys, values = (drawn(kv_heads, 4096, dim, seed=s).half() for s in (2, 3))
        queries, out = torch.zeros(2, own, dim, device=CUDA)
        module.turn_and_write(qkv, rope, at, queries, keys, values)
        module.attend(queries, keys, values, at, out, scale=dim**-0.5)
        found.append((queries, keys.float(), values.float(), out))
    for one, other, again in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=2e-3)
        assert torch.equal(one, again)


@pytest.mark.parametrize("heads", [(32, 8, 128), (9, 3, 64)], ids=str)
@pytest.mark.parametrize("position", [0, 1000, 4095])
def test_rope_the_write_and_attention_in_one(heads: tuple[int, int, int], position: int) -> None:
    """Many times, as the split that arrives last is another one each time."""
    from river_core.kernels import triton_step

    own, kv_heads, dim = heads
    at = torch.tensor([position], device=CUDA)
    qkv = drawn((own + 2 * kv_heads) * dim)
    angles = drawn(4096, dim // 2)
    rope = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    arrived, found = torch.zeros(kv_heads, dtype=torch.int32, device=CUDA), []
    for module in (torch_step, *[triton_step] * 100):
        cached = tuple(drawn(kv_heads, 4096, dim, seed=s).half() for s in (2, 3))
        out = torch.full((own, dim), 7.0, device=CUDA)
        module.turn_and_attend(qkv, rope, at, cached, arrived, out, scale=dim**-0.5)
        assert not arrived.any()
        found.append((out, *(side.float() for side in cached)))
    plain, first, *others = found
    for mine, wanted in zip(first, plain, strict=True):
        assert torch.allclose(mine, wanted, rtol=0, atol=2e-3)
    for other in others:
        assert all(torch.equal(*pair) for pair in zip(first, other, strict=True))


@pytest.mark.parametrize("slot", [0, 1, 7, 16])
def test_the_end_of_a_layer_reaches_pinned_memory(slot: int) -> None:
    from river_core.execution.device import unpack
    from river_core.kernels import triton_step

    before, hidden, fresh = (drawn(1, 4096, seed=s) for s in (1, 2, 3))
    kept, made = hidden.clone(), fresh.clone()
    words = torch.zeros(17, dtype=torch.int64, pin_memory=True)
    inputs, limit = torch.tensor([1, 2, 77], device=CUDA), torch.tensor([-1.0], device=CUDA)
    triton_step.end_layer((before, hidden, fresh), inputs, limit, words, slot)
    torch.cuda.synchronize()
    step, answer = unpack(int(words[slot]))
    wanted = F.cosine_similarity(kept, made).item()
    assert (step, answer.leaves) == (77, True)
    assert answer.similarity == pytest.approx(wanted, abs=1e-6)
    assert torch.equal(before, kept)
    assert torch.equal(hidden, made)
    assert int((words != 0).sum()) == 1
