"""Pooling a cache study's lines over prompts, by hand."""

from __future__ import annotations

import pytest

from river_core.cache_study import Safe, mean_similarity, pooled, report
from river_core.cells import Setting

HEAD = {
    "num_layers": 4,
    "weight_bits": {"backbone": 16.0, "river": 4.5},
    "bytes": {"layer": 4.0, "twin": 1.0, "head": 2.0, "layers": 4},
}
FIXED = {"type": "cache", "policy": "river", "exit_layer": 2}


def cache(prompt, rows, value, pairs, exits, entropies):
    """Exit 2 of 4: exact below, `value` at layers 3 and 4 of `rows` rows."""
    cells = [[2, layer, 1.0, 1.0 if layer < 3 else value, rows] for layer in (1, 2, 3, 4)]
    cells[3][3] -= 0.1
    own = {"cells": cells, "pairs": pairs, "exits": exits, "entropies": entropies}
    return {**FIXED, "prompt": prompt, **own}


LINES = [
    {"type": "trace", "prompt": 0, "count": 1, "similarity": [0.1, 0.5, 0.6, 0.7]},
    cache(0, 1, 0.9, [[0.1, 0.8]], [2], [0.5]),
    {"type": "safe", "prompt": 0, "exits": [1], "stable": [4]},
    {"type": "trace", "prompt": 1, "count": 3, "similarity": [0.5, 0.5, 0.6, 0.3]},
    cache(1, 3, 0.5, [[0.2, 0.6], [0.3, 0.4], [0.4, 0.2]], [2, 2, 2], [1.0, 2.0, 3.0]),
    {"type": "safe", "prompt": 1, "exits": [1, 1, 3], "stable": [1, 2, 3]},
]


def test_means_are_over_rows_not_prompts():
    found = pooled(LINES)[Setting("river", exit_layer=2)]
    assert found.layers[2] == (1.0, 1.0)
    assert found.layers[3] == pytest.approx((1.0, (0.9 + 3 * 0.5) / 4))
    assert found.skipped == pytest.approx((1.0, 0.55, 0.5))
    assert (found.depth, found.pairs, found.rho) == (2.0, 4, None)  # all left alike
    assert found.r == pytest.approx(-1.0)
    assert mean_similarity(LINES) == pytest.approx([0.4, 0.5, 0.6, 0.4])


def test_entropy_against_depth():
    line = {**LINES[4], "exits": [2, 3, 4]}
    assert pooled([line])[Setting("river", exit_layer=2)].rho == pytest.approx(1.0)


def test_safe_exits_over_prompts():
    found = Safe.of(HEAD, LINES)
    assert (found.mean, found.stable_mean) == (1.5, 2.5)
    assert (found.maximum, found.stable_maximum) == (2.0, 3.5)  # means of 1, 3 and of 4, 3
    assert found.byte_bound == pytest.approx(18 / (1.5 * 4 + 2.5 * 1 + 2))
    assert found.counts == {1: 3, 3: 1}
    assert found.stable_counts == {1: 1, 2: 1, 3: 1, 4: 1}


def test_tables():
    text = "\n".join(report(HEAD, LINES))
    assert "| exit layer 2 | 2.00 | 1.0000 | 0.5500 | 0.5000 | -1.000 | 4 | - |" in text
    assert "| paper | | | > 0.97 | | 0.5536 | | |" in text
    assert "| mean over tokens | 1.50 | 38% | 4.81 | 30% |" in text
    assert "| deepest of a sequence, mean | 2.00 | 50% | 15.07 | 94% |" in text
    assert "| byte bound, weights in 16 and 4.5 bits | 1.71 x | | | |" in text
    assert "| 3 | 0.6000 | 1.0000 | 0.6000 |" in text
    assert "| 3 | 1 | 1 |" in text
