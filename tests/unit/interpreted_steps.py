"""The parts of a step beside its products: Triton, interpreted, against torch_step.py and block.py.

test_triton_interpreted.py runs this file in a process of its own.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor

from river_core import block
from river_core.execution.device import unpack
from river_core.kernels import torch_step, triton_step

HEADS = [(9, 3, 64), (4, 4, 16), (8, 1, 128)]  # query heads, KV heads, their size


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cache(kv_heads: int, dim: int, capacity: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return tuple(drawn(kv_heads, capacity, dim, seed=s).to(dtype) for s in (3, 4))  # type: ignore[return-value]


@pytest.mark.parametrize(
    "name", ["turn_and_write", "attend", "compare", "turn_and_attend", "end_layer"]
)
def test_both_have_one_signature(name: str) -> None:
    own, other = getattr(triton_step, name), getattr(torch_step, name)
    assert inspect.signature(own) == inspect.signature(other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("heads", "position"), [*((h, 11) for h in HEADS), (HEADS[0], 0)])
def test_rope_and_the_write(heads: tuple[int, int, int], dtype: torch.dtype, position: int) -> None:
    own, kv_heads, dim = heads
    qkv, at = drawn((own + 2 * kv_heads) * dim), torch.tensor([position])
    angles = torch.rand(12, dim // 2) * 6
    rope = tuple(torch.cat([table, table], -1) for table in (angles.cos(), angles.sin()))
    found = []
    for module in (triton_step, torch_step):
        queries, (keys, values) = torch.zeros(own, dim), cache(kv_heads, dim, 12, dtype)
        module.turn_and_write(qkv, rope, at, queries, keys, values)
        found.append((queries, keys, values))
    error = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 2e-6}[dtype]
    for name, one, other in zip(("q", "k", "v"), *found, strict=True):
        bound = 2e-6 if name == "q" else error
        assert torch.allclose(one.float(), other.float(), rtol=0, atol=bound), name
    before = cache(kv_heads, dim, 12, dtype)
    others = [slot for slot in range(12) if slot != position]
    assert torch.equal(found[0][1][:, others], before[0][:, others])
    every = qkv.view(1, -1, dim)
    turned = block.rotate(every, rope[0][at], rope[1][at])[0]
    assert torch.allclose(found[1][0], turned[:own], atol=1e-6)


@pytest.mark.parametrize(
    ("position", "window", "dtype", "heads"),
    [
        *((40, None, torch.float16, heads) for heads in HEADS),
        (0, None, torch.float16, HEADS[0]),
        (70, None, torch.bfloat16, HEADS[0]),
        (70, 20, torch.float16, HEADS[0]),
        (7, 20, torch.float16, HEADS[0]),
    ],
)
def test_attention(
    position: int, window: int | None, dtype: torch.dtype, heads: tuple[int, int, int]
) -> None:
    own, kv_heads, dim = heads
    keys, values = cache(kv_heads, dim, 300, dtype)
    keys[:, position + 1 :] = values[:, position + 1 :] = torch.nan  # never to be read
    queries, at = drawn(own, dim), torch.tensor([position])
    found = [torch.zeros(own, dim) for _ in range(2)]
    for out in found if window is None else found[:1]:  # the same bits twice
        triton_step.attend(queries, keys, values, at, out, scale=dim**-0.5, window=window)
    assert window is not None or torch.equal(*found)
    first = 0 if window is None else max(0, position + 1 - window)
    seen = keys[:, first : position + 1].float(), values[:, first : position + 1].float()
    shared = own // kv_heads
    scores = torch.einsum("gsd,gnd->gsn", queries.view(kv_heads, shared, dim), seen[0])
    wanted = torch.einsum("gsn,gnd->gsd", (scores * dim**-0.5).softmax(-1), seen[1])
    assert torch.allclose(found[0], wanted.reshape(own, dim), rtol=0, atol=2e-6)
    written = [side.nan_to_num(0.0) for side in (keys, values)]
    torch_step.attend(queries, *written, at, found[1], scale=dim**-0.5, window=window)
    assert torch.allclose(found[0], found[1], rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("position", "window", "dtype", "heads", "capacity"),
    [
        *((40, None, torch.float32, heads, 300) for heads in HEADS),
        *((at, None, torch.bfloat16, HEADS[0], 300) for at in (0, 1, 299)),
        (40, None, torch.float32, HEADS[0], 64),
        *((at, 20, torch.float16, HEADS[0], 300) for at in (70, 7)),
    ],
)
def test_rope_the_write_and_attention_in_one(
    position: int,
    window: int | None,
    dtype: torch.dtype,
    heads: tuple[int, int, int],
    capacity: int,
) -> None:
    own, kv_heads, dim = heads
    qkv, at = drawn((own + 2 * kv_heads) * dim), torch.tensor([position])
    angles = torch.rand(capacity, dim // 2, generator=torch.Generator().manual_seed(5)) * 6
    rope = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    arrived, found = torch.zeros(kv_heads, dtype=torch.int32), []
    for module in (torch_step, triton_step, triton_step):  # the same bits twice
        cached = cache(kv_heads, dim, capacity, dtype)
        for side in cached:
            side[:, position:] = torch.nan  # never to be read
        out = torch.zeros(own, dim)
        module.turn_and_attend(qkv, rope, at, cached, arrived, out, scale=dim**-0.5, window=window)
        assert not arrived.any()
        found.append((out, *cached))
    error = 2e-6 if dtype == torch.float32 else 1e-3 if dtype == torch.float16 else 2e-2
    for plain, once, again in zip(*found, strict=True):
        assert torch.equal(once.nan_to_num(9), again.nan_to_num(9))
        assert torch.allclose(once.float(), plain.float(), rtol=0, atol=error, equal_nan=True)


@pytest.mark.parametrize("columns", [128, 1536])
def test_the_end_of_a_layer(columns: int) -> None:
    inputs, found = torch.tensor([5, 7, 2**31 - 1]), []
    for module in (triton_step, torch_step):
        for limit in (-1.0, 0.999):
            stream = torch.zeros(1, columns), drawn(1, columns), drawn(1, columns, seed=2)
            words = torch.zeros(3, dtype=torch.int64)
            module.end_layer(stream, inputs, torch.tensor([limit]), words, 1)
            assert torch.equal(stream[0], drawn(1, columns))
            assert torch.equal(stream[1], drawn(1, columns, seed=2))
            step, answer = unpack(int(words[1]))
            assert step == 2**31 - 1
            assert answer.leaves == (limit < 0)
            assert not words[[0, 2]].any()
            found.append(answer.similarity)
    wanted = float(block.similarity(drawn(1, columns), drawn(1, columns, seed=2)))
    assert found == pytest.approx([wanted] * 4, abs=1e-6)


def compared(before: Tensor, after: Tensor, limit: float) -> list[tuple[float, int]]:
    found = []
    for module in (triton_step, torch_step):
        similarity, flag = torch.zeros(1), torch.full((1,), 7, dtype=torch.int32)
        module.compare(before, after, torch.tensor([limit]), similarity, flag)
        found.append((float(similarity), int(flag)))
    return found


@pytest.mark.parametrize("columns", [576, 1024, 4096, 5])
def test_similarity(columns: int) -> None:
    before = drawn(columns)
    after = before + 0.3 * drawn(columns, seed=2)
    wanted = float(block.similarity(before[None], after[None]))
    for limit, flag in ((wanted - 1e-4, 1), (wanted + 1e-4, 0)):
        for value, found in compared(before, after, limit):
            assert value == pytest.approx(wanted, abs=1e-6)
            assert found == flag


def test_the_limit_itself_is_not_above_it_and_a_zero_vector_is_seen() -> None:
    one = torch.ones(16)
    for value, flag in compared(one, one, 1.0):
        assert (value, flag) == (1.0, 0)
    for value, flag in compared(one, -one, -1.0):
        assert (value, flag) == (-1.0, 0)
    for value, flag in compared(torch.zeros(16), one, -2.0):
        assert value != value
        assert flag == 0
