"""The first screen comes before the engine: recorded runs are served while torch cannot load.

On a quiet laptop the tokens are there about four seconds after `python app.py` begins; a busy test
machine takes many times that, so the test holds torch back and asks for the order, not the time.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
LONGEST = 150  # seconds until the page is served, on a very busy machine
TORCH_NEVER_LOADS = """
import importlib.machinery, runpy, sys, time

class Held:
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        return importlib.machinery.ModuleSpec(name, self, origin="held back")

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        time.sleep(3600)

sys.meta_path.insert(0, Held())
sys.argv = ["app.py", "--port", sys.argv[1], "--model", "smollm2-135m-packaged"]
runpy.run_path("app.py", run_name="__main__")
"""


@pytest.fixture
def address() -> Iterator[str]:
    """Of an app whose torch never loads."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = subprocess.Popen(
        [sys.executable, "-c", TORCH_NEVER_LOADS, str(port)], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    yield f"http://127.0.0.1:{port}/"
    app.kill()
    app.wait()


def wait_for(address: str) -> None:
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(address, timeout=LONGEST) as answer:
                assert answer.status == 200
                return
        except OSError:
            time.sleep(0.1)
    pytest.fail("the page waits for torch")


def test_coloured_tokens_are_shown_while_torch_does_not_load(
    browser: Browser, address: str
) -> None:
    wait_for(address)
    page = browser.new_page()
    page.goto(address, wait_until="commit")
    for part in ("#rv-first", "#rv-lanes"):  # before Gradio's scripts, and the page itself
        page.wait_for_selector(f"{part} .lane-upper .tok.b0", timeout=LONGEST * 1000)
    assert page.locator(".lane-upper .tok").count() > 40
    page.close()


def test_an_idle_page_is_not_drawn(open_page: Callable[..., Page], served: tuple[str, Any]) -> None:
    page = open_page(served[0])
    for _ in range(20):  # Gradio's own animations come to an end
        drawn = frames_in_a_second(page)
        if not drawn:
            break
    assert drawn == 0


def frames_in_a_second(page: Page) -> int:
    browser = page.context.browser
    assert browser is not None
    browser.start_tracing(page=page, categories=["devtools.timeline"])
    page.wait_for_timeout(1000)
    events = json.loads(browser.stop_tracing())["traceEvents"]
    return sum(event["name"] == "FireAnimationFrame" for event in events)
