"""The command line on the packaged model: output, files, and one sentence for what is wrong."""

from __future__ import annotations

import json

import pytest

from river_core.__main__ import COMMANDS, main, parser
from river_core.records import RunRecord

MODEL = ["--model", "smollm2-135m-packaged", "--dtype", "float16"]


def test_generate_saves_and_compare_reads(tmp_path, capsys):
    paths = [str(tmp_path / name) for name in ("backbone.jsonl", "river.jsonl")]
    common = [*MODEL, "--max-new-tokens", "8"]
    assert main(["generate", "Why is the sky blue?", *common, "--save", paths[1]]) == 0
    out = capsys.readouterr().out
    run = RunRecord.load(paths[1])
    assert run.text in out
    assert "8 tokens" in out
    assert "\x1b[" not in out  # not a terminal
    main(["generate", "Why is the sky blue?", *common, "--policy", "backbone", "--save", paths[0]])
    capsys.readouterr()
    assert main(["compare", *paths, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 <= found["match"] <= 1
    assert found["exits"][0] == {"30": 7}


def test_generate_with_a_part_of_the_backbone(capsys):
    assert (
        main(["generate", "Hi", *MODEL, "--max-new-tokens", "3", "--resident", "4", "--json"]) == 0
    )
    run = RunRecord.from_lines(capsys.readouterr().out.split("\n"))
    assert {(t.exit_layer <= 4, t.forced) for t in run.tokens} <= {(True, True), (True, False)}
    assert any(t.forced for t in run.tokens)
    assert {len(row) for row in run.full_trace} == {4}


def test_generate_json_is_the_record(capsys):
    assert main(["generate", "Hi", *MODEL, "--max-new-tokens", "3", "--json"]) == 0
    run = RunRecord.from_lines(capsys.readouterr().out.split("\n"))
    assert len(run.tokens) == 3
    assert len(run.full_trace) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "", *MODEL], "the prompt is empty"),
        (["generate", "x" * 100_000, *MODEL], "the cache holds"),
        (["generate", "Hi", *MODEL, "--threshold", "nan"], "threshold is nan"),
        (["generate", "Hi", *MODEL, "--threshold", "5"], "threshold is 5"),
        (["generate", "Hi", *MODEL, "--policy", "none"], "unknown policy"),
        (["generate", "Hi", *MODEL, "--resident", "31"], "can keep 1 "),
        (["generate", "Hi", *MODEL, "--resident", "4", "--policy", "backbone"], "set_resident(30)"),
        (["generate", "Hi", *MODEL, "--options", "{"], "not JSON"),
        (["generate", "Hi", *MODEL, "--max-new-tokens", "99999"], "99999 new ones"),
        (["generate", "Hi", "--model", "no-such-model"], "no-such-model"),
        (["generate", "Hi", *MODEL, "--save", "/no/such/folder/x"], "does not exist"),
        (["fetch", "no-such-model"], "no-such-model"),
        (["compare", "/no/such/a", "/no/such/b"], "cannot be read"),
        (["sweep", *MODEL, "--thresholds", "a,b"], "--thresholds"),
        (["sweep", *MODEL, "--tokens", "1"], "--tokens"),
        (["calibrate", *MODEL, "--tokens", "1"], "tokens is 1"),
    ],
    ids=lambda a: " ".join(a)[:40] if isinstance(a, list) else "",
)
def test_one_sentence_for_what_is_wrong(arguments, words, capsys):
    assert main(arguments) == 2
    err = capsys.readouterr().err
    *progress, sentence = err.splitlines()  # a slow load says how far it is
    assert sentence.startswith("river: ")
    assert words in sentence
    assert not any(line.startswith(("river: ", "Traceback")) for line in progress)
    assert "transformers" not in err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_complete(command, capsys):
    with pytest.raises(SystemExit) as caught:
        parser().parse_args([command, "--help"])
    assert caught.value.code == 0
    assert len(capsys.readouterr().out) > 80


def test_models_and_fetch(capsys):
    assert main(["fetch"]) == 0
    assert "smollm2-135m-packaged" in capsys.readouterr().out
    assert main(["models", "--json"]) == 0
    names = [m["name"] for m in json.loads(capsys.readouterr().out)]
    assert {"smollm2-135m", "smollm2-135m-packaged"} <= set(names)
