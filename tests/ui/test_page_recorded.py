"""Recorded runs in the browser: first screen, Recorded / Live, and the exported file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from app import export
from app.shipped import RUNS
from tests.ui.conftest import Watch
from tests.ui.driving import run_to_end

OpenPage = Callable[..., Page]
HOSTILE = "</script><img src=x onerror=window.pwned=1>${1}"


def count(page: Page) -> int:
    return page.locator(".lane-upper .tok").count()


def test_the_first_screen_shows_coloured_tokens(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    assert count(page) > 40
    assert page.locator(".lane-upper .tok.b0, .lane-upper .tok.b2").count() > 0
    expect(page.locator(".recorded-label")).to_contain_text("smollm2-135m-packaged")


def test_recorded_and_live_by_mouse_and_keyboard(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    first = count(page)
    run_to_end(page)
    assert count(page) == 60
    expect(page.locator("[data-origin=live]")).to_have_attribute("aria-pressed", "true")
    page.click("[data-origin=recorded]")
    assert count(page) == first
    page.locator("[data-origin=live]").focus()
    page.keyboard.press("Enter")
    assert count(page) == 60
    page.click("[data-origin=recorded]")
    before = page.locator(".lane-upper").inner_text()
    page.select_option(".run-chooser", "1")
    assert page.locator(".lane-upper").inner_text() != before


def opened(browser: Browser, path: Path, watch: Watch) -> Page:
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.on("pageerror", lambda error: watch.errors.append(str(error)))
    page.on("console", watch._console)
    page.goto(path.as_uri())
    return page


def test_an_exported_file_opens_from_disk(browser: Browser, tmp_path: Path) -> None:
    out, watch = tmp_path / "river.html", Watch()
    export.main(["--out", str(out)])
    page = opened(browser, out, watch)
    assert count(page) > 40
    page.locator(".lane-upper .tok").nth(3).focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".panel-trace .panel-head")).to_contain_text("token 5, River")
    page.locator(".table-box summary").click()
    assert page.locator(".tokens tbody tr").count() > 80
    assert watch.errors == []
    page.context.close()


def test_hostile_text_in_a_replay_file_stays_text(browser: Browser, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in min(RUNS.glob("*.jsonl")).open(encoding="utf-8")]
    for line in lines:
        if line["type"] == "token":
            line["text"] = HOSTILE
        if line["type"] == "header":
            line |= {"model": HOSTILE, "origin": HOSTILE}
    source, out, watch = tmp_path / "run.jsonl", tmp_path / "run.html", Watch()
    source.write_text("\n".join(map(json.dumps, lines)))
    export.main(["--run", str(source), "--out", str(out)])
    page = opened(browser, out, watch)
    expect(page.locator(".lane-upper .txt").first).to_have_text(HOSTILE)
    assert page.evaluate("window.pwned") is None
    assert page.locator("img").count() == 0
    assert watch.errors == []
    page.context.close()
