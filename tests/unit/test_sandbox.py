"""Hostile code is kept in: each ends in bounded time as a failed item, with its reason."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from river_core import sandbox
from river_core.errors import SettingsError
from river_core.sandbox import Limits, run_code

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the sandbox needs resource limits")
QUICK = Limits(wall_seconds=4.0, cpu_seconds=1)
BOUND = 15.0  # seconds: the limit and a slow machine's start

HOSTILE = {
    "endless loop": ("while True: pass", "CPU limit"),
    "sleeps for ever": ("import time\ntime.sleep(1000)", "time limit"),
    "ignores SIGTERM": (
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass",
        "CPU limit",
    ),
    "memory bomb": ("held = []\nwhile True: held.append(bytes(10**7))", "MemoryError"),
    "one huge object": ("x = ' ' * 10**11", "MemoryError"),
    "fork bomb": ("import os\nwhile True: os.fork()", "may not call os.fork"),
    "shell": ("import os\nos.system('true')", "may not call os.system"),
    "subprocess": ("import subprocess", "may not import subprocess"),
    "raw fork": ("import _posixsubprocess", "may not import _posixsubprocess"),
    "native code": ("import ctypes", "may not import ctypes"),
    "large file": ("f = open('big', 'wb')\nwhile True: f.write(bytes(10**6))", "may not open"),
    "reads files": ("print(open('/etc/passwd').read())", "may not open"),
    "parent's environment, by file": (
        "import os\nprint(open(f'/proc/{os.getppid()}/environ').read())",
        "may not open",
    ),
    "socket": ("import socket\nsocket.create_connection(('127.0.0.1', 9))", "may not import"),
    "kills its parent": ("import os\nos.kill(os.getppid(), 9)", "may not call os.kill"),
    "huge output": ("while True: print('x' * 1000)", "output limit"),
    "endless recursion": ("def f(): return f()\nf()", "RecursionError"),
    "leaves before its tests": ("import sys\nsys.exit(0)\nassert False", "status 0"),
    "leaves hard": ("import os\nos._exit(0)", "status 0"),
    "wrong": ("assert 1 + 1 == 3", "AssertionError"),
    "no Python": ("def f(:", "SyntaxError"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_code_is_a_failed_item(name: str) -> None:
    code, reason = HOSTILE[name]
    begun = time.monotonic()
    found = run_code(code, QUICK)
    assert time.monotonic() - begun < BOUND
    assert not found.passed
    assert reason in found.reason


def test_what_runs_to_its_end_passes() -> None:
    found = run_code("import math, re, collections\nassert math.gcd(12, 18) == 6\nprint('fine')")
    assert found.passed
    assert found.reason == ""
    assert found.network in ("namespace", "audit hook")
    assert sandbox.network_off() == found.network


def test_nothing_is_written_outside(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("mine")
    for code in (
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"open({str(kept)!r}, 'a')",
        f"import os\nos.remove({str(kept)!r})",
        f"import os\nos.truncate({str(kept)!r}, 0)",
        f"import os\nos.rename({str(kept)!r}, {str(tmp_path / 'new')!r})",
        f"import shutil\nshutil.rmtree({str(tmp_path)!r})",
        f"import os\nos.symlink({str(kept)!r}, 'link')\nopen('link', 'w')",
        f"import pathlib\npathlib.Path({str(kept)!r}).write_text('')",
    ):
        assert not run_code(code, QUICK).passed, code
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert kept.read_text() == "mine"


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVER_SECRET", "hidden")
    assert run_code("import os\nassert 'RIVER_SECRET' not in os.environ, 'seen'").passed
    assert run_code("import os\nassert os.listdir('.') == []").passed


def test_saying_passed_is_not_passing() -> None:
    found = run_code("print('passed')\nraise SystemExit(0)", QUICK)
    assert not found.passed


def test_a_system_without_limits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="leave --allow-code out"):
        run_code("")


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_the_kernel_alone_keeps_files_and_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the audit hook taken out: what the kernel allows of this is said, never assumed."""
    source = sandbox.CHILD.read_text(encoding="utf-8")
    assert "    sys.addaudithook" in source
    bare = tmp_path / "child.py"
    bare.write_text(
        source.replace("    sys.addaudithook", "    len", 1).replace(
            "_guard(os.path.realpath(os.getcwd()))", "''"
        )
    )
    monkeypatch.setattr(sandbox, "CHILD", bare)
    if run_code("").network != "namespace":
        pytest.skip("this system gives no network namespace")
    code = "import socket\nsocket.create_connection(('127.0.0.1', 9), 2)"
    assert "unreachable" in run_code(code, QUICK).reason
    found = run_code("f = open('big', 'wb')\nfor _ in range(9): f.write(bytes(10**6))", QUICK)
    assert not found.passed
    assert "Permission" in found.reason or "File too large" in found.reason
