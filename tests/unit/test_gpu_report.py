"""The GPU report without a GPU: its dry run, and items that fail or hang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from river_core import gpu_items, gpu_report
from river_core.errors import KernelUnavailable, RiverError
from river_core.kernels import torch_int4
from river_core.kernels.base import QuantMatrix

ROOT = Path(__file__).parents[2]
HEAVY = {"gguf", "gradio", "hqq", "pandas", "plotly", "transformers"}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise ValueError('no such thing')", "exit status 1: ValueError: no such thing"),
        ("import os; os._exit(3)", "exit status 3: no message"),
        ("import time; time.sleep(60)", "stopped after its limit of 1 s"),
        ("print('half a resu')", "it printed no result"),
        ("print('{\"a\": 1}')", None),
    ],
)
def test_an_item_that_fails_is_a_line_of_the_report(code: str, error: str | None) -> None:
    limit = 1 if "sleep" in code else 60
    result = gpu_report.run_item("x", [sys.executable, "-c", code], limit)
    assert result.error == error
    shown = "\n".join(gpu_report.text([result], dry_run=False))
    assert (f"FAILED: {error}" in shown) == (error is not None)


def test_the_other_items_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(name: str, dry_run: bool) -> list[str]:
        code = "1 / 0" if name == "dense" else "print('{}')"
        return [sys.executable, "-c", code]

    monkeypatch.setattr(gpu_report, "item_command", command)
    results = gpu_report.collect(True, 60)
    assert [r.name for r in results] == list(gpu_report.ITEMS) == list(gpu_items.ITEMS)
    assert [r.name for r in results if r.error] == ["dense"]


def test_a_wrong_int4_kernel_fails_its_item(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(matrix: QuantMatrix) -> torch.Tensor:
        return right(matrix).roll(1, dims=0)

    right = torch_int4._scales_and_zeros
    monkeypatch.setattr(torch_int4, "_scales_and_zeros", shifted)
    with pytest.raises(RiverError, match="int4 kernel is off"):
        gpu_items.int4(gpu_items.Bench.open(True))


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A fresh Python at the repository's root, which has to end well."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=True
    )


def test_dry_run_of_the_gpu_report(tmp_path: Path) -> None:
    code = f"""
import sys
from river_core.__main__ import main
status = main(["bench", "--gpu-report", "--dry-run", "--save", sys.argv[1]])
print(status, sorted({HEAVY} & sys.modules.keys()))
"""
    done = python(code, str(tmp_path / "report.jsonl"))
    *shown, status = done.stdout.splitlines()
    assert status == "0 []"
    lines = (tmp_path / "report.jsonl").read_text(encoding="utf-8").splitlines()
    items = {item["name"]: item["data"] for item in map(json.loads, lines)}
    assert list(items) == list(gpu_report.ITEMS)
    assert items["machine"]["torch"] == torch.__version__
    assert items["dense"]["read GB/s"] > 0
    assert [row["error"] < 0.02 for row in items["int4"]["products"]] == [True] * 4
    exits = {row["name"]: row["exit layer"] for row in items["decode"]["rows"]}
    assert exits["backbone"] == 8
    assert exits["River, forced exits"] == pytest.approx(3.79, abs=0.2)
    assert items["memory"]["ledger / formula"] == pytest.approx(1, abs=0.03)
    text = (tmp_path / "report.txt").read_text(encoding="utf-8")
    assert text.splitlines() == shown
    assert "Dry run" in shown[0]


def test_items_run_where_the_heavy_libraries_are_missing() -> None:
    code = f"""
import sys
sys.modules.update(dict.fromkeys({HEAVY}))  # importing one of them now fails
from river_core.gpu_items import ITEMS, Bench
bench = Bench.open(dry_run=True)
print([name for name, item in ITEMS.items() if item(bench)])
"""
    assert python(code).stdout.strip() == str(list(gpu_report.ITEMS))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU")
def test_gpu_report_without_a_gpu_is_one_sentence() -> None:
    with pytest.raises(KernelUnavailable, match="--dry-run"):
        gpu_report.collect(False, 60)
