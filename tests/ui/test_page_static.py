"""The page as one file: no server, no request, both themes, a phone's width."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from app import export
from app.shipped import RUNS
from river_core.footprint import Layout, footprint
from river_core.settings import DEFAULT_RIVER
from river_core.shapes import SHAPES
from tests.ui.conftest import Watch
from tests.ui.file_driving import EXPORT, cells, copied, exported, opened
from tests.ui.test_page_ledger import gib


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


def test_what_a_model_takes_is_told_without_a_server(browser: Browser, tmp_path: Path) -> None:
    """Also in the file that the file itself exports."""
    out, watch = tmp_path / "river.html", Watch()
    export.main(["--out", str(out)])
    page = opened(browser, out, watch, viewport={"width": 390, "height": 900})
    again = opened(browser, exported(page, "html", tmp_path), watch)
    for one in (page, again):
        expect(one.locator("#ledger-model option")).to_have_count(7)
        expect(one.locator("#ledger-model option").first).to_have_text("SmolLM2 135M, not loaded")
        expect(one.locator(".ledger-field output")).to_have_text("30 of 30")
        one.select_option("#ledger-model", label="Llama 3.1 8B, not loaded")
        one.select_option("#ledger-context", index=1)
        one.locator("#ledger-resident").fill("3")
        one.fill("#ledger-card", "16")
        layout = Layout(DEFAULT_RIVER, resident=4)
        found = gib(footprint(SHAPES["llama-3.1-8b"], layout, tokens=8000).total)
        expect(one.locator(".ledger-sum .number")).to_have_text(found)
        expect(one.locator(".ledger-fit")).to_contain_text(f"{found} fits a card of 16 GiB.")
        expect(one.locator(".ledger .measured")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert (watch.errors, watch.strangers, watch.dialogs) == ([], [], [])
    page.context.close()
    again.context.close()
