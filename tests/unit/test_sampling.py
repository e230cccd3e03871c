"""Greedy ties, seeded draws, the nucleus, and what is recorded of a choice."""

from __future__ import annotations

import math

import pytest
import torch

from river_core.errors import RiverError
from river_core.sampling import describe, greedy, sample


def test_ties_take_the_lowest_id():
    assert greedy(torch.tensor([0.0, 3.0, 3.0, 1.0])) == 1
    found = describe(torch.tensor([2.0, 1.0, 2.0, 2.0]), 0)
    assert [i for i, _ in found.alternatives] == [0, 2, 3, 1]


def test_a_seed_repeats_and_another_differs():
    logits = torch.randn(500, generator=torch.Generator().manual_seed(3))

    def draw(seed):
        generator = torch.Generator().manual_seed(seed)
        return [sample(logits, 1.0, 1.0, generator) for _ in range(20)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_draws_follow_the_distribution():
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(3)
    for _ in range(4000):
        counts[sample(logits, 1.0, 1.0, generator)] += 1
    assert (counts / 4000 - torch.tensor([0.5, 0.3, 0.2])).abs().max() < 0.03


def test_top_p_keeps_the_smallest_nucleus():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    generator = torch.Generator().manual_seed(0)
    assert {sample(logits, 1.0, 0.5, generator) for _ in range(200)} == {0}
    assert {sample(logits, 1.0, 0.51, generator) for _ in range(200)} == {0, 1}


def test_describe_by_hand():
    found = describe(torch.tensor([0.5, 0.25, 0.25]).log(), 1, count=2)
    assert found.logprob == pytest.approx(math.log(0.25))
    assert found.entropy == pytest.approx(1.5 * math.log(2))
    assert [i for i, _ in found.alternatives] == [0, 1]


@pytest.mark.parametrize("size", [1, 3, 5, 127, 128, 129, 1000, 49152])
def test_blocks_change_nothing(size):
    generator = torch.Generator().manual_seed(size)
    for draw in range(8):
        logits = 4 * torch.randn(size, generator=generator)
        if draw % 2:
            logits = logits.round()  # ties, some over several blocks
            logits[:: 1 + draw] = -torch.inf if draw > 4 and size > 100 else 0.0
        slow = logits.double().log_softmax(-1)
        found = describe(logits, size // 2)
        values = slow.topk(min(5, size)).values.tolist()
        assert greedy(logits) == int(torch.nonzero(logits == logits.max())[0])
        assert [p for _, p in found.alternatives] == pytest.approx(values, abs=2e-5)
        for i, logprob in found.alternatives:
            assert logprob == pytest.approx(float(slow[i]), abs=2e-5)
        assert len({i for i, _ in found.alternatives}) == len(values)
        assert found.logprob == pytest.approx(float(slow[size // 2]), abs=2e-5)
        entropy = float(-(slow.exp() * slow.clamp(min=-1e30)).sum())
        assert found.entropy == pytest.approx(entropy, abs=2e-5)


def test_logits_that_are_not_finite_raise():
    with pytest.raises(RiverError, match="not finite"):
        describe(torch.tensor([0.0, math.nan]), 0)
