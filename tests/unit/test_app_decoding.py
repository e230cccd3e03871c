"""Both lanes as one stream of events: given up half-way, and with a lane that is refused."""

from __future__ import annotations

from typing import Any

import pytest

from app.asked import ask
from app.decoding import decode
from app.runner import Runner
from river_core.errors import SettingsError
from river_core.records import TokenRecord
from tests.unit.app_engine import Engine, last, run


def test_a_stream_that_is_given_up_ends_quietly(engine: Engine, runner: Runner) -> None:
    last(runner.cards())
    asked = ask({"prompt": "hello", "threshold": 0.9, "max_new_tokens": 50})
    events = decode(engine, engine.model, asked, engine.Control, lambda: False)
    for _, event in events:
        if isinstance(event, TokenRecord):
            break
    events.close()  # a yield on the way out would be an error here


def test_a_refused_lane_leaves_the_other_ones_record(
    engine: Engine, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = engine.stream

    def stream(model: Any, prompt: str, **settings: Any) -> Any:
        if settings["policy"] == "backbone":
            raise SettingsError("policy 'backbone' needs all layers.")
        return plain(model, prompt, **settings)

    monkeypatch.setattr(engine, "stream", stream)
    view = last(run(runner, "hello", 0.9, 4, "s"))
    assert view["phase"] == "failed" and "needs all layers" in view["error"]
    assert view["lanes"]["upper"]["phase"] == "done"
    assert view["lanes"]["lower"]["phase"] == "failed"
    assert len(runner.record(view["run"], "upper")["tokens"]) == 4
