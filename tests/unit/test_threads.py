"""Torch's side of a pass gives the same bits with any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from river_core.block import ACTIVATIONS, attend_causally, rms_norm, similarity
from river_core.layer import BlockShape
from river_core.sampling import describe, sample

THREADS = (2, 3, 5, 7, 8, 16)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def check(call: Callable[[], Tensor]) -> None:
    """The same bits from one thread and from several."""
    torch.set_num_threads(1)
    once = call()
    for threads in THREADS:
        torch.set_num_threads(threads)
        assert torch.equal(call(), once), threads


# 22 rows of 1536: the smallest that torch shares out, and 5 threads get no whole vectors
@pytest.mark.parametrize("rows", [1, 22, 23, 100, 173, 1000])
@pytest.mark.parametrize("columns", [384, 1000, 1536])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, rows: int, columns: int) -> None:
    gate = 3 * torch.randn(rows, 2 * columns)[:, :columns]  # the first half of a wider product
    gate[0, :6] = torch.tensor([0.0, -0.0, 1e4, -1e4, 90.0, -90.0])
    check(lambda: ACTIVATIONS[name](gate))
    slow = F.silu(gate) if name == "silu" else F.gelu(gate, approximate="tanh")
    assert torch.allclose(ACTIVATIONS[name](gate), slow, rtol=1e-5, atol=1e-6)
    alone = torch.cat([ACTIVATIONS[name](row[None]) for row in gate])
    assert torch.equal(ACTIVATIONS[name](gate), alone), "of a row alone as of one among others"


@pytest.mark.parametrize("rows", [17, 100, 173])
@pytest.mark.parametrize("columns", [192, 576, 1536])
def test_norms_similarities_and_attention(rows: int, columns: int) -> None:
    x, y, weight = *torch.randn(2, rows, columns), torch.rand(columns)
    check(lambda: rms_norm(x, weight, 1e-5))
    check(lambda: similarity(x, y))
    shape = BlockShape(hidden=columns, heads=3, kv_heads=3, head_dim=64, ffn=64, eps=1e-5)
    q, k, v = torch.randn(rows, 3, 64), *torch.randn(2, 3, rows, 64)
    check(lambda: attend_causally(q, k, v, shape))


@pytest.mark.parametrize("size", [2049, 33000, 49152])
def test_choices(size: int) -> None:
    logits = 3 * torch.randn(size)

    def said() -> Tensor:
        choice = describe(logits, 5)
        pairs = [number for pair in choice.alternatives for number in pair]
        return torch.tensor([choice.logprob, choice.entropy, *pairs], dtype=torch.float64)

    def drawn() -> Tensor:
        generator = torch.Generator().manual_seed(3)
        settings = [(t, p) for t in (0.3, 0.8, 1.5) for p in (0.5, 0.9, 1.0)]
        return torch.tensor([sample(logits, t, p, generator) for t, p in settings])

    check(said)
    check(drawn)
