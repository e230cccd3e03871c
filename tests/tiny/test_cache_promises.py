"""What a strategy promises of the cache: missing slots are never read, the others are written."""

from __future__ import annotations

import math

import pytest
import torch

import river_core
from river_core.cache import SharedCache
from river_core.errors import RiverError
from river_core.policies import POLICIES

TOKENS = 12
RUNS = [(name, head) for name, row in POLICIES.items() for head in row.heads]


@pytest.fixture
def poison(monkeypatch):
    """Every missing slot holds NaN from the moment it is marked, and before a run every slot.

    Afterwards none does: the models are the session's.
    """
    mark, reset = SharedCache.mark, SharedCache.reset
    poisoned: list[SharedCache] = []

    def poisoned_mark(cache, first, rows, letters, stand_in=False):
        mark(cache, first, rows, letters, stand_in)
        for layer in range(first, first + len(letters)):
            for position in cache.missing(layer) & set(rows.positions):
                cache.k[layer - 1, :, position] = math.nan
                cache.v[layer - 1, :, position] = math.nan

    def poisoned_reset(cache):
        reset(cache)
        poisoned.append(cache)
        cache.k.fill_(math.nan)
        cache.v.fill_(math.nan)

    monkeypatch.setattr(SharedCache, "mark", poisoned_mark)
    monkeypatch.setattr(SharedCache, "reset", poisoned_reset)
    yield
    for cache in poisoned:
        cache.k.nan_to_num_(0.0)
        cache.v.nan_to_num_(0.0)


def run(tiny, policy, head, threshold):
    return river_core.generate(
        tiny.load(bits=4),
        tiny.prompt,
        policy=policy,
        head=head,
        threshold=threshold,
        max_new_tokens=TOKENS,
        full_trace=False,
    )


@pytest.mark.parametrize("threshold", [-1.0, 0.3])
@pytest.mark.parametrize(("policy", "head"), RUNS)
def test_a_missing_slot_is_never_read(one_tiny, policy, head, threshold, request):
    clean = run(one_tiny, policy, head, threshold)
    request.getfixturevalue("poison")
    found = run(one_tiny, policy, head, threshold)
    assert [t.token_id for t in found.tokens] == [t.token_id for t in clean.tokens]
    assert all(math.isfinite(t.logprob) and math.isfinite(t.entropy) for t in found.tokens)


@pytest.mark.parametrize("threshold", [-1.0, 0.3, 0.8])
@pytest.mark.parametrize(("policy", "head"), RUNS)
def test_what_is_left_in_the_cache(one_tiny, policy, head, threshold):
    made, model = run(one_tiny, policy, head, threshold), one_tiny.load(bits=4)
    letters = set("".join(made.kv_final))
    allowed = {
        "kv-mask": "bm",
        "state-propagation": "bp",
        "batch-recompute": "b",
        "mono-decreasing": "bn" if head == "lens" else "br",
        "fixed-exit": "bn" if head == "lens" else "br",
        "adaskip": "bn",
    }
    verified = POLICIES[policy].options.get("draft") is not None
    wanted = allowed.get(policy, "b" if verified else "br")
    assert letters <= set(wanted), (policy, letters)
    assert [model.cache.letters(p) for p in range(len(made.kv_final))] == list(made.kv_final)
    missing = sum(letters.count("m") for letters in made.kv_final)
    assert made.summary.counters["slots_missing"] == missing
    assert missing == 0 or policy == "kv-mask"
    assert missing > 0 or policy != "kv-mask" or threshold > -1.0


def test_reading_a_missing_slot_is_an_error(one_tiny, poison):
    """The check can fail: a slot taken away under a policy that masks none."""
    model = one_tiny.load(bits=4)
    stream = river_core.stream(model, one_tiny.prompt, policy="backbone", max_new_tokens=4)
    for record in stream:
        if getattr(record, "index", None) == 1:
            break
    from river_core.cache import Rows

    model.cache.mark(3, Rows((1,), (2,)), "m")
    with pytest.raises(RiverError, match="layer 3 would read position 2, which is missing"):
        next(stream)


def test_the_poison_would_be_seen(one_tiny, poison):
    model = one_tiny.load(bits=4)
    stream = river_core.stream(model, one_tiny.prompt, policy="river", max_new_tokens=4)
    next(stream)
    next(stream)
    model.cache.k[1, :, 0] = math.nan
    with pytest.raises(RiverError, match="not finite"):
        list(stream)
    assert torch.isnan(model.cache.k).any()
