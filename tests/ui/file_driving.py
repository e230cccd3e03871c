"""What the tests of the page's files do to a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from tests.ui.conftest import Watch

EXPORT = ".file-button >> nth=0"


def exported(page: Page, name: str, folder: Path) -> Path:
    page.click(EXPORT)
    with page.expect_download() as download:
        page.click(f'[data-export="{name}"]')
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    expect(page.locator(".file-said")).to_contain_text(path.name)
    return path


def copied(page: Page, name: str) -> str:
    """Where the page may not copy, it shows the text."""
    page.evaluate(
        "() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); }"
    )
    page.click(EXPORT)
    page.click(f'[data-export="{name}"]')
    expect(page.locator(".copied")).to_be_visible()
    text = page.locator(".copied").input_value()
    assert page.evaluate("getSelection().toString()") == text
    return text


def cells(page: Page, lane: str = "upper") -> list[str]:
    return page.locator(f".lane-{lane} .txt").all_inner_texts()


def opened(browser: Browser | None, path: Path, watch: Watch, **options: Any) -> Page:
    assert browser is not None
    page = browser.new_context(offline=True, **options).new_page()
    page.on("pageerror", lambda error: watch.errors.append(str(error)))
    page.on("console", watch._console)
    page.on(
        "request",
        lambda r: None if r.url == path.as_uri() else watch._request(r),
    )
    page.goto(path.as_uri())
    return page
