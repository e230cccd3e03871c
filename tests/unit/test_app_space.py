"""On a Space: which model, whether a GPU is lent, and a run in another process than the page's."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any

import pytest

from app.asked import Ask, ask
from app.decoding import lent_seconds
from app.runner import Runner
from app.space import GPU_MODEL, lends_gpu, suggested_model
from river_core.errors import ModelUnavailable, RiverError
from tests.unit.app_engine import Engine, last, run

ENDED = b"ended"


def in_another_process(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """As the Space's package does it: forked, arguments and results pickled."""

    def call(*arguments: Any) -> Iterator[Any]:
        context = get_context("fork")
        ours, theirs = context.Pipe()
        packed = pickle.dumps(arguments)

        def work() -> None:
            for value in function(*pickle.loads(packed)):
                theirs.send_bytes(pickle.dumps((os.getpid(), value)))
            theirs.send_bytes(ENDED)

        process = context.Process(target=work)
        process.start()
        try:
            while (data := ours.recv_bytes()) != ENDED:
                there, value = pickle.loads(data)
                assert there != os.getpid()
                yield value
        finally:
            process.terminate()
            process.join()

    return call


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A stand-in for the Space's package; the seconds that were asked for."""
    seconds: list[int] = []

    def gpu(duration: Callable[..., int]) -> Callable[..., Any]:
        def decorate(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
            def call(*arguments: Any) -> Iterator[Any]:
                seconds.append(duration(*arguments))
                return in_another_process(function)(*arguments)

            return call

        return decorate

    monkeypatch.setitem(sys.modules, "spaces", SimpleNamespace(GPU=gpu))
    return seconds


def test_both_lanes_are_one_call_in_another_process(asked_for: list[int]) -> None:
    engine = Engine()
    runner = Runner("m", engine=engine, lend=True)
    runner.start()
    assert runner.card.state == "ready" and "lent" in runner.card.message
    view = last(run(runner, "hello", 0.9, 3, "s"))
    assert view["phase"] == "done" and len(asked_for) == 1
    assert all(len(view["lanes"][lane]["tokens"].splitlines()) == 3 for lane in ("upper", "lower"))
    assert view["card"]["layers"] == 30 and view["preview"] is not None
    assert len(runner.record(view["run"], "lower")["tokens"]) == 3
    assert runner.compare("hello", "river", "backbone", threshold=0.9, max_new_tokens=2)
    assert engine.loads == 0  # only ever in the other process
    runner.close()


def test_an_error_there_is_one_sentence_here(asked_for: list[int]) -> None:
    engine = Engine()
    runner = Runner("m", engine=engine, lend=True)
    view = last(run(runner, "", 0.9, 3, "s"))
    assert view["phase"] == "failed" and "prompt is empty" in view["error"]
    engine.failures = [ModelUnavailable("no network.")] * 2
    assert "no network." in last(run(runner, "hello", 0.9, 3, "s"))["error"]
    with pytest.raises(RiverError, match="no network"):
        runner.generate("hello", max_new_tokens=2)
    runner.close()


def test_a_run_there_can_be_stopped(asked_for: list[int]) -> None:
    runner = Runner("m", engine=Engine(pause=0.02), lend=True)
    view: dict[str, Any] = {}
    for view in run(runner, "hello", 0.9, 500, "s"):
        if view["lanes"]["upper"]["tokens"]:
            runner.stop("s")
    assert view["phase"] == "stopped"
    runner.close()


def test_the_longer_the_answers_the_longer_the_loan() -> None:
    short, long = (ask({"prompt": "x", "max_new_tokens": n}) for n in (10, 1000))
    assert 60 <= lent_seconds(short) < lent_seconds(long) <= 300
    assert lent_seconds(Ask("x", {"upper": {"max_new_tokens": 10**6}})) == 300


@pytest.mark.parametrize(
    ("environment", "gpu", "model"),
    [
        ({}, True, "usual"),
        ({"SPACE_ID": "a/b"}, False, "usual"),
        ({"SPACE_ID": "a/b", "RIVER_MODEL": "a/gated"}, True, "a/gated"),
        ({"SPACE_ID": "a/b"}, True, GPU_MODEL),
        ({"SPACE_ID": "a/b", "SPACES_ZERO_GPU": "true"}, False, GPU_MODEL),
    ],
)
def test_a_space_with_a_gpu_takes_a_larger_model(
    environment: dict[str, str], gpu: bool, model: str
) -> None:
    assert suggested_model(environment, "usual", lambda: gpu) == model


def test_a_gpu_is_lent_where_the_space_says_so() -> None:
    assert lends_gpu({"SPACES_ZERO_GPU": "1"}) and not lends_gpu({"SPACES_ZERO_GPU": "0"})
    assert not lends_gpu({})
