"""Before Gradio's scripts have come the page shows the recorded run; then its own lanes only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from app.first_paint import ELEMENT, PATIENCE
from app.shipped import shipped

pytestmark = pytest.mark.slow

FIRST = f"#{ELEMENT}"
Opened = Callable[..., Page]


@pytest.fixture
def unscripted(browser: Browser, served: tuple[str, Any]) -> Iterator[Opened]:
    """Opens the page with Gradio's scripts held back."""
    contexts = []

    def open_one(
        *, width: int = 1280, asked: str = "", clock: bool = False, **options: Any
    ) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.route("**/assets/*.js", lambda route: route.abort())
        if clock:
            page.clock.install()
        page.goto(f"{served[0]}{asked}")
        return page

    yield open_one
    for context in contexts:
        context.close()


def test_the_recorded_tokens_are_there_without_gradio(unscripted: Opened) -> None:
    page = unscripted()
    lanes = shipped()[0]["lanes"]
    for name in ("upper", "lower"):
        cells = page.locator(f"{FIRST} .lane-{name} .tok")
        assert cells.count() == len(lanes[name]["tokens"].split("\n"))
        assert lanes[name]["caption"] in page.locator(f"{FIRST} .lane-{name}").inner_text()
    left_early = page.locator(f"{FIRST} .tok.b0").first
    assert left_early.evaluate("c => getComputedStyle(c).backgroundColor") == "rgb(248, 223, 60)"
    assert page.locator(f"{FIRST} .never").first.is_visible()


@pytest.mark.parametrize(
    ("options", "asked", "dark"),
    [
        ({"color_scheme": "light"}, "", False),
        ({"color_scheme": "dark"}, "", True),
        ({"color_scheme": "dark"}, "?__theme=light", False),
        ({"color_scheme": "light"}, "?__theme=dark", True),
    ],
)
def test_it_has_the_theme_that_the_page_will_have(
    unscripted: Opened, options: dict[str, Any], asked: str, dark: bool
) -> None:
    page = unscripted(asked=asked, **options)
    paper = page.locator(FIRST).evaluate("e => getComputedStyle(e).backgroundColor")
    assert paper == ("rgb(20, 20, 22)" if dark else "rgb(255, 255, 255)")


def test_it_fits_a_phone(unscripted: Opened) -> None:
    page = unscripted(width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_it_does_not_cover_for_ever_what_failed(unscripted: Opened) -> None:
    page = unscripted(clock=True)
    assert page.locator(FIRST).count() == 1
    page.clock.run_for(1000 * PATIENCE + 1)
    assert page.locator(FIRST).count() == 0


def test_it_goes_when_the_page_has_drawn_the_same(
    open_page: Callable[..., Page], served: tuple[str, Any]
) -> None:
    page = open_page(served[0])
    assert page.locator(FIRST).count() == 0
    assert page.locator(".lane-upper").count() == 1
