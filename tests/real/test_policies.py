"""Property 4 on the packaged model: what is verified or recomputed is the backbone's, in fp32.

With `--whole` on 8 prompts x 64 tokens, otherwise on 2 x 24.
"""

from __future__ import annotations

import random

import pytest
import torch

import river_core
from river_core.sweep import bundled_prompts
from tests.whole import in_full

PROMPTS = bundled_prompts()


def tokens_of(run):
    return [t.token_id for t in run.tokens]


@pytest.fixture(scope="module")
def backbone(load_packaged, request):
    """Prompt -> the backbone's own tokens."""
    whole = request.config.getoption("--whole")
    prompts, tokens = (PROMPTS, 64) if whole else (PROMPTS[:2], 24)
    model, quiet = load_packaged(), {"max_new_tokens": tokens, "full_trace": False}
    runs = {p: river_core.generate(model, p, policy="backbone", **quiet) for p in prompts}
    return {p: tokens_of(run) for p, run in runs.items()}


@pytest.mark.parametrize(
    ("policy", "options", "threshold"),
    [
        ("river-verified", {"draft": 4}, 0.97),
        ("self-speculative", {"draft": 3}, None),
        *(in_full("river-verified", {"draft": k}, 0.97) for k in (2, 8)),
        *(in_full("self-speculative", {"draft": k}, None) for k in (1, 6)),
    ],
)
def test_verified_text_is_the_backbones(load_packaged, backbone, policy, options, threshold):
    model = load_packaged()
    drafted = accepted = 0
    for prompt, expected in backbone.items():
        run = river_core.generate(
            model,
            prompt,
            policy=policy,
            options=options,
            threshold=threshold,
            max_new_tokens=len(expected),
            full_trace=False,
        )
        assert tokens_of(run) == expected
        assert set("".join(run.kv_final)) == {"b"}
        drafted += run.summary.counters["drafted"]
        accepted += run.summary.counters["accepted"]
    assert 0 <= accepted <= drafted
    assert accepted or policy == "self-speculative"


@pytest.mark.parametrize("threshold", [0.97, in_full(0.5), in_full(0.985)])
def test_batch_recompute_ends_with_the_backbones_cache(load_packaged, backbone, threshold):
    """The same tokens fed to both: every slot is the backbone's own, up to rounding."""
    model = load_packaged()
    used = 0
    for prompt, forced in backbone.items():
        river_core.teacher_forced(model, prompt, forced, policy="backbone", full_trace=False)
        expected = model.cache.k.clone(), model.cache.v.clone()
        run = river_core.teacher_forced(
            model,
            prompt,
            forced,
            policy="batch-recompute",
            threshold=threshold,
            full_trace=False,
        )
        rows = len(run.prompt.token_ids) + len(forced) - 1
        assert run.kv_final == ("b" * model.num_layers,) * rows
        assert [model.cache.letters(p) for p in range(rows)] == list(run.kv_final)
        for mine, cached in zip((model.cache.k, model.cache.v), expected, strict=True):
            off = (mine[:, :, :rows] - cached[:, :, :rows]).norm() / cached[:, :, :rows].norm()
            assert off < 1e-5
        used += run.summary.counters["extra_rows"]
    assert used > 0


def test_sixteen_bits_agree_nearly(load_packaged):
    """Sums over several rows round differently there: agreement is measured, not assumed."""
    model = load_packaged(dtype="bfloat16")
    settings = {"max_new_tokens": 48, "full_trace": False}
    full = river_core.generate(model, PROMPTS[0], policy="backbone", **settings)
    run = river_core.generate(model, PROMPTS[0], policy="river-verified", **settings)
    found = river_core.compare(full, run)
    assert found.match > 0.9
    assert torch.isfinite(torch.tensor([t.logprob for t in run.tokens])).all()


@pytest.mark.parametrize(
    ("policy", "deep", "shallow"),
    [("river", 0.90, 0.85), ("state-propagation", 0.67, 0.38), ("kv-mask", 0.51, 0.18)],
)
def test_caches_separate_as_the_paper_says(load_packaged, backbone, policy, deep, shallow):
    """Next-token match at exit 16 and 2 with the head held fixed, near a prototype's figures."""
    model = load_packaged()
    for layer, wanted in ((16, deep), (2, shallow)):
        same = count = 0
        for prompt, forced in backbone.items():
            run = river_core.teacher_forced(
                model,
                prompt,
                forced,
                policy=policy,
                exit="fixed",
                options={"exit_layer": layer},
                prefill="full",
                full_trace=False,
            )
            same += sum(t.alternatives[0][0] == t.token_id for t in run.tokens)
            count += len(forced)
        assert same / count == pytest.approx(wanted, abs=0.1 if len(backbone) > 2 else 0.2)


@pytest.mark.parametrize("policy", ["river-verified", "batch-recompute", "fixed-exit"])
def test_identical_river_changes_nothing(load_packaged, policy):
    model = load_packaged(bits=16)
    count, layers = 6, model.num_layers
    quiet = {"max_new_tokens": count, "full_trace": False}
    base = river_core.generate(model, PROMPTS[2], policy="backbone", **quiet)
    for seed in range(8):
        draw = random.Random(seed).choices(range(1, layers + 1), k=count)
        exits = {"exit": "schedule", "options": {"exit_layers": draw}}
        if policy == "fixed-exit":
            exits = {"options": {"exit_layer": draw[0]}}
        run = river_core.generate(model, PROMPTS[2], policy=policy, **quiet, **exits)
        assert tokens_of(run) == tokens_of(base), seed
