"""Agreement by records.md: teacher-forced over all passes, free up to the first difference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from river_core.compare import compare, kl_divergence
from river_core.errors import RecordError
from river_core.metrics import agreement, exit_histogram, mean_exit_layer
from tests.unit.made_records import run, token


def test_free_runs_count_up_to_the_first_difference():
    found = agreement(run([1, 2, 3, 4, 5]), run([1, 2, 9, 4, 6]))
    assert found.first_difference == 2
    assert found.compared == 3
    assert found.match == pytest.approx(2 / 3)


def test_equal_free_runs_of_unequal_length():
    found = agreement(run([1, 2, 3]), run([1, 2]))
    assert found == replace(found, match=1.0, first_difference=None, compared=2)


def test_forced_runs_count_every_pass_by_the_models_own_choice():
    reference, other = run([1, 2, 3, 4], forced=True), run([1, 2, 3, 4], forced=True)
    wrong = replace(other.tokens[1], alternatives=((7, "z", -0.1), (2, "x", -3.0)))
    other = replace(other, tokens=(other.tokens[0], wrong, *other.tokens[2:]))
    found = agreement(reference, other)
    assert (found.match, found.first_difference, found.compared) == (0.75, 1, 4)
    assert found.top5_overlap == pytest.approx((1 + 0.5 + 1 + 1) / 4)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (run([1]), run([1], prompt=(5, 6, 8)), "different prompts"),
        (run([1]), run([1], forced=True), "teacher-forced"),
        (run([1, 2], forced=True), run([1, 3], forced=True), "different tokens"),
        (run([1]), run([]), "without tokens"),
    ],
)
def test_what_cannot_be_compared_says_why(a, b, words):
    with pytest.raises(RecordError, match=words):
        agreement(a, b)


def test_kl_is_none_with_its_reason_without_logits():
    assert "teacher-forced" in compare(run([1, 2]), run([1, 2])).kl_note
    found = compare(run([1], forced=True), run([1], forced=True))
    assert found.kl is None
    assert "only in memory" in found.kl_note


def test_kl_by_hand():
    p, q = torch.tensor([[0.75, 0.25]]), torch.tensor([[0.5, 0.5]])
    by_hand = 0.75 * torch.tensor(1.5).log() + 0.25 * torch.tensor(0.5).log()
    assert kl_divergence(p.log(), q.log())[0] == pytest.approx(float(by_hand))
    a, b = (replace(run([1], forced=True), logits=x.log()) for x in (p, q))
    assert compare(a, b).kl == pytest.approx(float(by_hand))
    assert compare(a, a).kl == 0.0


def test_histogram_and_mean_leave_the_prompt_pass_out():
    made = replace(
        run([1]), tokens=tuple(token(n, 1, exit_layer=e) for n, e in enumerate([4, 2, 2, 3]))
    )
    assert exit_histogram(made) == {2: 2, 3: 1}
    assert mean_exit_layer([made]) == pytest.approx(7 / 3)
    assert mean_exit_layer([run([1])]) is None
