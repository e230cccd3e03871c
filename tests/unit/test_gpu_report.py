"""The GPU report without a GPU: its dry run, and items that fail or hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from river_core import gpu_decode_items, gpu_items, gpu_kernel_items, gpu_report
from river_core.bench_report import table
from river_core.errors import KernelUnavailable, RiverError, SettingsError
from river_core.gpu_bench import Bench, built, find_item
from river_core.kernels import choose, torch_int4
from river_core.kernels.base import QuantMatrix

ROOT = Path(__file__).parents[2]
HEAVY = {"gguf", "gradio", "hqq", "pandas", "plotly", "transformers", "triton"}


@pytest.mark.parametrize(
    ("code", "data", "error"),
    [
        ("raise ValueError('no such thing')", None, "exit status 1: ValueError: no such thing"),
        ("import os; os._exit(3)", None, "exit status 3: no message"),
        ("import time; time.sleep(60)", None, "stopped after its limit of 3 s"),
        (
            "import time; print('{\"a\": 1}', flush=True); print('{\"b'); time.sleep(60)",
            {"a": 1},
            "stopped after its limit of 3 s",
        ),
        ("print('{\"a\": 1}'); 1 / 0", {"a": 1}, "ZeroDivisionError: division by zero"),
        ("print('half a resu')", None, "it printed no result"),
        ("print('{\"a\": 1}'); print('noise'); print('{\"b\": 2}')", {"a": 1, "b": 2}, None),
    ],
)
def test_an_item_that_fails_keeps_what_it_found(
    code: str, data: dict[str, int] | None, error: str | None
) -> None:
    limit = 3 if "sleep" in code else 60
    result = gpu_report.run_item("x", [sys.executable, "-c", code], limit)
    assert result.data == data
    assert (error or "") in (result.error or "")
    assert (result.error is None) == (error is None)
    shown = "\n".join(gpu_report.text(result))
    assert ("FAILED: " in shown) == (error is not None)
    assert ("a  " in shown) == (data is not None)


def quick(name: str, dry_run: bool) -> list[str]:
    """An item's command that only fails or not."""
    code = "1 / 0" if name == "roof" else "print('{}')"
    return [sys.executable, "-c", code]


def test_the_other_items_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_report, "item_command", quick)
    results = list(gpu_report.collect(True, 60))
    assert [r.name for r in results] == list(gpu_report.ITEMS) == list(gpu_items.ITEMS)
    assert [r.name for r in results if r.error] == ["roof"]


def test_the_whole_programme_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_report, "item_command", quick)
    monkeypatch.setattr(gpu_report, "TOTAL", gpu_report.LEAST + 0.001)
    first, *others = gpu_report.collect(True)
    assert first.error is None
    assert {r.error for r in others} == {f"left out: {gpu_report.TOTAL:g} s are over"}
    assert all(limit <= 120 for limit in gpu_report.LIMITS.values())


def test_results_are_there_before_the_next_item_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_report, "item_command", quick)
    files = gpu_report.ReportFiles(tmp_path / "r.jsonl", dry_run=True)
    results = gpu_report.collect(True, 60)
    files.add(next(results))
    results.close()  # as a run that is killed
    (line,) = (tmp_path / "r.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["name"] == "machine"
    assert "== machine" in (tmp_path / "r.txt").read_text(encoding="utf-8")
    with pytest.raises(SettingsError, match="for JSON Lines"):
        gpu_report.ReportFiles(tmp_path / "r.txt", dry_run=True)
    with pytest.raises(SettingsError, match="cannot be written"):
        gpu_report.ReportFiles(tmp_path / "no" / "r.jsonl", dry_run=True)


def test_a_wrong_int4_kernel_fails_its_item(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(matrix: QuantMatrix) -> torch.Tensor:
        return right(matrix).roll(1, dims=0)

    right = torch_int4._scales_and_zeros
    monkeypatch.setattr(torch_int4, "_scales_and_zeros", shifted)
    with pytest.raises(RiverError, match="aten-int4"):
        list(gpu_kernel_items.kernels(Bench.open(True)))


def test_kernels_that_join_the_tables_join_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one name's beginning, whoever makes them; one that cannot be made says why."""

    def unbuilt(weight: torch.Tensor) -> choose.Linear:
        raise KernelUnavailable("this kernel needs a GPU.")

    monkeypatch.setitem(choose.CODED, "triton-int4", choose.CODED["aten-int4"])
    monkeypatch.setitem(choose.CODED_ON, ("cpu", 4), ["aten-int4", "triton-int4"])
    monkeypatch.setitem(choose.DENSE, "triton", unbuilt)
    monkeypatch.setitem(choose.DENSE_ON, "cpu", ["torch", "triton"])
    found: dict[str, object] = {}
    for facts in gpu_kernel_items.kernels(Bench.open(True)):
        found |= facts
    assert "own kernels" not in found
    rows = found["qkv 256x128"]
    assert isinstance(rows, list)
    names = [row["kernel"] for row in rows]
    unmade = "triton-bf16: this kernel needs a GPU."
    assert names == ["torch bf16", unmade, "aten-int4", "triton-int4"]
    assert rows[-1]["us issued"] > 0


def test_a_way_that_differs_from_eager_torch_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_decode_items, "CLOSE", -1.0)
    with pytest.raises(RiverError, match="differ from eager"):
        list(gpu_decode_items.smoke(Bench.open(True)))


def test_parts_that_are_not_built_are_none() -> None:
    assert built("execution.no_such_part") is None
    assert built("kernels.base") is not None
    with pytest.raises(SettingsError, match="unknown item 'x'"):
        find_item(gpu_items.ITEMS, "x")


def test_tables_of_rows_with_different_columns() -> None:
    rows = [{"a": 1}, {"a": 2, "b": 3}]
    result = gpu_report.ItemResult("x", 1.0, {"found": rows})
    *_, title, first, second = gpu_report.text(result)
    assert [title.split(), first.split(), second.split()] == [["a", "b"], ["1", "-"], ["2", "3"]]
    assert list(table(["a", ""], [["1", ""]])) == ["a", "1"]


def test_dry_run_of_the_gpu_report(tmp_path: Path) -> None:
    """All items in processes of their own, with torch alone: the heavy libraries are missing there.

    The parent imports nothing heavy, torch included.
    """
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({HEAVY}))\n",  # importing one now fails
        encoding="utf-8",
    )
    code = """
import sys
from river_core.__main__ import main
status = main(["bench", "--gpu-report", "--dry-run", "--save", sys.argv[1]])
print(status, "torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "report.jsonl")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    *shown, status = done.stdout.splitlines()
    assert status == "0 False"
    lines = (tmp_path / "report.jsonl").read_text(encoding="utf-8").splitlines()
    items = {item["name"]: item["data"] for item in map(json.loads, lines)}
    assert list(items) == list(gpu_report.ITEMS)
    assert items["machine"]["torch"] == torch.__version__
    assert items["roof"]["read GB/s"] > 0
    assert items["latency"]["us per decision, polled in Python"] > 0
    assert items["smoke"]["twice identical"] is True
    assert items["smoke"]["logits against eager torch, relative"] < 0.05
    assert all(row["error"] < 0.02 for row in items["kernels"]["out 128x128"])
    assert len(items["kernels"]["out 128x128"]) >= 2
    exits = {row["name"]: row["exit layer"] for row in items["decode"]["rows"]}
    assert exits["backbone"] == 8
    assert exits["River, forced exits 3.79"] == pytest.approx(3.79, abs=0.3)
    graphs = [row["name"] for row in items["decode"]["graphs"]]
    ways = "per-layer graphs", "suffix graphs"
    assert graphs == [
        f"{n}, {way}" for n in ("backbone", "River, forced exits 3.79") for way in ways
    ]
    assert items["memory"]["ledger / formula"] == pytest.approx(1, abs=0.03)
    assert items["memory"]["same tokens restored"] is True
    missing = "transformers is not installed; pip install transformers."
    assert items["hugging face"]["left out"] == missing
    text = (tmp_path / "report.txt").read_text(encoding="utf-8")
    assert text.splitlines() == shown
    assert "Dry run" in shown[0]


def test_the_last_item_where_transformers_is_there() -> None:
    facts = {
        k: v for part in gpu_items.ITEMS["hugging face"](Bench.open(True)) for k, v in part.items()
    }
    assert "tok/s" in facts["Hugging Face generate, bfloat16"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU")
def test_gpu_report_without_a_gpu_is_one_sentence() -> None:
    with pytest.raises(KernelUnavailable, match="--dry-run"):
        next(gpu_report.collect(False, 60))
