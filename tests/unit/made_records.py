"""Run records made by hand, for tests that need no model."""

from __future__ import annotations

from river_core.records import CacheUpdate, PromptRecord, RunHeader, RunRecord, RunSummary
from river_core.records import TokenRecord as Token


def token(
    index: int, token_id: int, exit_layer: int = 2, layers: int = 4, text: str = "x"
) -> Token:
    """A token of a model with `layers` layers and a prompt of three rows."""
    path = "b" * exit_layer + "r" * (layers - exit_layer)
    return Token(
        index=index,
        position=3 + index,
        token_id=token_id,
        text=text,
        exit_layer=exit_layer,
        forced=False,
        threshold=0.9,
        similarities=(0.0123, 0.9312, 0.5, 0.6)[:exit_layer],
        path=path,
        kv_source=path,
        logprob=-0.21,
        entropy=0.83,
        alternatives=((token_id, text, -0.21), (token_id + 1, "y", -2.0)),
        seconds=0.0141 * index,
    )


def run(ids: list[int], *, forced: bool = False, prompt: tuple[int, ...] = (5, 6, 7)) -> RunRecord:
    """A whole run that chose `ids`."""
    header = RunHeader(
        model="made",
        origin="by hand",
        revision=None,
        num_layers=4,
        entry_layer=2,
        quantisation="hqq-4bit-g64",
        device="cpu",
        settings={"policy": "river"},
        seed=0,
        forced_tokens=forced,
    )
    first = PromptRecord(prompt, ("a", "b", "c"), 2, (0.1, 0.95), ("bbrr",) * 3, 0.05, True)
    summary = RunSummary(
        "length", 0.05, 0.1, 20.0, 2.0, 0.5, 15.0, {"kv": 10}, {"drafted": 0}, {}, "cpu", {}
    )
    tokens = tuple(token(n, i) for n, i in enumerate(ids))
    return RunRecord(header, first, tokens, (CacheUpdate(3, (3, 4), "b", 2),), summary)
