"""The charts in the page's theme: they follow it when it changes, and when it changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page

from app.views import colour
from app.views.charts import GRID, INK
from tests.ui.driving import run_to_end

OpenPage = Callable[..., Page]
DRAWN = 60_000  # milliseconds that the first chart may take: plotly is 4.6 MB of script
TURN = "document.body.classList.toggle('dark')"
PAINT = """(node, [ink, grid, frame, bars]) => {
  const rgb = (hex) => `rgb(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(', ')})`;
  const all = (query, name) => [...node.querySelectorAll(query)].map((one) => one.style[name]);
  return JSON.stringify([
    all('.gtitle, .xtitle, .ytitle, .xtick text, .legendtext', 'fill').every((c) => c === rgb(ink)),
    all('.gridlayer path', 'stroke').every((c) => c === rgb(grid)),
    !bars || all('.bars path', 'stroke').every((c) => c === rgb(frame)),
  ]);
}"""


def wait_for_theme(chart: Locator, *, dark: bool, bars: bool = False) -> None:
    """Until letters, grid and frames of the drawn chart have the theme's colours."""
    inks = [INK[dark], GRID[dark], colour.FRAME["dark" if dark else "light"], bars]
    chart.locator(".gridlayer path").first.wait_for(state="attached", timeout=DRAWN)
    for _ in range(50):
        found = chart.evaluate(PAINT, inks)
        if found == "[true,true,true]":
            return
        chart.page.wait_for_timeout(100)
    raise AssertionError(found)


def test_the_charts_of_a_run_follow_the_theme(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0], theme="light")
    run_to_end(page)
    page.click("#charts > button")
    exits, similarity = page.locator("#chart-exits"), page.locator("#chart-similarity")
    wait_for_theme(exits, dark=False, bars=True)
    heights = exits.evaluate("n => n.querySelectorAll('.bars path').length")
    for dark in (True, False):
        page.evaluate(TURN)
        wait_for_theme(exits, dark=dark, bars=True)
        wait_for_theme(similarity, dark=dark)
    assert exits.evaluate("n => n.querySelectorAll('.bars path').length") == heights


@pytest.mark.thorough
def test_a_measurement_that_comes_after_the_theme_changed(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0], theme="dark")
    page.click("#charts > button")
    page.fill("#prompt textarea", "plain")
    page.click("#measure-sweep")
    page.locator("#measure-said", has_text="step").wait_for(timeout=DRAWN)
    page.evaluate(TURN)
    wait_for_theme(page.locator("#chart-speed"), dark=False)
    page.click("#charts > button")
    page.evaluate(TURN)
    page.click("#charts > button")
    wait_for_theme(page.locator("#chart-speed"), dark=True)
