"""The Triton kernels on the CPU, interpreted, in processes of their own.

TRITON_INTERPRET has to be set before a kernel is imported, and must not be where kernels are
compiled (test_triton_compiled.py): so each file of cases is a pytest run of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed (requirements-dev.txt)")
HERE = Path(__file__).parent


def run_interpreted(path: Path) -> subprocess.CompletedProcess[str]:
    """Run the tests of one file, interpreted."""
    settings = {name: v for name, v in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    return subprocess.run(
        command,
        cwd=HERE.parents[1],
        env=settings | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.parametrize(
    ("cases", "least"),
    [("interpreted_products.py", 20), ("interpreted_steps.py", 40), ("interpreted_graphs.py", 5)],
)
def test_kernels_equal_plain_torch(cases: str, least: int) -> None:
    done = run_interpreted(HERE / cases)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= least


def test_a_kernel_that_is_wrong_fails_there(tmp_path: Path) -> None:
    """The arrangement sees a fault: the same cases with a wrong unpacking do not pass."""
    case = tmp_path / "case.py"
    case.write_text(
        "from river_core.kernels import triton_linear\n"
        "from tests.unit.interpreted_products import Fused, check, int4, norm\n"
        "def test_wrong():\n"
        "    linear = int4((16, 64))\n"
        "    linear.words = linear.words.roll(1)\n"
        "    linear.dense = int4((16, 64)).dense\n"
        "    check(linear, 1, Fused(norm=norm(64), eps=1e-5))\n",
        encoding="utf-8",
    )
    done = run_interpreted(case)
    assert done.returncode == 1
    assert "1 failed" in done.stdout
