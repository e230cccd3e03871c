"""Earliest and stable exit from the tokens chosen at each exit layer, by hand."""

from __future__ import annotations

import pytest
import torch

from river_core.layer import BlockShape
from river_core.safe_exits import Recorded, attend_apart, safe_exits_of


@pytest.mark.parametrize(
    ("chosen", "first", "expected"),
    [
        ([7, 7, 7], 1, (1, 1)),
        ([5, 7, 7], 1, (2, 2)),
        ([7, 5, 7], 1, (1, 3)),
        ([5, 7, 5, 7, 7], 3, (4, 6)),
        ([5, 6, 7], 1, (3, 3)),
        ([7], 4, (4, 4)),
    ],
)
def test_earliest_and_stable(chosen, first, expected):
    assert safe_exits_of(chosen, first) == expected


def test_a_row_reads_what_stood_before_it_and_itself():
    """One head of one dimension, keys all 0: the output is the mean of the values that are read."""
    shape = BlockShape(hidden=1, heads=1, kv_heads=1, head_dim=1, ffn=1, eps=1e-5)
    values = torch.tensor([1.0, 10.0, 100.0, 1000.0]).view(1, 4, 1)
    held = torch.tensor([True, False, True, True])
    recorded = Recorded(torch.zeros(1, 4, 1), values, held, torch.float32)
    own = torch.tensor([[0.0, 5.0], [0.0, 7.0], [0.0, 9.0]]).view(3, 2, 1)
    out = attend_apart(torch.ones(3, 1, 1), own, recorded, torch.tensor([0, 2, 3]), shape)
    assert out[:, 0].tolist() == pytest.approx([5.0, (1 + 7) / 2, (1 + 100 + 9) / 3])
