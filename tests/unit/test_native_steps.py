"""What the C++ steps do beyond whole layers: halves, keys and values alone, holes, choices."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from river_core.execution.native import ATTENTION, FEED_FORWARD, NativeStep
from river_core.kernels.native_library import NativeLibrary
from river_core.sampling import describe, greedy
from tests.unit.test_native_kernels import (  # noqa: F401 (fixtures)
    CAPACITY,
    CODED_ERROR,
    _one_thread,
    fused,
    library,
    pytestmark,
    rope,
)

KINDS = ["fp32", "bf16", "int4-64", "int8-64"]


@pytest.mark.parametrize("kind", KINDS)
def test_two_halves_are_a_whole(library: NativeLibrary, kind: str) -> None:  # noqa: F811
    torch.set_num_threads(2)
    step, layer = NativeStep([rope(64)], library), fused(kind, 3, 64, library)
    k, v = torch.randn(2, 2, CAPACITY, 64)
    bank, start = step.bank([layer], [k], [v]), torch.randn(192)
    whole, halves = start.clone(), start.clone()
    (cosine,) = step.run(bank, whole, 9, 0, 1)
    (first,) = step.run(bank, halves, 9, 0, 1, ATTENTION)
    attended = halves.clone()
    (second,) = step.run(bank, halves, 9, 0, 1, FEED_FORWARD)
    assert torch.equal(whole, halves)
    assert first == pytest.approx(float(F.cosine_similarity(start, attended, 0)), abs=1e-5)
    assert second == pytest.approx(float(F.cosine_similarity(attended, whole, 0)), abs=1e-5)
    assert cosine == pytest.approx(float(F.cosine_similarity(start, whole, 0)), abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_keys_and_values_alone(library: NativeLibrary, kind: str, threads: int) -> None:  # noqa: F811
    """The rows that the whole layer would write, in every layer, and nothing else."""
    torch.set_num_threads(threads)
    step, layers = NativeStep([rope(64)], library), [fused(kind, 3, 64, library) for _ in range(3)]
    k, v = torch.randn(2, 3, 2, CAPACITY, 64)
    other_k, other_v = k.clone(), v.clone()
    h = torch.randn(192)
    step.keys_values(step.bank(layers, k.unbind(), v.unbind()), h, 7, 1, 3)
    bank = step.bank(layers, other_k.unbind(), other_v.unbind())
    for layer in (1, 2):
        step.run(bank, h.clone(), 7, layer, layer + 1)
    assert torch.equal(k, other_k)
    assert torch.equal(v, other_v)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seen", [[], [0], [3, 4, 250], list(range(0, 290, 2))])
def test_missing_rows_are_never_read(library: NativeLibrary, kind: str, seen: list[int]) -> None:  # noqa: F811
    """Attention over the readable rows equals a cache that holds only those."""
    torch.set_num_threads(2)
    step, layer = NativeStep([rope(64)], library), fused(kind, 4, 64, library)
    k, v = torch.full((2, 2, CAPACITY, 64), math.nan)
    for side in (k, v):
        side[:, seen] = torch.randn(2, len(seen), 64)
    rows = torch.full((1, CAPACITY), -5, dtype=torch.int32)
    rows[0, : len(seen)] = torch.tensor(seen, dtype=torch.int32)
    h, position = torch.randn(192), 299
    found = h.clone()
    step.run(step.bank([layer], [k], [v], (rows, torch.tensor([len(seen)]))), found, position, 0, 1)
    # the same rows without holes: keys keep their own rotation, so only the own position is turned
    table = rope(64)
    for side in (table.cos, table.sin):
        side[len(seen)] = side[position]
    dense = NativeStep([table], library)
    packed_k, packed_v = torch.zeros(2, 2, CAPACITY, 64)
    for packed, side in ((packed_k, k), (packed_v, v)):
        packed[:, : len(seen)] = side[:, seen]
    expected = h.clone()
    dense.run(dense.bank([layer], [packed_k], [packed_v]), expected, len(seen), 0, 1)
    assert torch.allclose(found, expected, atol=1e-5 if kind == "fp32" else CODED_ERROR)


@pytest.mark.parametrize("size", [1, 3, 5, 127, 128, 129, 1000, 49152])
def test_choice_equals_torch(library: NativeLibrary, size: int) -> None:  # noqa: F811
    step = NativeStep([rope(64)], library)
    for draw in range(8):
        logits = 4 * torch.randn(size)
        if draw % 2:
            logits = logits.round()
        if draw > 5 and size > 100:
            logits[::3] = -torch.inf
        for token in (None, size // 2):
            best, logprob, entropy = step.choice(logits, token, 5)
            slow = describe(logits, greedy(logits) if token is None else token)
            assert best[0][0] == greedy(logits)
            assert [p for _, p in best] == pytest.approx(
                [p for _, p in slow.alternatives], abs=2e-5
            )
            ids = sorted(range(size), key=lambda i: (-float(logits[i]), i))[:5]
            assert size > 1000 or [i for i, _ in best] == ids
            assert logprob == pytest.approx(slow.logprob, abs=2e-5)
            assert entropy == pytest.approx(slow.entropy, abs=5e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 5, 127, 899])
def test_choice_says_when_logits_are_not_finite(
    library: NativeLibrary,  # noqa: F811
    bad: float,
    place: int,
) -> None:
    logits = torch.randn(900)
    logits[place] = bad
    _, logprob, entropy = NativeStep([rope(64)], library).choice(logits, None, 5)
    assert not math.isfinite(logprob)
    assert not math.isfinite(entropy)
