"""KV error and earliest safe exits on tiny models, against slow ways to the same numbers."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch

import river_core
from river_core.bandwidth import ReadBytes
from river_core.cache import Rows
from river_core.errors import RecordError, SettingsError
from river_core.execution.eager import EagerExecution
from river_core.kv_error import kv_error
from river_core.safe_exits import earliest_safe_exits, exit_choices, exit_states, replay

TOKENS = 9
SCHEDULE = {"exit": "schedule", "options": {"exit_layers": [3, 1, 5, 2, 4, 1, 1, 5, 3]}}


def slow_state(model, run, index, exit_layer):
    """Final logits of one pass alone, written to the cache and taken back out of it."""
    k, v = model.cache.k.clone(), model.cache.v.clone()
    position = len(run.prompt.token_ids) + index - 1
    engine = EagerExecution(model)
    with torch.inference_mode():
        engine.start(Rows((run.tokens[index - 1].token_id,), (position,)))
        engine.backbone(1, exit_layer)
        engine.river(exit_layer + 1, model.num_layers)
        logits = engine.logits().clone()
        model.cache.k.copy_(k)
        model.cache.v.copy_(v)
    return logits


@pytest.mark.parametrize(
    "settings", [SCHEDULE, {"threshold": 0.3}, {"policy": "backbone"}], ids=str
)
def test_every_exit_of_every_pass_equals_the_pass_alone(tiny, settings):
    model = tiny.load(bits=4)
    run = river_core.generate(model, tiny.prompt, max_new_tokens=TOKENS, **settings)
    recorded = model.cache.k.clone(), model.cache.v.clone()
    replay(model, run)
    states = exit_states(model, run, range(1, TOKENS))
    choices = exit_choices(model, run)
    for before, now in zip(recorded, (model.cache.k, model.cache.v), strict=True):
        assert torch.equal(before, now)  # the replay's cache is the run's, and nothing wrote to it
    assert states.shape[:2] == (model.num_layers, TOKENS - 1)
    for index in range(1, TOKENS):
        for exit_layer in range(1, model.num_layers + 1):
            slow = slow_state(model, run, index, exit_layer)
            x = states[exit_layer - 1, index - 1]
            scale = torch.rsqrt(x.square().mean() + model.shape.eps)
            fast = model.head((x * scale * model.final_norm)[None])[0]
            assert (fast - slow).abs().max() < 1e-4, (index, exit_layer)
            assert choices[index - 1][exit_layer - 1] == int(slow.argmax())
        assert choices[index - 1][run.tokens[index].exit_layer - 1] == run.tokens[index].token_id


def test_chunks_of_passes_change_nothing(one_tiny, monkeypatch):
    model = one_tiny.load(bits=4)
    run = river_core.generate(model, one_tiny.prompt, max_new_tokens=TOKENS, **SCHEDULE)
    whole = earliest_safe_exits(model, run)
    monkeypatch.setattr("river_core.safe_exits.PASSES", 3)
    monkeypatch.setattr("river_core.safe_exits.SCORED", 4)
    assert earliest_safe_exits(model, run) == whole


def test_numbers_of_safe_exits(one_tiny, monkeypatch):
    bytes_read = ReadBytes(layer=4, twin=1, head=2, layers=5)
    monkeypatch.setattr(ReadBytes, "of_model", lambda model: bytes_read)
    model = one_tiny.load(bits=4)
    layers = model.num_layers
    run = river_core.generate(model, one_tiny.prompt, max_new_tokens=TOKENS, **SCHEDULE)
    found = earliest_safe_exits(model, run)
    assert len(found.exits) == len(found.stable) == TOKENS
    assert found.exits[0] == found.stable[0] == layers
    assert all(1 <= e <= s <= layers for e, s in zip(found.exits, found.stable, strict=True))
    assert found.mean == pytest.approx(sum(found.exits[1:]) / (TOKENS - 1))
    assert found.sequence_maximum == max(found.exits[1:])
    assert found.byte_bound == pytest.approx(22 / (4 * found.mean + 5 - found.mean + 2))
    assert len(set(found.exits[1:])) > 1  # this model can show a fault
    one = river_core.generate(model, one_tiny.prompt, max_new_tokens=1)
    assert earliest_safe_exits(model, one).mean is None


def test_an_identical_river_is_safe_at_once(one_tiny):
    model = one_tiny.load(bits=16, entry_layer=3)
    run = river_core.generate(model, one_tiny.prompt, max_new_tokens=TOKENS, threshold=0.3)
    found = earliest_safe_exits(model, run)
    assert set(found.exits[1:]) == set(found.stable[1:]) == {2}
    assert found.byte_bound == pytest.approx(1)


def test_full_quantization_is_replayed_by_its_own_settings(one_tiny):
    model = one_tiny.load(bits=4)
    run = river_core.generate(model, one_tiny.prompt, max_new_tokens=3, policy="full-quant")
    assert len(earliest_safe_exits(model, run).exits) == 3
    assert set(model.cache.letters(0)) == {"r"}


def test_runs_of_other_models_are_refused(one_tiny):
    model = one_tiny.load(bits=4)
    run = river_core.generate(model, one_tiny.prompt, max_new_tokens=3)
    with pytest.raises(RecordError, match="is not one of"):
        earliest_safe_exits(model, replace(run, header=replace(run.header, num_layers=9)))
    odd = tuple(replace(t, kv_source="m" * model.num_layers) for t in run.tokens)
    with pytest.raises(RecordError, match="other KV sources"):
        earliest_safe_exits(model, replace(run, tokens=odd))


def test_kv_error_equals_two_runs_compared_row_by_row(one_tiny):
    model, rows = one_tiny.load(bits=4), len(one_tiny.prompt)
    found = kv_error(model, one_tiny.prompt, [3, 1, 4, 1, 5, 9], exit="fixed",
                     options={"exit_layer": 2}, prefill="full")  # fmt: skip
    json.dumps(asdict(found))
    caches = []
    for settings in (
        {"policy": "backbone"},
        {"exit": "fixed", "options": {"exit_layer": 2}, "prefill": "full"},
    ):
        river_core.teacher_forced(model, one_tiny.prompt, [3, 1, 4, 1, 5, 9], **settings)
        caches.append((model.cache.k.clone(), model.cache.v.clone()))
    (k, v), (other_k, other_v) = caches
    assert [c.exit_layer for c in found.cells] == [2] * model.num_layers
    for cell in found.cells:
        for ours, a, b in ((cell.key, k, other_k), (cell.value, v, other_v)):
            each = [
                torch.cosine_similarity(
                    a[cell.layer - 1, :, p].flatten(), b[cell.layer - 1, :, p].flatten(), dim=0
                )
                for p in range(rows, rows + 5)
            ]
            assert ours == pytest.approx(float(sum(each)) / 5, abs=1e-5)
            assert (ours > 1 - 1e-6) == (cell.layer <= 2)
        assert cell.count == 5


def test_kv_error_of_an_identical_river_is_none(one_tiny):
    found = kv_error(one_tiny.load(bits=16), one_tiny.prompt, max_new_tokens=6, threshold=-1.0)
    assert len(found.pairs) == 5
    assert min(min(c.key, c.value) for c in found.layers) > 1 - 1e-6
    with pytest.raises(SettingsError, match="two or more"):
        kv_error(one_tiny.load(bits=16), one_tiny.prompt, [1])


@pytest.mark.parametrize("entry_layer", [2, 3])
def test_the_oracle_leaves_at_the_safe_exits(one_tiny, entry_layer):
    """With an identical river the text is the backbone's, over a cache that is the backbone's."""
    model = one_tiny.load(bits=16, entry_layer=entry_layer)
    base = river_core.generate(model, one_tiny.prompt, policy="backbone", max_new_tokens=TOKENS)
    exits = list(river_core.earliest_safe_exits(model, base).exits)
    oracle = {"exit": "oracle", "options": {"exit_layers": exits}, "max_new_tokens": TOKENS}
    run = river_core.generate(model, one_tiny.prompt, policy="river", **oracle)
    assert [t.token_id for t in run.tokens] == [t.token_id for t in base.tokens]
    assert [t.exit_layer for t in run.tokens] == exits
    assert set(exits[1:]) == {entry_layer - 1}


POLICY_RUNS = {
    "kv-mask": {},
    "state-propagation": {},
    "batch-recompute": {},
    "mono-decreasing": {},
    "mono-decreasing lens": {"head": "lens"},
    "fixed-exit": {"exit": "fixed", "options": {"exit_layer": 2}},
    "ffn-skip": {},
    "adaskip": {"options": {"halves": 5}},
    "river-verified": {},
    "self-speculative": {"exit": "fixed", "options": {"exit_layer": 2}},
}
HOLLOW = {"mono-decreasing lens", "adaskip"}  # slots that nothing reads again
VERIFIED = {"river-verified", "self-speculative"}


@pytest.fixture(params=POLICY_RUNS)
def policy_run(request):
    schedule = {"exit": "schedule", "options": {"exit_layers": [5, 2, 2, 4, 1, 3, 1, 5, 2]}}
    name = request.param
    own = {"threshold": 0.3} if name in ("ffn-skip", "adaskip") else schedule
    return name, {"policy": name.split()[0], **own, **POLICY_RUNS[name]}


def test_safe_exits_of_every_policy(one_tiny, policy_run):
    """Over a cache that ends as the backbone's, the exits are those over the backbone's."""
    name, settings = policy_run
    model = one_tiny.load(bits=4)
    run = river_core.generate(model, one_tiny.prompt, max_new_tokens=TOKENS, **settings)
    if name in HOLLOW:
        with pytest.raises(RecordError, match="wrote no keys and values"):
            river_core.earliest_safe_exits(model, run)
        return
    sources = run.kv_final
    recorded = model.cache.k.clone(), model.cache.v.clone()
    found = river_core.earliest_safe_exits(model, run)
    rows, exact = len(sources), all(set(source) == {"b"} for source in sources)
    assert exact == (name in {*VERIFIED, "batch-recompute", "ffn-skip"})
    held = torch.tensor([[c in "brp" for c in source] for source in sources]).T[:, None, :, None]
    for before, now in zip(recorded, (model.cache.k, model.cache.v), strict=True):
        assert (((before - now)[:, :, :rows] * held).abs().max()) < 1e-4
    if exact and name != "ffn-skip":
        ids = [t.token_id for t in run.tokens]
        base = river_core.teacher_forced(model, one_tiny.prompt, ids, policy="backbone")
        assert found == river_core.earliest_safe_exits(model, base)


def test_kv_error_of_every_policy(one_tiny, policy_run):
    name, settings = policy_run
    model, tokens = one_tiny.load(bits=4), [3, 1, 4, 1, 5, 9, 2, 6, 5]
    if name in VERIFIED:
        with pytest.raises(SettingsError, match="verifies its own drafts, so what stays"):
            river_core.kv_error(model, one_tiny.prompt, tokens, **settings)
        return
    found = river_core.kv_error(model, one_tiny.prompt, tokens, **settings)
    lowest = {c.layer: c.value for c in found.layers}
    assert lowest[1] > 1 - 1e-6
    if name == "batch-recompute":
        assert min(lowest.values()) > 1 - 1e-6  # written late, but exactly
    elif name in ("state-propagation", "fixed-exit", "mono-decreasing", "ffn-skip"):
        assert lowest[model.num_layers] < 1 - 1e-6
    elif name in ("kv-mask", "mono-decreasing lens"):
        count = {c.layer: c.count for c in found.layers}
        assert count[1] == 8 > count.get(5, 0)  # slots without an entry are not compared
        assert found.pairs == ()


def test_a_cancelled_or_foreign_run_is_refused_in_one_sentence(one_tiny):
    model = one_tiny.load(bits=4)
    run = river_core.generate(model, one_tiny.prompt, max_new_tokens=3, policy="kv-mask",
                              exit="fixed", options={"exit_layer": 2})  # fmt: skip
    odd = dict(run.header.settings) | {"policy": "of a later version"}
    with pytest.raises(RecordError, match="cannot be replayed: unknown policy"):
        river_core.earliest_safe_exits(
            model, replace(run, header=replace(run.header, settings=odd))
        )
