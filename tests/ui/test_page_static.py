"""The page as one file: no server, no request, both themes, a phone's width."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from app import export
from app.shipped import RUNS
from tests.ui.conftest import Watch
from tests.ui.file_driving import EXPORT, cells, copied, exported, opened


@pytest.mark.parametrize("theme, width", [("light", 1280), ("dark", 390)])
def test_the_page_without_a_server(
    browser: Browser, tmp_path: Path, theme: str, width: int
) -> None:
    out, watch = tmp_path / "river.html", Watch()
    export.main(["--out", str(out)])
    size = {"width": width, "height": 900}
    page = opened(browser, out, watch, color_scheme=theme, viewport=size)
    assert len(cells(page)) > 40
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    expect(page.get_by_text("Open a replay")).to_be_hidden()
    page.click(EXPORT)
    expect(page.locator('[data-export="link"]')).to_be_hidden()
    expect(page.locator('[data-export="csv"]')).to_be_visible()
    serious = [v for v in Axe().run(page).response["violations"] if v["impact"] != "minor"]
    assert [v["id"] for v in serious if v["impact"] in ("serious", "critical")] == []
    page.keyboard.press("Escape")
    page.select_option(".run-chooser", "1")
    source = sorted(RUNS.glob("*.jsonl"))[1]
    found = exported(page, "jsonl", tmp_path).read_text(encoding="utf-8")
    assert found == source.read_text(encoding="utf-8")
    assert "river_core generate" in copied(page, "command.lower")
    assert (watch.errors, watch.strangers, watch.dialogs) == ([], [], [])
    page.context.close()
