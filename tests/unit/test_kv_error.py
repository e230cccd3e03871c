"""Cosines of cached keys and values, and their means by exit layer and layer, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from river_core.kv_error import KvCosine, cosines, kv_error_of
from tests.unit.made_records import run, token


def made(*exits: int, sources: dict[int, str] | None = None):
    """A run of four layers whose passes left after `exits`, the prompt pass first."""
    tokens = [token(n, 1, exit_layer=e) for n, e in enumerate(exits)]
    for n, source in (sources or {}).items():
        tokens[n] = replace(tokens[n], kv_source=source)
    return replace(run([1]), tokens=tuple(tokens), updates=())


def test_a_rows_heads_are_taken_together():
    reference = torch.tensor([[[[1.0, 0.0]], [[2.0, 0.0]]]])  # 1 layer, 2 heads, 1 row, D = 2
    other = torch.tensor([[[[1.0, 0.0]], [[0.0, 2.0]]]])
    # (1, 0, 2, 0) . (1, 0, 0, 2) / 5; the mean of the heads' own cosines would be 0.5
    assert cosines(reference, other).tolist() == [[pytest.approx(0.2)]]
    assert cosines(reference, reference).tolist() == [[pytest.approx(1.0)]]


def test_means_by_exit_layer_and_layer():
    keys = [[1.0, 0.9, 0.8]] * 4
    values = [[1.0, 0.5, 0.3], [0.9, 0.5, 0.3], [0.8, 0.5, 0.3], [0.7, 0.4, 0.2]]
    found = kv_error_of(made(4, 1, 2, 1), keys, values)
    assert [(c.exit_layer, c.layer) for c in found.cells] == [
        (e, layer) for e in (1, 2) for layer in (1, 2, 3, 4)
    ]
    assert found.cells[3] == KvCosine(1, 4, pytest.approx(0.9), pytest.approx(0.45), 2)
    assert found.cells[7] == KvCosine(2, 4, 0.9, 0.4, 1)
    assert found.layers[0] == KvCosine(None, 1, pytest.approx(0.9), pytest.approx(0.6), 3)
    assert [c.layer for c in found.layers] == [1, 2, 3, 4]


def test_missing_slots_are_left_out():
    run_ = made(4, 1, 1, sources={1: "bmmm", 2: "bppd"})
    found = kv_error_of(run_, [[0.5, 0.7]] * 4, [[0.5, 0.7]] * 4)
    assert [(c.layer, c.value, c.count) for c in found.layers] == [
        (1, pytest.approx(0.6), 2),
        (2, 0.7, 1),
        (3, 0.7, 1),
    ]
    assert found.pairs == ()


def test_first_similarity_against_last_value():
    """Rows that the backbone ran to the end are exact and left out."""
    run_ = made(4, 1, 2, 4, 1)
    similarities = (0.1, 0.4, 0.2, 0.9)
    tokens = [run_.tokens[0]] + [
        replace(t, similarities=(s, *t.similarities[1:]))
        for t, s in zip(run_.tokens[1:], similarities, strict=True)
    ]
    last = [0.8, 0.6, 1.0, 0.9]
    found = kv_error_of(
        replace(run_, tokens=tuple(tokens)), [[1.0] * 4] * 4, [[1.0] * 4] * 3 + [last]
    )
    assert found.pairs == ((0.1, 0.8), (0.4, 0.6), (0.9, 0.9))
    # deviations x (-11, -2, 13) / 30, y (1, -5, 4) / 30
    assert found.correlation == pytest.approx(51 / (294 * 42) ** 0.5, abs=1e-9)
