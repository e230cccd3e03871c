"""The page for everyone: themes, narrow screens, forced colours, screen readers, axe's rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.ui.driving import run_to_end
from tests.whole import in_full

OpenPage = Callable[..., Page]


def test_the_live_line_is_polite_and_seldom(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    page.evaluate(
        """() => { window.spoken = []; const line = document.querySelector('.sr[aria-live=polite]');
        new MutationObserver(() => spoken.push(line.textContent)).observe(line,
        {childList: true, characterData: true, subtree: true}); }"""
    )
    run_to_end(page)
    spoken = page.evaluate("spoken")
    assert len(spoken) <= 8
    assert spoken[-1] == "Done: 60 tokens from River, 44 from Backbone."


@pytest.mark.parametrize("width", [360, in_full(400), in_full(768)])
def test_narrow_screens_do_not_scroll_sideways(
    open_page: OpenPage, served: Any, width: int
) -> None:
    page = open_page(served[0], width=width)
    run_to_end(page, "hostile")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_serious_accessibility_violation(open_page: OpenPage, served: Any, theme: str) -> None:
    page = open_page(served[0], theme=theme)
    assert serious(page) == []
    page.fill("#prompt textarea", "hostile")
    page.click("#run")
    page.wait_for_function("document.querySelectorAll('.lane-upper .tok').length > 4")
    assert serious(page) == []
    run_to_end(page, "hostile")
    page.locator(".table-box summary").click()
    page.locator(".prompt-box summary").click()
    assert serious(page) == []


def serious(page: Page) -> list[str]:
    """Once the examples' buttons have their text, which comes after the page."""
    page.wait_for_function(
        "[...document.querySelectorAll('.gallery-item')].every(b => b.textContent.trim())"
    )
    found = Axe().run(page).response["violations"]
    return [
        f"{v['id']}: {[n['html'][:120] for n in v['nodes']][:3]}"
        for v in found
        if v["impact"] in ("serious", "critical")
    ]


def test_the_browsers_preference_chooses_the_theme(open_page: OpenPage, served: Any) -> None:
    colours = []
    for scheme in ("light", "dark"):
        page = open_page(served[0], color_scheme=scheme)
        colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(255, 255, 255)", "rgb(20, 20, 22)"]


def test_forced_colours_keep_frames_and_bars(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0], forced_colors="active", reduced_motion="reduce")
    run_to_end(page)
    cell = page.locator(".lane-upper .tok").first
    assert cell.evaluate("c => parseFloat(getComputedStyle(c).borderTopWidth)") >= 1
    assert cell.locator(".bar").evaluate("b => getComputedStyle(b).borderBottomStyle") == "solid"
    moving = "document.getAnimations().filter(a => a.effect.target.closest('.rv')).length"
    assert page.evaluate(moving) == 0
