"""Policies that leave halves of layers out equal their slow references."""

from __future__ import annotations

import pytest
import torch.nn.functional as F

import river_core
from river_core.settings import QuantSpec
from tests.tiny.slow_policies import SlowRows, decode_halves

TOKENS = 14


def tokens_of(run) -> list[int]:
    return [t.token_id for t in run.tokens]


@pytest.mark.parametrize("threshold", [-1.0, 0.8])
@pytest.mark.few
def test_ffn_skip_equals_the_slow_reference(tiny, threshold):
    last = {"similarity": -1.0}

    def choose(index, layer, half, before, after):
        if after is not None and half == "attention":
            last["similarity"] = float(F.cosine_similarity(before, after, 0))
        skips = index and half == "feed_forward" and last["similarity"] > threshold
        return 1.0 if after is None and skips else None

    slow = SlowRows(tiny.reference, QuantSpec())
    expected = decode_halves(slow, tiny.prompt, TOKENS, choose)
    run = river_core.generate(
        tiny.load(bits=4),
        tiny.prompt,
        policy="ffn-skip",
        threshold=threshold,
        max_new_tokens=TOKENS,
    )
    assert tokens_of(run) == expected
    assert set("".join(t.path for t in run.tokens[1:])) <= set("bf")
    assert set("".join(run.kv_final)) == {"b"}
    if threshold == -1.0:
        assert {t.path for t in run.tokens[1:]} == {"f" * tiny.config.layers}


@pytest.mark.parametrize(
    ("halves", "observed", "threshold"), [(2, 50, 0.5), (5, 3, 0.5), (1, 4, 0.0)]
)
@pytest.mark.few
def test_adaskip_equals_the_slow_reference(tiny, halves, observed, threshold):
    seen: dict[tuple[int, str], list[tuple[float, float, float]]] = {}
    factors: dict[tuple[int, str], float] = {}
    stage = {"chosen": 0}

    def means():
        """Similarity, and ratio of the mean norms of all rows seen in one pass."""
        found = {}
        for key, rows in seen.items():
            similarity, before, after = (sum(part) / len(rows) for part in zip(*rows, strict=True))
            found[key] = similarity, after / before
        return found

    ratios: dict[tuple[int, str], list[float]] = {}

    def choose(index, layer, half, before, after):
        if after is not None:
            row = (
                float(F.cosine_similarity(before, after, 0)),
                float(before.norm()),
                float(after.norm()),
            )
            seen.setdefault((layer, half), []).append(row)
            ratios.setdefault((layer, half), []).append(row[2] / row[1])
            return None
        if index >= 1 and stage["chosen"] == 0:
            stage["chosen"] = 1
            found = means()
            order = sorted(found, key=lambda key: -found[key][0])[:halves]
            factors.update({key: found[key][1] for key in order})
            seen.clear()
            ratios.clear()
        if index > observed and stage["chosen"] == 1:
            stage["chosen"] = 2
            for key, rows in seen.items():
                if key[1] == "feed_forward" and sum(r[0] for r in rows) / len(rows) > threshold:
                    factors.setdefault(key, sum(ratios[key]) / len(ratios[key]))
        return factors.get((layer, half)) if index else None

    slow = SlowRows(tiny.reference, QuantSpec())
    expected = decode_halves(slow, tiny.prompt, TOKENS, choose)
    run = river_core.generate(
        tiny.load(bits=4),
        tiny.prompt,
        policy="adaskip",
        threshold=threshold,
        options={"halves": halves, "observed": observed},
        max_new_tokens=TOKENS,
    )
    assert tokens_of(run) == expected
    skipped = sum({"b": 0, "a": 1, "f": 1, "s": 2}[letter] for letter in run.tokens[1].path)
    assert skipped == halves
    assert stage["chosen"] == (2 if observed < TOKENS - 1 else 1)
