"""KV error and earliest safe exits on the packaged model, a dozen tokens."""

from __future__ import annotations

import river_core
from river_core.kv_error import kv_error
from river_core.safe_exits import earliest_safe_exits
from river_core.sweep import bundled_prompts

PROMPT = bundled_prompts()[0]


def test_keys_and_values_stay_close_to_the_backbones(load_packaged):
    """Paper Fig. 5: exact up to the exit layer, then nearly parallel."""
    model = load_packaged()
    fixed = {"exit": "fixed", "options": {"exit_layer": 16}}
    found = kv_error(model, PROMPT, max_new_tokens=12, prefill="full", **fixed)
    assert [(c.exit_layer, c.layer, c.count) for c in found.cells] == [
        (16, layer, 11) for layer in range(1, model.num_layers + 1)
    ]
    for cell in found.cells:
        if cell.layer <= 16:
            assert min(cell.key, cell.value) > 1 - 1e-6
        else:
            assert 0.9 < min(cell.key, cell.value) < 1 - 1e-6
    assert len(found.pairs) == 11
    assert found.correlation is not None


def test_leaving_at_the_safe_exits_gives_the_full_depth_tokens(load_packaged):
    """One token at a time: earlier rows as recorded, the last pass leaves where it says."""
    model, count = load_packaged(), 6
    run = river_core.generate(model, PROMPT, policy="backbone", max_new_tokens=count)
    found = earliest_safe_exits(model, run)
    layers = model.num_layers
    for last in range(1, count):
        schedule = [*[layers] * last, found.exits[last]]
        settings = {"exit": "schedule", "options": {"exit_layers": schedule}, "full_trace": False}
        again = river_core.generate(model, PROMPT, max_new_tokens=last + 1, **settings)
        assert again.tokens[-1].token_id == run.tokens[last].token_id
    assert found.sequence_maximum == max(found.exits[1:]) <= layers
