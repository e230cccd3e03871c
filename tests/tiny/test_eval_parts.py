"""`evaluate --threshold auto` and `--table4` on a tiny model, with a stand-in for the harness."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import river_core
from river_core import cli_evaluate, eval_report
from river_core.__main__ import main
from river_core.calibrate import calibrate
from river_core.calibration_store import CalibrationFile
from river_core.evaluate import Order
from river_core.resumable import Lines
from river_core.settings import QuantSpec


def evaluate_task(lm: Any, order: Order) -> dict[str, Any]:
    """Answers `limit` prompts by the scorer, keeping each as harness.RiverLM does."""
    for doc in range(order.limit or 1):
        written = lm.scorer.generate_until([3 + doc, 4, 5], max_new_tokens=4)
        line = {"part": lm.part, "type": "item", "task": order.task, "doc": doc, "asked": "x"}
        lm.file.append(line | {"answers": [vars(written)]})
    right = [1.0] * (order.limit or 1)
    found = {"metric": "acc,none", "score": 1.0, "stderr": None, "n": len(right), "right": right}
    return found | {"shots": [0]}


def stand_in_lm(scorer, file, part, seed, say):
    return SimpleNamespace(scorer=scorer, file=file, part=part)


@pytest.fixture
def loaded(one_tiny, tmp_path, monkeypatch):
    """The labels that were loaded; every river has a calibration of its own, stored nowhere yet."""
    names, made = [], {}

    def load(args):
        spec = QuantSpec.parse(args.river or "hqq-4bit-g64")
        names.append(spec.label)
        if spec.label not in made:
            settings = {"device": "cpu", "dtype": "float32", "river": spec}
            model = river_core.load(str(one_tiny.folder), **settings)
            store = CalibrationFile(tmp_path, "f" * 20, spec, 2)
            words = SimpleNamespace(decode=lambda ids, **_: " ".join(map(str, ids)))
            info = replace(model.info, calibration=store)
            made[spec.label] = replace(model, info=info, tokenizer=words, eos_ids=())
        return made[spec.label]

    harness = SimpleNamespace(RiverLM=stand_in_lm, evaluate_task=evaluate_task, HARNESS_VERSION="0")
    monkeypatch.setitem(sys.modules, "river_core.harness", harness)
    monkeypatch.setattr(river_core, "harness", harness, raising=False)
    monkeypatch.setattr(cli_evaluate, "load_model", load)
    return SimpleNamespace(names=names, load=load)


def calibrated(loaded, one_tiny, label="hqq-4bit-g64"):
    """Store a calibration and say which threshold any match is enough for."""
    model = replace(loaded.load(SimpleNamespace(river=label)), tokenizer=None)
    calibrate(model, prompts=[one_tiny.prompt], tokens=5)
    return model.info.calibration.load().smallest_threshold(0.0)


def run(tmp_path, *more):
    stem = tmp_path / "e"
    status = main(["evaluate", "--limit", "2", "--report", str(stem), *more])
    return status, Lines(stem.with_suffix(".jsonl"))


def test_auto_without_a_calibration_is_one_sentence(loaded, tmp_path, capsys):
    status, file = run(tmp_path, "--tasks", "river_math", "--threshold", "auto")
    said = capsys.readouterr().err
    assert status == 2
    assert "no calibration is stored" in said
    assert said.count("\n") == 1
    assert file.lines == []


def test_auto_is_resolved_and_tables_say_to_what(loaded, one_tiny, tmp_path, capsys):
    value = calibrated(loaded, one_tiny)
    more = ["--tasks", "river_math", "--policy", "backbone,river", "--target-match", "0"]
    status, file = run(tmp_path, *more, "--threshold", f"auto,{value!r}")
    assert status == 0
    rows = eval_report.rows(file)
    assert [(r["policy"], r["threshold"]) for r in rows] == [("backbone", None), ("river", value)]
    shown = capsys.readouterr().out
    assert f"| river_math | river, threshold {value:g} | text |" in shown
    assert "auto, target_match 0" in shown
    before = file.path.read_bytes()
    assert run(tmp_path, *more, "--threshold", "auto")[0] == 0
    assert file.path.read_bytes() == before


def test_table_4_has_every_row_once_and_goes_on(loaded, tmp_path, capsys):
    more = ["--table4", "--back-ends", "hqq-4bit-g64,rtn-4bit-g64", "--threshold", "0.5"]
    assert run(tmp_path, *more)[0] == 0
    shown = capsys.readouterr().out
    status, file = run(tmp_path, *more, "--json")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert status == 0
    assert loaded.names == ["hqq-4bit-g64", "rtn-4bit-g64"] * 2
    found = [(r["policy"], r["back_end"], r["items"]) for r in rows]
    assert found == [
        ("backbone", "none", 2),
        ("river", "hqq-4bit-g64", 2),
        ("full-quant", "hqq-4bit-g64", 2),
        ("river", "rtn-4bit-g64", 2),
        ("full-quant", "rtn-4bit-g64", 2),
    ]
    assert all(r["tokens_per_second"] > 0 for r in rows)
    assert "| River + `hqq-4bit-g64` | 0.5 | 45.0 | 74.4 | 0.5 | " in shown
    assert "Table 2" not in file.path.with_suffix(".md").read_text()
    assert len(file.lines) == 5 * (1 + 2 + 1)
    reverse = ["--table4", "--back-ends", "rtn-4bit-g64,hqq-4bit-g64", "--threshold", "0.5"]
    assert run(tmp_path, *reverse)[0] == 0  # the backbone's rows are of no back end
    assert len(Lines(file.path).lines) == len(file.lines)


def test_table_4_takes_the_default_threshold_and_each_rivers_auto(loaded, one_tiny, tmp_path):
    labels = ("hqq-4bit-g64", "rtn-4bit-g64")
    values = [calibrated(loaded, one_tiny, label) for label in labels]
    more = ["--table4", "--back-ends", ",".join(labels), "--target-match", "0"]
    rows = eval_report.rows(run(tmp_path, *more, "--threshold", "auto")[1])
    assert [r["threshold"] for r in rows if r["policy"] == "river"] == values
    (tmp_path / "e.jsonl").unlink()
    rows = eval_report.rows(run(tmp_path, *more)[1])
    default = loaded.load(SimpleNamespace(river=None)).info.default_threshold
    assert [r["threshold"] for r in rows if r["policy"] == "river"] == [default, default]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--back-ends", "hqq-4bit-g64"], "belongs to --table4"),
        (["--table4", "--policy", "river"], "has its own policies"),
        (["--table4", "--river", "rtn-4bit-g64"], "has its own policies"),
        (["--table4", "--back-ends", "16bit"], "name one"),
        (["--table4", "--back-ends", "best"], "use method, bits and group size"),
        (["--threshold", "auto", "--target-match", "2"], "target_match is 2"),
    ],
)
def test_what_does_not_belong_together_is_refused_before_loading(
    loaded, tmp_path, capsys, arguments, sentence
):
    assert run(tmp_path, *arguments)[0] == 2
    assert sentence in capsys.readouterr().err
    assert loaded.names == []
