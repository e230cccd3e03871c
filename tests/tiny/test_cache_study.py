"""`study` on a tiny model: lines against the functions that it stands on, and its tables."""

from __future__ import annotations

import json

import pytest

import river_core
from river_core import cache_study
from river_core.__main__ import main
from river_core.cells import Setting
from river_core.cli_study import BEGIN, END
from river_core.errors import SettingsError

TOKENS = 7


@pytest.fixture(scope="module")
def said():
    return []


@pytest.fixture
def lines(one_tiny, said):
    model = one_tiny.load(bits=4)
    chosen = cache_study.settings(model, [0.3], [3], "full")
    prompts = [one_tiny.prompt, one_tiny.prompt[:3]]
    study = cache_study.study(model, prompts, TOKENS, chosen, lambda *said_: said.append(said_))
    return json.loads(json.dumps(list(study)))


def test_lines_are_what_the_functions_give(one_tiny, lines, said):
    model, prompt = one_tiny.load(bits=4), one_tiny.prompt[:3]
    fixed = Setting("river", exit_layer=3, prefill="full")
    found = river_core.kv_error(model, prompt, max_new_tokens=TOKENS, **fixed.keywords())
    line = next(x for x in lines if x.get("exit_layer") == 3 and x["prompt"] == 1)
    assert line["cells"] == [
        pytest.approx([3, c.layer, c.key, c.value, c.count], abs=1e-6) for c in found.cells
    ]
    assert line["exits"] == [3] * (TOKENS - 1)
    base = river_core.generate(model, prompt, policy="backbone", max_new_tokens=TOKENS)
    safe = next(x for x in lines if x["type"] == "safe" and x["prompt"] == 1)
    assert tuple(safe["exits"]) == river_core.earliest_safe_exits(model, base).exits[1:]
    trace = next(x for x in lines if x["type"] == "trace" and x["prompt"] == 1)
    expected = [sum(layer) / (TOKENS - 1) for layer in zip(*base.full_trace[1:], strict=True)]
    assert trace["similarity"] == pytest.approx(expected, abs=1e-6)
    assert [share for _, share in said] == pytest.approx([n / 8 for n in range(8)])


def test_the_tables_hold_every_layer_and_token(one_tiny, lines):
    model = one_tiny.load(bits=4)
    head = cache_study.header(model, ["a", "b"], TOKENS)
    shown = "\n".join(cache_study.report(head, lines)).split("\n\n")
    assert [len(part.split("\n")) - 2 for part in shown[:3]] == [3, 5, model.num_layers]
    counts = [row.split("|")[2:4] for row in shown[3].split("\n")[2:]]
    assert [sum(int(c) for c in column) for column in zip(*counts, strict=True)] == [12, 12]


def test_what_the_model_cannot_do_is_refused_before_work(one_tiny):
    model = one_tiny.load(bits=4)
    own = cache_study.settings(model, [], None, "full")
    assert [(s.exit_layer, s.threshold) for s in own] == [
        (2, None),  # not 16: there are 5 layers
        (None, model.info.default_threshold),
    ]
    with pytest.raises(SettingsError, match="exit layer 9"):
        cache_study.settings(model, [], [9], "full")
    with pytest.raises(SettingsError, match="threshold is 2"):
        cache_study.settings(model, [2.0], [], "full")
    with pytest.raises(SettingsError, match="2 tokens"):
        list(cache_study.study(model, ["a"], 1, own, print))


def test_the_command_writes_its_report(one_tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("river_core.cli_cache.load_model", lambda args: one_tiny.load(bits=4))
    monkeypatch.setattr("river_core.sweep.bundled_prompts", lambda: [one_tiny.prompt])
    stem = tmp_path / "report"
    common = ["study", "--prompts", "1", "--tokens", "5", "--exit-layers", "2,3"]
    assert main([*common, "--report", str(stem)]) == 0
    shown = capsys.readouterr().out.strip()
    text = stem.with_suffix(".md").read_text(encoding="utf-8")
    assert text.split(BEGIN)[1].split(END)[0].strip() == shown
    head, *lines = map(json.loads, stem.with_suffix(".jsonl").read_text().splitlines())
    assert head["prompts"] == [one_tiny.prompt]
    assert "\n".join(cache_study.report(head, lines)) == shown
    assert main([*common, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == head


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tokens", "1"], "--tokens of 2"),
        (["--exit-layers", "2.5"], "--exit-layers is '2.5'"),
        (["--thresholds", "x"], "--thresholds is 'x'"),
        (["--report", "/no/such/folder/x"], "that folder does not exist"),
    ],
)
def test_one_sentence_for_what_is_wrong(arguments, words, capsys):
    assert main(["study", *arguments]) == 2
    assert words in capsys.readouterr().err
