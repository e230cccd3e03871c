"""What several page tests do: serve the app, ask for a run, wait for its end."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect

ROOT = Path(__file__).resolve().parents[2]
LOADED_WITHIN = 280_000  # milliseconds: a cold machine downloads and quantises first


def run_to_end(page: Page, prompt: str = "plain") -> None:
    """Ask for the stub's answer `prompt` and wait until both lanes are done."""
    page.fill("#prompt textarea", prompt)
    page.click("#run")
    page.wait_for_function("document.body.dataset.phase === 'done'", timeout=30_000)
    expect(page.locator("#status")).to_have_text("Done")


def start(page: Page, prompt: str, tokens: int) -> None:
    """Press Run for `tokens` tokens; the phase of the run before is forgotten, for `finish`."""
    page.fill("#prompt textarea", prompt)
    page.fill("#max-tokens input", str(tokens))
    page.evaluate("document.body.dataset.phase = 'pressed'")
    page.click("#run")


def finish(page: Page, phase: str = "done") -> None:
    """Wait until the run has ended so."""
    page.wait_for_function(f"document.body.dataset.phase === '{phase}'", timeout=120_000)


@contextmanager
def app_at(model: str, folder: Path, *options: str) -> Iterator[str]:
    """`python app.py --model ...` as a process, from the moment it answers; its log in `folder`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "log.txt"
    command = [sys.executable, "app.py", "--model", model, "--port", str(port), *options]
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}/"
    try:
        _wait_for(url, process, log)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=20)
    assert "Traceback" not in log.read_text()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(240):
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.5)
    raise AssertionError(f"no page within two minutes: {log.read_text()}")
