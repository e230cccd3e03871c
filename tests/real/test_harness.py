"""Scores through our loop equal those of the harness's own Hugging Face model, item by item.

Same weights, fp32, same harness, same items; needs the extra `eval` (lm-eval), which CI leaves out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="lm-eval is not installed (extra `eval`; CI leaves it out)")

from river_core import cli_evaluate, eval_report, harness
from river_core.__main__ import main
from river_core.errors import SettingsError
from river_core.evaluate import Order, Scorer
from river_core.resumable import Lines

LIMIT = {"river_choice": 5, "river_math": 2, "river_code": 2}
NEW_TOKENS = 24


def shorter(requests: list[Any]) -> list[Any]:
    """Requests that ask for fewer tokens, so that the test is quick."""
    for request in requests:
        request.arguments = (request.args[0], {**request.args[1], "max_gen_toks": NEW_TOKENS})
    return requests


class Ours(harness.RiverLM):
    def generate_until(self, requests, disable_tqdm=False):
        return super().generate_until(shorter(requests))


@pytest.fixture(scope="module")
def theirs(load_packaged):
    """The harness's own Hugging Face model over the packaged weights."""
    huggingface = pytest.importorskip("lm_eval.models.huggingface")

    class Theirs(huggingface.HFLM):
        def generate_until(self, requests, disable_tqdm=False):
            return super().generate_until(shorter(requests))

    path = str(load_packaged().path)
    return Theirs(pretrained=path, dtype="float32", device="cpu", batch_size=1)


def run(lm: Any, task: str) -> dict[str, Any]:
    """The harness over the first items of a task; its whole answer."""
    manager = harness.TaskManager(include_path=str(harness.OWN_TASKS), include_defaults=False)
    return harness.simple_evaluate(
        model=lm,
        tasks=[task],
        limit=LIMIT[task],
        bootstrap_iters=10,
        task_manager=manager,
        confirm_run_unsafe_code=True,
    )


def ours(model: Any, path: Path, **more: Any) -> Any:
    file = Lines(path)
    file.begin("p", {})
    scorer = Scorer(model, {"policy": "backbone"}, **more)
    return Ours(scorer, file, "p", 0, lambda text, share: None)


def scored(found: dict[str, Any], task: str) -> list[Any]:
    return [sample["resps"] for sample in found["samples"][task]]


@pytest.mark.parametrize("scoring", ["sequence", "token"])
def test_choices_are_scored_as_by_the_harness(theirs, load_packaged, tmp_path, scoring):
    lm = ours(load_packaged("float32"), tmp_path / "a.jsonl", scoring=scoring)
    mine, other = run(lm, "river_choice"), run(theirs, "river_choice")
    pairs = list(zip(scored(mine, "river_choice"), scored(other, "river_choice"), strict=True))
    assert len(pairs) == LIMIT["river_choice"]
    for a, b in pairs:
        ours_all, theirs_all = ([option[0] for option in item] for item in (a, b))
        for (score, greedy), (expected, also) in zip(ours_all, theirs_all, strict=True):
            assert score == pytest.approx(expected, abs=1e-3)
            assert greedy == also
        best = [max(range(4), key=lambda n: item[n][0]) for item in (ours_all, theirs_all)]
        assert best[0] == best[1]
    assert mine["results"] == other["results"]


@pytest.mark.parametrize("task", ["river_math", "river_code"])
def test_text_is_the_harnesss(theirs, load_packaged, tmp_path, task):
    lm = ours(load_packaged("float32"), tmp_path / "a.jsonl")
    mine, other = run(lm, task), run(theirs, task)
    assert scored(mine, task) == scored(other, task)
    assert any(sample[0][0] for sample in scored(mine, task))
    assert mine["results"] == other["results"]


def test_whole_texts_are_scored_as_by_the_harness(theirs, load_packaged, tmp_path):
    from lm_eval.api.instance import Instance

    texts = ["The river runs to the sea.", "One two three four five"]

    def asked():
        return [
            Instance("loglikelihood_rolling", {}, (text,), 0, ("t", n, 1))
            for n, text in enumerate(texts)
        ]

    lm = ours(load_packaged("float32"), tmp_path / "a.jsonl")
    expected = theirs.loglikelihood_rolling(asked())
    assert lm.loglikelihood_rolling(asked()) == pytest.approx(expected, abs=1e-3)
    assert lm.prefix_token_id == theirs.prefix_token_id
    assert lm.tok_encode("<|im_start|>user") == theirs.tok_encode("<|im_start|>user")
    history = [{"role": "user", "content": "Hello"}]
    assert lm.apply_chat_template(history) == theirs.apply_chat_template(history)


def test_a_restart_answers_nothing_twice(load_packaged, tmp_path, monkeypatch):
    model, path = load_packaged("float32"), tmp_path / "a.jsonl"
    first = run(ours(model, path), "river_choice")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]) + lines[4][:20])  # stopped within the fourth item
    asked = []
    score = Scorer.loglikelihood

    def counted(self, context, continuation):
        asked.append(continuation)
        return score(self, context, continuation)

    monkeypatch.setattr(Scorer, "loglikelihood", counted)
    again = run(ours(model, path), "river_choice")
    assert again["results"] == first["results"]
    assert len(asked) == 4 * (LIMIT["river_choice"] - 3)
    run(ours(model, path), "river_choice")
    assert len(asked) == 4 * (LIMIT["river_choice"] - 3)


def test_the_command_writes_rows_tables_and_goes_on(tmp_path, capsys):
    stem = tmp_path / "e"
    arguments = ["evaluate", "--model", "smollm2-135m-packaged", "--dtype", "float32", "--limit"]
    more = ["--tasks", "river_choice", "--scoring", "sequence,token", "--report", str(stem)]
    policies = ["--policy", "river,river-verified", "--threshold", "0.9"]
    assert main([*arguments, "2", *more, *policies]) == 0
    shown = capsys.readouterr().out
    assert "| river_choice | river, threshold 0.9 | token |" in shown
    assert "Left out: river_choice, river-verified" in shown
    before = stem.with_suffix(".jsonl").read_bytes()
    assert main([*arguments, "2", *more, *policies, "--json"]) == 0
    assert stem.with_suffix(".jsonl").read_bytes() == before
    text = stem.with_suffix(".md").read_text()
    assert "#### Table 2" in text
    rows = eval_report.rows(Lines(stem.with_suffix(".jsonl")))
    assert [row["scoring"] for row in rows] == ["sequence", "token", "sequence"]


@pytest.fixture
def only_own_tasks(monkeypatch):
    """Without the harness's own tasks: reading all of those takes long."""
    real = harness.TaskManager
    monkeypatch.setattr(
        harness,
        "TaskManager",
        lambda include_path, include_defaults: real(
            include_path=include_path, include_defaults=False
        ),
    )


def test_code_is_not_run_without_leave(load_packaged, tmp_path, only_own_tasks):
    lm = ours(load_packaged("float32"), tmp_path / "a.jsonl")
    with pytest.raises(SettingsError, match="--allow-code"):
        harness.evaluate_task(lm, Order("river_code", limit=1))
    text = (harness.OWN_TASKS / "river_code.yaml").read_text()
    text = text.replace("!function local", f"!function {harness.OWN_TASKS / 'local'}")
    (tmp_path / "other.yaml").write_text(text.replace("task: river_code", "task: other"))
    order = Order("other", limit=1, allow_code=True, include=str(tmp_path))
    with pytest.raises(SettingsError, match="outside our sandbox"):
        harness.evaluate_task(lm, order)


def test_an_unknown_task_is_one_sentence(load_packaged, tmp_path, only_own_tasks):
    lm = ours(load_packaged("float32"), tmp_path / "a.jsonl")
    with pytest.raises(SettingsError, match="no_such_task cannot be run"):
        harness.evaluate_task(lm, Order("no_such_task", limit=1))


def test_the_papers_tasks_exist():
    manager = harness.TaskManager(include_path=str(harness.OWN_TASKS))
    known = {*manager.all_tasks}
    for name in cli_evaluate._tasks("paper"):
        assert name in known, name


def test_a_group_that_does_not_say_how_to_count_is_the_mean_over_items(
    load_packaged, tmp_path, only_own_tasks
):
    text = (harness.OWN_TASKS / "river_choice.yaml").read_text()
    text = text.replace("!function local", f"!function {harness.OWN_TASKS / 'local'}")
    (tmp_path / "one.yaml").write_text(text.replace("task: river_choice", "task: one"))
    (tmp_path / "both.yaml").write_text("group: river_both\ntask: [one, river_choice]\n")
    lm = ours(load_packaged("float32"), tmp_path / "a.jsonl")
    found = harness.evaluate_task(lm, Order("river_both", limit=1, include=str(tmp_path)))
    assert found["n"] == 2
    assert found["score"] in (0.0, 1.0)
    assert found["stderr"] is None
    assert found["shots"] == [0]
    assert {line["task"] for line in lm._kept.of("p", "item")} == {"one", "river_choice"}
