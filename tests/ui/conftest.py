"""A browser for the page tests, and what a page must never do: errors, dialogs, other hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from app.theme import launch_options
from app.ui import build
from tests.ui.driving import app_at
from tests.ui.synthetic import StubSource

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@dataclass
class Watch:
    """What went wrong on a page while a test used it."""

    errors: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def attach(self, page: Page) -> None:
        """Listen to everything that must stay silent."""
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._console)
        page.on("request", self._request)
        page.on("dialog", self._dialog)

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1", "http://localhost", "data:", "blob:")):
            self.strangers.append(request.url)

    def _dialog(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    """One headless Chromium for all page tests."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """`open_page(url, width=..., theme=...)`; afterwards no error, dialog or other host is left."""
    watch, contexts = Watch(), []

    def open_one(url: str, *, width: int = 1280, theme: str = "", **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        watch.attach(page)
        page.goto(f"{url}?__theme={theme}" if theme else url)
        page.wait_for_selector("#rv-lanes .lane")
        page.wait_for_selector("#rv-details .tile")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert (watch.errors, watch.dialogs, watch.strangers) == ([], [], [])


@pytest.fixture(scope="session")
def packaged_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`python app.py` on the packaged model, from the moment it answers."""
    with app_at("smollm2-135m-packaged", tmp_path_factory.mktemp("app")) as url:
        yield url


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, StubSource]]:
    """The real page over the stub source, in this process."""
    source = StubSource()
    page = build(source)
    _, url, _ = page.launch(
        prevent_thread_lock=True, run_history=False, ssr_mode=False, quiet=True, **launch_options()
    )
    yield url, source
    page.close()
