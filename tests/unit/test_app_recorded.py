"""Recorded runs: what the shipped ones hold, the live path's snapshot, and hostile files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app import export
from app.recorded import LARGEST, parse, read, recorded_run, view
from app.shipped import RUNS, SHIPPED, shipped
from app.views.run import ModelCard, Run
from app.views.snapshot import append, snapshot
from river_core.errors import RecordError
from tests.unit.made_records import run

TEXT = "\n".join([*run([1, 2, 3]).lines(), *run([1, 2, 4]).lines()])


def test_the_shipped_runs_hold_both_lanes_and_every_layer() -> None:
    assert len(shipped()) >= 2
    for path in RUNS.glob("*.jsonl"):
        assert path.stat().st_size < 300_000
        recipe = SHIPPED[path.stem]
        for record, settings in zip(read(path), (recipe.upper, recipe.lower), strict=True):
            assert settings.items() <= record.header.settings.items()
            assert record.full_trace and {len(row) for row in record.full_trace} == {30}


def test_a_recorded_run_has_the_snapshot_of_the_live_path() -> None:
    records = parse(TEXT, "made")
    live = Run("recorded made", "done")
    for lane, record in zip(live.lanes, records, strict=True):
        lane.num_layers, lane.phase, lane.policy = 4, "done", "river"
        lane.prompt, lane.summary = record.prompt, record.summary
        lane.updates = list(record.updates)
        for token in record.tokens:
            append(lane, token)
    card = ModelCard("ready", "Ready", "made")
    assert snapshot(recorded_run(records, "made"), card) == snapshot(live, card)
    assert view(records[:1], "alone")["lanes"]["lower"]["tokens"] == ""


def changed(kind: str, **values: Any) -> str:
    lines = [json.loads(line) for line in TEXT.split("\n")]
    for line in lines:
        if line["type"] == kind:
            line.update(values)
    return "\n".join(map(json.dumps, lines))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        "{}",
        TEXT + "\n" + TEXT,
        changed("header", schema=99),
        changed("header", num_layers=10**9),
        changed("header", num_layers="4"),
        changed("prompt", texts=[1, 2, 3]),
        changed("prompt", token_ids=None),
        changed("token", exit_layer=True),
        changed("token", index=0),
        changed("token", text={"a": 1}),
        changed("token", raw="zz"),
        changed("token", similarities=[float("nan"), 0.1]),
        changed("token", seconds=10**400),
        changed("token", kv_source="b"),
        changed("token", alternatives=[["x", "y", 0.1]]),
        changed("token", surprise=1),
        changed("summary", stop_reason="<script>"),
        changed("summary", memory=[1]),
        changed("summary", memory={"kv": -1}),
    ],
)
def test_a_file_that_is_no_recorded_run_is_refused(text: str) -> None:
    with pytest.raises(RecordError):
        parse(text, "made")


def test_huge_missing_and_binary_files_are_refused(tmp_path: Path) -> None:
    big, binary = tmp_path / "big", tmp_path / "binary"
    big.write_bytes(b" " * (LARGEST + 1))
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (big, binary, tmp_path / "none", tmp_path):
        with pytest.raises(RecordError):
            read(path)


def test_script_in_a_text_stays_data_in_the_export(tmp_path: Path) -> None:
    source, out = tmp_path / "run.jsonl", tmp_path / "run.html"
    source.write_text(changed("token", text="</script><script>alert(1)</script>"))
    export.main(["--run", str(source), "--out", str(out)])
    text = out.read_text()
    assert "<script>alert" not in text and text.count("</script>") == 4
    source.write_text("{}")
    with pytest.raises(SystemExit, match="river: "):
        export.main(["--run", str(source)])


def test_the_first_screen_needs_no_torch() -> None:
    code = "import app.runner, app.ui, app.theme, sys; app.theme.launch_options();"
    code += "print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
