"""The shared cache: rows at any positions, sources per slot, capacity before work."""

from __future__ import annotations

import pytest
import torch

from river_core.cache import Rows, SharedCache
from river_core.errors import CacheFull


@pytest.fixture
def cache():
    return SharedCache(3, 8, (2, 4), torch.float32, torch.device("cpu"))


def rows_at(*positions):
    return Rows(tuple(range(len(positions))), positions)


@pytest.mark.parametrize("positions", [(0,), (2, 3, 4), (1, 5, 6), (7,)])
def test_rows_land_where_they_stand(cache, positions):
    k, v = torch.randn(2, len(positions), 2, 4)
    cache.write(2, rows_at(*positions), k, v)
    cache.mark(2, rows_at(*positions), "r")
    for n, position in enumerate(positions):
        assert torch.equal(cache.k[1, :, position], k[n])
        assert torch.equal(cache.v[1, :, position], v[n])
        assert cache.letters(position) == ".r."
    assert cache.valid(2) == list(positions)
    assert cache.valid(1) == []
    others = [p for p in range(8) if p not in positions]
    assert not cache.k[:, :, others].any()


def test_crop_and_reset_forget_slots(cache):
    cache.mark(1, rows_at(0, 1, 2, 3), "bb")
    cache.crop(2)
    assert cache.valid(1) == cache.valid(2) == [0, 1]
    assert cache.valid(3) == []
    cache.reset()
    assert cache.valid(1) == []


def test_capacity_is_refused_with_both_numbers(cache):
    cache.check(5, 3)
    with pytest.raises(CacheFull, match=r"6 tokens and 3 new ones .* holds 8"):
        cache.check(6, 3)


def test_bytes(cache):
    assert cache.nbytes == 2 * 3 * 2 * 8 * 4 * 4


def test_the_readable_rows_are_kept_without_reading_all_slots_again():
    """Whatever is marked in whatever order, the list is that of a fresh look at every slot."""
    import random

    draw = random.Random(0)
    for _ in range(20):
        cache = SharedCache(3, 40, (1, 4), torch.float32, torch.device("cpu"))
        for _ in range(40):
            first = draw.randrange(36)
            rows = Rows((0,) * 3, (first, first + 1, first + 3))
            cache.mark(1, rows, "".join(draw.choices("bbrmnd", k=3)), stand_in=draw.random() < 0.3)
            if draw.random() < 0.1:
                cache.crop(draw.randrange(41))
            for layer in (1, 2, 3):
                count = int(cache.readable_count[layer - 1])
                assert (count >= 0) == bool(cache.missing(layer))
                if count >= 0:
                    assert sorted(cache.readable[layer - 1, :count].tolist()) == cache.valid(layer)
