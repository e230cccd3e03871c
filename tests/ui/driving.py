"""What several page tests do to a page."""

from __future__ import annotations

from playwright.sync_api import Page, expect


def run_to_end(page: Page, prompt: str = "plain") -> None:
    """Ask for the stub's answer `prompt` and wait until both lanes are done."""
    page.fill("#prompt textarea", prompt)
    page.click("#run")
    page.wait_for_function("document.body.dataset.phase === 'done'", timeout=30_000)
    expect(page.locator("#status")).to_have_text("Done")
