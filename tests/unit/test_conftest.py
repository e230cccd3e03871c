"""The account of the browser tests: what is printed, and when `--require-ui` fails a session."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIPPED = "import pytest\ndef test_b(): pytest.skip('no display')\n"


def session(folder: Path, files: dict[str, str], *options: str) -> tuple[int, str]:
    """Exit status and output of pytest over `files` with our configuration and conftest."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    # The stand-in lets these run where no Chromium is; it is found first and never started.
    code = "import shutil; shutil.which = lambda name: '/bin/chromium'; import pytest; "
    code += f"raise SystemExit(pytest.main({['-p', 'no:cacheprovider', *options]}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("files", "options", "status", "line"),
    [
        ({"tests/ui/test_a.py": "def test_a(): pass\n"}, [], 0, "1 ran, 0 skipped"),
        ({"tests/ui/test_a.py": "def test_a(): pass\n"}, ["--require-ui"], 0, "1 ran, 0 skipped"),
        ({"tests/ui/test_b.py": SKIPPED}, [], 0, "1 skipped: no display"),
        ({"tests/ui/test_b.py": SKIPPED}, ["--require-ui"], 1, "FAILED: --require-ui"),
        ({"tests/unit/test_b.py": SKIPPED}, ["--require-ui"], 1, "0 ran, 0 skipped"),
    ],
)
def test_account_of_browser_tests(
    tmp_path: Path, files: dict[str, str], options: list[str], status: int, line: str
) -> None:
    code, output = session(tmp_path, files, *options)
    assert code == status, output
    assert line in output


def test_no_account_where_no_browser_test_was_asked_for(tmp_path: Path) -> None:
    code, output = session(tmp_path, {"tests/unit/test_a.py": "def test_a(): pass\n"})
    assert code == 0
    assert "browser tests" not in output


def test_folders_mark_their_tests(tmp_path: Path) -> None:
    files = {f"tests/{name}/test_{name}.py": "def test_x(): pass\n" for name in ("ui", "unit")}
    _, output = session(tmp_path, files, "-m", "ui", "-v")
    assert "test_ui.py" in output
    assert "1 deselected" in output
