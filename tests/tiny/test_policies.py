"""Every KV strategy equals its slow reference; the exact ones equal the backbone."""

from __future__ import annotations

import random
from typing import Any

import pytest

import river_core
from river_core.settings import QuantSpec
from tests.tiny.slow_policies import SlowRows, decode
from tests.whole import in_full

TOKENS = 14
EXACT = [
    {"policy": "batch-recompute"},
    {"policy": "batch-recompute", "head": "river", "exit": "confidence", "threshold": 0.05},
    *({"policy": "river-verified", "options": {"draft": k}} for k in (1, 3, 8)),
    {"policy": "river-verified", "exit": "gap", "threshold": 0.02},
]


def tokens_of(run) -> list[int]:
    return [t.token_id for t in run.tokens]


def schedule(seed: int, layers: int) -> list[int]:
    return [layers, *random.Random(seed).choices(range(1, layers + 1), k=TOKENS - 1)]


def base(tiny, bits: int = 16):
    return river_core.generate(
        tiny.load(bits=bits), tiny.prompt, policy="backbone", max_new_tokens=TOKENS
    )


@pytest.mark.parametrize("policy", ["batch-recompute", "river-verified"])
@pytest.mark.parametrize("prefix", [{}, {"entry_layer": 3}])
@pytest.mark.parametrize("seeds", [range(2), in_full(range(2, 5))], ids=str)
@pytest.mark.few
def test_identical_river_equals_backbone_under_schedules(tiny, policy, prefix, seeds):
    model = tiny.load(bits=16, **prefix)
    entry = prefix.get("entry_layer", 2)
    expected = tokens_of(base(tiny))
    for seed in seeds:
        exits = [max(entry - 1, e) for e in schedule(seed, tiny.config.layers)]
        run = river_core.generate(
            model,
            tiny.prompt,
            policy=policy,
            exit="schedule",
            options={"exit_layers": exits},
            max_new_tokens=TOKENS,
            full_trace=False,
        )
        assert tokens_of(run) == expected, seed
        assert set("".join(run.kv_final)) == {"b"}


@pytest.mark.parametrize("settings", EXACT, ids=str)
@pytest.mark.parametrize("threshold", [0.0, 0.6])
@pytest.mark.few
def test_identical_river_equals_backbone_at_thresholds(tiny, settings, threshold):
    settings = {"threshold": threshold} | settings
    run = river_core.generate(
        tiny.load(bits=16), tiny.prompt, max_new_tokens=TOKENS, full_trace=False, **settings
    )
    assert tokens_of(run) == tokens_of(base(tiny))


@pytest.mark.parametrize("layer", [1, 2, 3])
@pytest.mark.few
def test_identical_fixed_exit_with_river_equals_backbone(tiny, layer):
    run = river_core.generate(
        tiny.load(bits=16),
        tiny.prompt,
        policy="fixed-exit",
        options={"exit_layer": layer},
        max_new_tokens=TOKENS,
    )
    assert tokens_of(run) == tokens_of(base(tiny))
    assert {t.exit_layer for t in run.tokens} == {layer}


@pytest.mark.parametrize("draft", [1, 2, 6])
@pytest.mark.parametrize("policy", ["self-speculative", "river-verified"])
@pytest.mark.few
def test_verified_text_is_the_backbones(tiny, policy, draft):
    """Whatever the river's quality: 4 bits, every exit possible, rejected drafts included."""
    model = tiny.load(bits=4)
    options: dict[str, Any] = {"draft": draft}
    settings: dict[str, Any] = {"threshold": -1.0} if policy == "river-verified" else {}
    if policy == "self-speculative":
        options["exit_layer"] = 1
    run = river_core.generate(
        model, tiny.prompt, policy=policy, options=options, max_new_tokens=TOKENS, **settings
    )
    expected = base(tiny, bits=4)
    assert tokens_of(run) == tokens_of(expected)
    counters = run.summary.counters
    assert counters["drafted"] >= counters["accepted"]
    assert set("".join(run.kv_final)) == {"b"}
    for mine, full in zip(run.tokens, expected.tokens, strict=True):
        assert mine.logprob == pytest.approx(full.logprob, abs=1e-4)
        wanted = pytest.approx(full.similarities[: mine.exit_layer], abs=1e-4)
        if policy == "self-speculative" or mine.exit_layer == len(full.path):
            assert mine.similarities == wanted
    assert (model.cache.valid(1)[-1] + 1) == len(tiny.prompt) + TOKENS - 1


def test_some_drafts_are_rejected_and_some_accepted(tiny_by_name):
    """The tests above can fail: both ends of a verification happen on these models."""
    from tests.tiny.tiny_models import TINY

    accepted = rejected = 0
    for config in TINY:
        tiny = tiny_by_name(config)
        run = river_core.generate(
            tiny.load(bits=4),
            tiny.prompt,
            policy="river-verified",
            threshold=-1.0,
            max_new_tokens=TOKENS,
        )
        accepted += run.summary.counters["accepted"]
        rejected += run.summary.counters["drafted"] - run.summary.counters["accepted"]
    assert accepted > 0
    assert rejected > 0


FILLS = [
    ("kv-mask", "mask", "river"),
    ("kv-mask", "mask", "lens"),
    ("state-propagation", "propagate", "river"),
    ("state-propagation", "propagate", "lens"),
    ("batch-recompute", "defer", "river"),
    ("batch-recompute", "defer", "lens"),
]


@pytest.mark.parametrize(("policy", "fill", "head"), FILLS)
@pytest.mark.few
def test_lossy_strategies_equal_the_slow_reference(tiny, policy, fill, head):
    model, slow = tiny.load(bits=4), SlowRows(tiny.reference, QuantSpec())
    exits = [max(e, 2) if policy == "kv-mask" else e for e in schedule(3, tiny.config.layers)]
    expected, logits = decode(slow, tiny.prompt, exits, fill, head)
    settings = {
        "policy": policy,
        "head": head,
        "exit": "schedule",
        "options": {"exit_layers": exits},
    }
    run = river_core.generate(model, tiny.prompt, max_new_tokens=TOKENS, **settings)
    assert tokens_of(run) == expected
    assert [t.exit_layer for t in run.tokens] == exits
    forced = river_core.teacher_forced(model, tiny.prompt, expected, **settings)
    assert (forced.logits - logits).abs().max() < 3e-4


@pytest.mark.few
def test_the_strategies_differ_from_each_other(tiny):
    """The slow reference can fail: fills and heads change logits by more than the tolerance."""
    slow = SlowRows(tiny.reference, QuantSpec())
    last = tiny.config.layers
    exits = [last, 1, 1, last, 1, last]
    rows = [decode(slow, tiny.prompt, exits, f, h)[1] for _, f, h in FILLS]
    rows.append(decode(slow, tiny.prompt, exits, "river", "river")[1])
    for n, a in enumerate(rows):
        for b in rows[:n]:
            assert (a[1:] - b[1:]).abs().max() > 1e-2


@pytest.mark.parametrize("head", ["river", "lens"])
@pytest.mark.few
def test_mono_decreasing(tiny, head):
    model, slow = tiny.load(bits=4), SlowRows(tiny.reference, QuantSpec())
    wanted = schedule(5, tiny.config.layers)
    exits = [min(wanted[: n + 1]) for n in range(TOKENS)]
    expected, _ = decode(slow, tiny.prompt, exits, "river" if head == "river" else "none", head)
    run = river_core.generate(
        model,
        tiny.prompt,
        policy="mono-decreasing",
        head=head,
        exit="schedule",
        options={"exit_layers": wanted},
        max_new_tokens=TOKENS,
    )
    assert tokens_of(run) == expected
    assert [t.exit_layer for t in run.tokens] == exits


@pytest.mark.parametrize("threshold", [-1.0, 0.2, 0.5, 0.8])
@pytest.mark.few
def test_mono_decreasing_depths_never_rise(tiny, threshold):
    for settings in ({"threshold": threshold}, {"options": {"decay": 1}}):
        run = river_core.generate(
            tiny.load(bits=4),
            tiny.prompt,
            policy="mono-decreasing",
            head="lens",
            max_new_tokens=TOKENS,
            **settings,
        )
        exits = [t.exit_layer for t in run.tokens]
        assert exits == sorted(exits, reverse=True)
    assert (exits[0], exits[-1]) == (tiny.config.layers, 1)


@pytest.mark.parametrize("layer", [1, 3])
@pytest.mark.few
def test_fixed_exit_without_a_river(tiny, layer):
    slow = SlowRows(tiny.reference, QuantSpec())
    expected, _ = decode(slow, tiny.prompt, [layer] * TOKENS, "none", "lens")
    run = river_core.generate(
        tiny.load(bits=4),
        tiny.prompt,
        policy="fixed-exit",
        options={"exit_layer": layer, "fill": "none"},
        max_new_tokens=TOKENS,
    )
    assert tokens_of(run) == expected
    rest = tiny.config.layers - layer
    assert set(run.kv_final) == {"b" * layer + "n" * rest}
    assert run.tokens[2].path == "b" * layer + "s" * rest
