"""Scores of the loop equal transformers' own, for tiny models; needs no harness."""

from __future__ import annotations

import pytest
import torch

from river_core.errors import CacheFull, SettingsError
from river_core.evaluate import Scorer, cut, describe, sequence_note

POLICIES = ["river", "full-quant", "fixed-exit"]


def expected(tiny, context, wanted):
    """ln P and greedy of the continuation, by one pass of transformers."""
    ids = torch.tensor([[*context, *wanted]])
    with torch.no_grad():
        rows = tiny.reference(ids).logits[0, len(context) - 1 : -1].log_softmax(-1)
    chosen = rows.gather(1, torch.tensor(wanted).unsqueeze(1))
    return float(chosen.sum()), rows.argmax(-1).tolist() == list(wanted)


@pytest.mark.parametrize("scoring", ["sequence", "token"])
def test_equals_transformers(tiny, scoring):
    context, scorer = tiny.prompt, Scorer(tiny.load(), {"policy": "backbone"}, scoring)
    best = tiny.reference.generate(torch.tensor([context]), max_new_tokens=3, do_sample=False)
    for wanted in ([5, 6, 7], [9], best[0, len(context) :].tolist()):
        found = scorer.loglikelihood(context, wanted)
        loglikelihood, greedy = expected(tiny, context, wanted)
        assert found.loglikelihood == pytest.approx(loglikelihood, abs=1e-3)
        assert found.greedy is greedy
        assert found.tokens == len(wanted)
        assert found.mean_exit_layer == tiny.config.layers
    assert found.greedy  # the last one is what it would say


@pytest.mark.few
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("scoring", ["sequence", "token"])
@pytest.mark.parametrize("threshold", [-1.0, 0.7])
def test_an_identical_river_changes_no_score(tiny, policy, scoring, threshold):
    settings = {"policy": policy, "threshold": threshold}
    if policy == "fixed-exit":
        settings = {"policy": policy, "options": {"exit_layer": 2, "fill": "river"}}
    found = Scorer(tiny.load(), settings, scoring).loglikelihood(tiny.prompt, [5, 6, 7])
    loglikelihood, greedy = expected(tiny, tiny.prompt, [5, 6, 7])
    assert found.loglikelihood == pytest.approx(loglikelihood, abs=1e-3)
    assert found.greedy is greedy


def test_exits_of_both_scorings(one_tiny):
    model = one_tiny.load(bits=4)
    early = {"policy": "river", "threshold": -1.0}
    sequence = Scorer(model, early).loglikelihood(one_tiny.prompt, [5, 6])
    token = Scorer(model, early, "token").loglikelihood(one_tiny.prompt, [5, 6])
    assert (sequence.mean_exit_layer, sequence.prompt_depth) == (1.0, 1)
    assert sequence.counted == len(one_tiny.prompt) + 1
    assert (token.mean_exit_layer, token.counted) == (1.0, 2)
    full = Scorer(model, {"policy": "full-quant"}).loglikelihood(one_tiny.prompt, [5, 6])
    assert full.mean_exit_layer == 0.0
    exact = Scorer(model, {"policy": "backbone"}).loglikelihood(one_tiny.prompt, [5, 6])
    assert abs(sequence.loglikelihood - exact.loglikelihood) > 1e-3


def test_a_context_of_one_token(one_tiny):
    for scoring in ("sequence", "token"):
        found = Scorer(one_tiny.load(), {"policy": "backbone"}, scoring).loglikelihood([3], [4, 5])
        assert found.loglikelihood == pytest.approx(expected(one_tiny, [3], [4, 5])[0], abs=1e-3)


def test_a_long_context_loses_its_start(one_tiny):
    model = one_tiny.load()
    scorer, long = Scorer(model, {"policy": "backbone"}), [7, 8, 9] * model.capacity
    found = scorer.loglikelihood(long, [5, 6])
    assert found.truncated == len(long) - (model.capacity - 2)
    kept = long[-(model.capacity - 2) :]
    assert found.loglikelihood == pytest.approx(expected(one_tiny, kept, [5, 6])[0], abs=1e-3)
    with pytest.raises(CacheFull):
        scorer.loglikelihood([1], [2] * model.capacity)


def test_what_cannot_be_scored_is_refused(one_tiny):
    model = one_tiny.load()
    with pytest.raises(SettingsError, match="use one of sequence, token"):
        Scorer(model, {"policy": "backbone"}, "word")
    with pytest.raises(SettingsError, match="verifies its own drafts"):
        Scorer(model, {"policy": "river-verified"}, "token")
    with pytest.raises(SettingsError, match="unknown policy"):
        Scorer(model, {"policy": "rivr"})
    scorer = Scorer(model, {"policy": "backbone"})
    for context, wanted in (([], [1]), ([1], [])):
        with pytest.raises(SettingsError, match="a token or more"):
            scorer.loglikelihood(context, wanted)
    with pytest.raises(SettingsError, match="outside the vocabulary"):
        scorer.loglikelihood([1], [one_tiny.config.vocab])
    with pytest.raises(SettingsError, match="no tokenizer"):
        scorer.generate_until([1, 2], max_new_tokens=2)


def test_text_is_cut_at_the_first_stop_string():
    assert cut("one two three", ["three", "two"]) == "one "
    assert cut("one", ["two", ""]) == "one"


def test_notes_say_what_sequence_scoring_is(one_tiny):
    model = one_tiny.load()
    notes = {
        policy: sequence_note(Scorer(model, {"policy": policy}))
        for policy in ("backbone", "river", "river-verified", "ffn-skip")
    }
    assert notes["backbone"] == ""
    assert "leave after the same layer" in notes["river"]
    assert "they are the backbone's" in notes["river-verified"]
    assert "runs its prompts" in notes["ffn-skip"]
    assert sequence_note(Scorer(model, {"policy": "river"}, "token")) == ""
    head = describe(Scorer(model, {"policy": "river", "threshold": None}))
    assert head["settings"] == {"policy": "river"}
    assert head["dtype"] == "float32"
