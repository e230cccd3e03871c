"""Agreement by records.md: teacher-forced over all passes, free up to the first difference.

And the numbers of one run, by hand.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from river_core.__main__ import main
from river_core.compare import compare, kl_divergence
from river_core.errors import RecordError
from river_core.metrics import (
    agreement,
    decision_percent,
    entropy_depth_correlation,
    exit_histogram,
    mean_exit_layer,
    mean_similarity_by_layer,
    part_milliseconds,
    pearson,
    run_numbers,
    spearman,
)
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


def passes(*exits, **fields):
    """A run whose passes leave after `exits`, the prompt pass first; `fields` go to its tokens."""
    tokens = tuple(replace(token(n, 1, exit_layer=e), **fields) for n, e in enumerate(exits))
    return replace(run([1]), tokens=tokens)


def test_rate_with_prefill_counts_the_prompt_pass():
    numbers = run_numbers(run([1, 2, 3]))  # 3 tokens, 0.05 s of prefill and 0.1 s of decoding
    assert numbers.tokens_per_second == 20.0
    assert numbers.tokens_per_second_with_prefill == pytest.approx(3 / 0.15)
    assert (numbers.policy, numbers.tokens, numbers.exits) == ("river", 3, {2: 2})
    still = replace(run([1]).summary, prefill_seconds=0.0, decode_seconds=0.0)
    assert run_numbers(replace(run([1]), summary=still)).tokens_per_second_with_prefill is None


def test_counters_reach_the_numbers():
    counted = replace(run([1]).summary, counters={"extra_rows": 7, "slots_missing": 11})
    numbers = run_numbers(replace(run([1]), summary=counted))
    assert (numbers.extra_rows, numbers.slots_missing) == (7, 11)
    assert (run_numbers(run([1])).extra_rows, run_numbers(run([1])).slots_missing) == (0, 0)


def test_milliseconds_by_part_leave_the_prompt_pass_out():
    assert part_milliseconds(run([1, 2])) is None
    profiled = run([1, 2, 3])
    parts = [{"backbone": 900.0}, {"backbone": 2.0}, {"backbone": 4.0}]
    tokens = tuple(replace(t, parts=p) for t, p in zip(profiled.tokens, parts, strict=True))
    assert part_milliseconds(replace(profiled, tokens=tokens)) == {"backbone": 3.0}


def test_decisions_in_per_cent_of_a_tokens_time():
    """Entry layer 2 of 4: asked after layers 1..3 at most; 15 microseconds each, 0.1 s in all."""
    assert decision_percent(passes(2, 2)) == pytest.approx(2 * 15e-6 / 0.1 * 100)
    assert decision_percent(passes(2, 1, 4)) == pytest.approx((1 + 3) / 2 * 15e-6 / 0.05 * 100)
    measured = passes(2, 2, parts={"backbone": 50.0, "decision": 5.0})
    assert decision_percent(measured) == pytest.approx(5.0)
    assert decision_percent(passes(2)) is None
    unknown = replace(passes(2, 2).summary, decision_microseconds=None)
    assert decision_percent(replace(passes(2, 2), summary=unknown)) is None


def test_comparison_holds_both_runs_numbers_in_order():
    found = compare(passes(4, 4, 4), passes(4, 1, 2))
    assert found.reference.exits == {4: 2}
    assert found.other.exits == {1: 1, 2: 1}


def test_comparing_saved_runs_needs_no_torch(tmp_path):
    path = tmp_path / "run.jsonl"
    run([1, 2]).save(path)
    code = (
        "import sys; from river_core.__main__ import main; main(sys.argv[1:]); "
        "print('torch' in sys.modules)"
    )
    arguments = [sys.executable, "-c", code, "compare", str(path), str(path), "--json"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    answer, torch_seen = done.stdout.splitlines()
    assert torch_seen == "False"
    found = json.loads(answer)
    assert found["kl"] is None
    assert found["other"]["tokens_per_second_with_prefill"] == pytest.approx(2 / 0.15)


def test_compare_prints_every_number(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    passes(4, 1, 2, parts={"backbone": 2.0, "decision": 0.5}).save(path)
    assert main(["compare", str(path), str(path)]) == 0
    out = capsys.readouterr().out
    for words in ("exits 1: 1, 2: 1", "with prefill 20.0", "backbone 2.000, decision 0.500"):
        assert out.count(words) == 2, words
    assert "decision 15.0 microseconds, 1.000 % of a token's time" in out
    assert "extra rows computed 0, slots missing 0" in out
    assert "KL is taken only on teacher-forced runs" in out


def test_similarity_by_layer_of_what_ran():
    made = passes(4, 2, 3)  # similarities 0.0123, 0.9312, 0.5 of layers 1..3
    means = mean_similarity_by_layer([made])
    assert means[:3] == pytest.approx((0.0123, 0.9312, 0.5))
    assert means[3] is None
    traced = replace(made, full_trace=((9.0,) * 4, (0.1, 0.2, 0.3, 0.4), (0.3, 0.4, 0.5, 0.8)))
    assert mean_similarity_by_layer([traced]) == pytest.approx((0.2, 0.3, 0.4, 0.6))
    both = mean_similarity_by_layer([traced, passes(4, 1)])
    assert both == pytest.approx(((0.1 + 0.3 + 0.0123) / 3, 0.3, 0.4, 0.6))
    deeper = replace(made, header=replace(made.header, num_layers=5))
    with pytest.raises(RecordError, match="one model"):
        mean_similarity_by_layer([made, deeper])


def test_pearson_by_hand():
    assert pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    # deviations (-1, 0, 1) and (-1, 1, 0): 1 / 2
    assert pearson([1, 2, 3], [1, 3, 2]) == pytest.approx(0.5)
    assert pearson([0.1] * 3, [1, 2, 3]) is None
    assert pearson([1], [1]) is None
    with pytest.raises(ValueError, match="paired"):
        pearson([1, 2], [1])


def test_spearman_by_hand_with_ties():
    assert spearman([1, 10, 1000], [3, 2, 1]) == pytest.approx(-1)
    # ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4: 4.5 / sqrt(4.5 * 5)
    assert spearman([1, 2, 2, 3], [1, 8, 4, 9]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    # no ties: 1 - 6 * (sum of squared rank differences) / (n (n^2 - 1))
    assert spearman([5, 6, 7], [2, 1, 3]) == pytest.approx(1 - 6 * 2 / 24)


def test_entropy_against_depth_leaves_the_prompt_pass_out():
    made = passes(4, 1, 2, 3)
    entropies = (0.0, 0.1, 0.5, 2.0)
    tokens = tuple(replace(t, entropy=h) for t, h in zip(made.tokens, entropies, strict=True))
    assert entropy_depth_correlation([replace(made, tokens=tokens)]) == pytest.approx(1)
    assert entropy_depth_correlation([made]) is None  # one entropy for all
    assert entropy_depth_correlation([run([1])]) is None
