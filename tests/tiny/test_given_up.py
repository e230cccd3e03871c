"""Long work in pieces: the same records as in one, and given up in the middle of a layer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest

import river_core
from river_core.cells import Setting, Study
from river_core.errors import RiverError
from river_core.execution import eager
from river_core.kv_error import CacheReference
from river_core.resumable import Lines
from tests.tiny.test_hard_cases import CancelAt, timeless

POLICIES = [("backbone", None), ("river", "full"), ("river", "exit"), ("kv-mask", None),
            ("adaskip", None)]  # fmt: skip


@pytest.fixture(params=[1, 3, 5])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows that go through a layer together."""
    monkeypatch.setattr(eager, "PIECE", request.param)
    return int(request.param)


@pytest.mark.parametrize(("policy", "prefill"), POLICIES)
def test_pieces_make_the_same_run(
    one_tiny, monkeypatch: pytest.MonkeyPatch, policy: str, prefill: str | None
) -> None:
    model, keys = one_tiny.load(bits=4), {"max_new_tokens": 6}
    prompt = [3 + n % 40 for n in range(11)]
    runs = []
    for piece in (1024, 5, 3):
        monkeypatch.setattr(eager, "PIECE", piece)
        run = river_core.generate(
            model, prompt, policy=policy, prefill=prefill, full_trace=True, **keys
        )
        runs.append(run)
    whole = runs[0]
    for run in runs[1:]:
        assert [t.token_id for t in run.tokens] == [t.token_id for t in whole.tokens]
        assert run.kv_final == whole.kv_final
        assert run.prompt.similarities == pytest.approx(whole.prompt.similarities, abs=1e-5)
        for one, other in zip(run.full_trace, whole.full_trace, strict=True):
            assert one == pytest.approx(other, abs=1e-5)


def test_building_the_rivers_first_layers_is_given_up(one_tiny) -> None:
    """Between two of them; those that were built stay, and the next run goes on from there."""
    model = river_core.load(one_tiny.folder, dtype="float32", entry_layer=4)
    keys: dict[str, Any] = {"policy": "full-quant", "max_new_tokens": 3}
    run = river_core.generate(model, [5, 6, 7], control=cast(Any, CancelAt(2)), **keys)
    assert run.summary.stop_reason == "cancelled"
    assert not run.tokens
    assert [twin is not None for twin in model.river] == [True, True, False, True, True]
    whole = river_core.generate(model, [5, 6, 7], **keys)
    again = river_core.load(one_tiny.folder, dtype="float32", entry_layer=4)
    assert timeless(whole) == timeless(river_core.generate(again, [5, 6, 7], **keys))


@pytest.mark.parametrize("prefill", ["full", "exit"])
def test_a_prompt_is_given_up_within_a_layer(one_tiny, pieces: int, prefill: str) -> None:
    model = one_tiny.load(bits=4)
    prompt = [3 + n % 40 for n in range(11)]
    keys: dict[str, Any] = {"max_new_tokens": 3, "threshold": 0.1, "full_trace": False}
    fresh = river_core.generate(model, prompt, prefill=prefill, **keys)
    looks = model.num_layers * -(-len(prompt) // pieces)
    for moment in range(looks):
        control: Any = CancelAt(moment)
        stream = river_core.stream(model, prompt, control=control, prefill=prefill, **keys)
        given_up = [type(record).__name__ for record in stream]
        assert given_up == ["PromptRecord", "RunSummary"]
        record = stream.record()
        assert len(record.prompt.similarities) == record.prompt.exit_layer
        assert record.summary.stop_reason == "cancelled"
    again = river_core.generate(model, prompt, prefill=prefill, **keys)
    assert timeless(again) == timeless(fresh)


def test_a_trace_that_was_cancelled_is_left_out(one_tiny, pieces: int) -> None:
    model = one_tiny.load(bits=4)
    stream = river_core.stream(model, one_tiny.prompt, max_new_tokens=4)
    list(stream)
    control: Any = CancelAt(2)
    assert stream.record(full_trace=True, control=control).full_trace is None
    assert len(stream.record(full_trace=True).full_trace) == 4


def test_the_search_for_safe_exits_is_given_up(one_tiny) -> None:
    model = one_tiny.load(bits=4)
    run = river_core.generate(model, one_tiny.prompt, max_new_tokens=4, policy="backbone")
    found = river_core.earliest_safe_exits(model, run)
    for moment in range(2 * model.num_layers):
        control: Any = CancelAt(moment)
        with pytest.raises(RiverError, match="was stopped"):
            river_core.earliest_safe_exits(model, run, control=control)
    assert river_core.earliest_safe_exits(model, run) == found


def refused(work: Callable[[], Any]) -> str:
    """Why `work` was refused, or nothing."""
    try:
        work()
    except RiverError as error:
        return str(error)
    return ""


def untimed(file: Lines) -> list[dict[str, Any]]:
    """A study's lines without what no two runs share."""
    return [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in file.lines]


def test_a_study_is_given_up_within_a_step_and_writes_nothing_of_it(one_tiny, tmp_path) -> None:
    """A control that cancels itself at every moment in turn: only whole lines, and resumable."""
    model, prompts = one_tiny.load(bits=4), [one_tiny.prompt[:3]]
    settings = [Setting("backbone"), Setting("river", "none"), Setting("river", threshold=0.5)]

    def measure(name: str, moment: int | None) -> Lines:
        file = Lines(tmp_path / f"{name}.jsonl")
        control: Any = None if moment is None else CancelAt(moment)
        study = Study(file, "p", model, prompts, 3, lambda *_: None, control)
        study.quality(settings)
        study.speed(settings, 1)
        return file

    whole = untimed(measure("whole", None))
    assert {line["type"] for line in whole} == {"cell", "skipped", "time"}
    sizes = set()
    for moment in itertools.count(0, 5):
        reason = refused(lambda at=moment: measure(str(at), at))
        if not reason:
            break
        assert reason == "the measurement was stopped."
        part = untimed(Lines(tmp_path / f"{moment}.jsonl"))
        assert part == whole[: len(part)]
        sizes.add(len(part))
        if moment % 3 == 0:
            assert untimed(measure(str(moment), None)) == whole
    assert len(sizes) > 3


@pytest.mark.parametrize("forced", [False, True])
def test_a_comparison_of_caches_is_given_up(one_tiny, forced: bool) -> None:
    model, ids = one_tiny.load(bits=4), [5, 6, 7] if forced else None
    reference = CacheReference.of(model, one_tiny.prompt, ids, max_new_tokens=3)
    found = reference.against(model, threshold=0.5)[1]
    for moment in range(3 * model.num_layers):
        for work in (
            lambda control: CacheReference.of(
                model, one_tiny.prompt, ids, max_new_tokens=3, control=control
            ),
            lambda control: reference.against(model, threshold=0.5, control=control),
        ):
            with_it: Any = CancelAt(moment)
            reason = refused(lambda one=work, given=with_it: one(given))
            assert "was stopped" in reason or moment > model.num_layers
    assert reference.against(model, threshold=0.5)[1] == found
