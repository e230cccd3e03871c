"""For all tests: markers by folder, reasons for skips, and an account of the browser tests.

`--require-ui` (CI) fails the session where a browser test was skipped or none ran. `--whole` runs
the slow properties on all prompts and tokens, and the tests marked `thorough`; without it a part.
"""

from __future__ import annotations

import importlib.util
import shutil
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

MARKED_FOLDERS = ("ui", "real", "gpu")
BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-ui", action="store_true", help="fail where a browser test is skipped or none ran"
    )
    parser.addoption("--whole", action="store_true", help="slow properties in full (minutes)")


def pytest_report_header() -> str:
    return f"torch {metadata.version('torch')}, transformers {metadata.version('transformers')}"


@pytest.hookimpl(tryfirst=True)  # before -m looks at the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    if not config.getoption("--whole"):
        left = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]
    for item in items:
        folder = item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""
        if folder in MARKED_FOLDERS:
            item.add_marker(folder)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("ui") and (reason := _no_browser()):
        pytest.skip(reason)
    if item.get_closest_marker("gpu") and (reason := _no_gpu()):
        pytest.skip(reason)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium for Playwright's `launch(executable_path=..., args=["--no-sandbox"])`."""
    path = _find_chromium()
    assert path, "a test that uses `chromium` belongs in tests/ui or carries the marker ui"
    return path


@cache
def _no_browser() -> str:
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed (requirements-dev.txt)"
    if _find_chromium() is None:
        return "no Chromium found: install Debian's chromium or run `playwright install chromium`"
    return ""


@cache
def _find_chromium() -> str | None:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is not None:
        return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


@cache
def _no_gpu() -> str:
    import torch

    return "" if torch.cuda.is_available() else "no CUDA device"


def _browser_tests(config: pytest.Config) -> tuple[int, list[str]]:
    """How many browser tests ran, and the reason of each that was skipped."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    ran, skipped = 0, []
    for reports in reporter.stats.values() if reporter else ():
        for report in reports:
            if not isinstance(report, pytest.TestReport) or "ui" not in report.keywords:
                continue  # deselected tests are listed as items, warnings as messages
            if report.outcome == "skipped":
                reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "skipped"
                skipped.append(reason.removeprefix("Skipped: "))
            elif report.when == "call":
                ran += 1
    return ran, skipped


def _ui_missing(config: pytest.Config) -> bool:
    ran, skipped = _browser_tests(config)
    return bool(config.getoption("--require-ui") and (skipped or not ran))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK and _ui_missing(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    ran, skipped = _browser_tests(config)
    if ran or skipped or config.getoption("--require-ui"):
        terminalreporter.write_sep("=", "browser tests")
        terminalreporter.write_line(f"{ran} ran, {len(skipped)} skipped")
        for reason in sorted(set(skipped)):
            terminalreporter.write_line(f"{skipped.count(reason)} skipped: {reason}")
    if _ui_missing(config):
        terminalreporter.write_line(
            "FAILED: --require-ui was given, and every browser test has to run.", red=True
        )
