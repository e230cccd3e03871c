"""The lesson in the browser: seven steps by mouse and by keyboard, guesses, links, restore."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from app import export
from tests.ui.conftest import Watch
from tests.ui.driving import run_to_end
from tests.ui.test_page_access import serious
from tests.ui.test_page_recorded import opened
from tests.whole import in_full

OpenPage = Callable[..., Page]
TITLES = (
    "A token climbs all layers",
    "Neighbouring layers barely change it",
    "Guess where it may leave",
    "Leave early: holes in the cache",
    "The river fills the holes",
    "Move the threshold",
    "Half the layers is not twice the speed",
)
CALM = {"reduced_motion": "reduce"}  # no smooth scrolling to wait for


def at_step(page: Page, number: int) -> None:
    expect(page.locator("#lesson-title")).to_have_text(TITLES[number - 1])
    expect(page.locator(".lesson-count")).to_have_text(f"Lesson, step {number} of 7")
    assert f"lesson={number}" in page.url


def lit_by_the_ring(page: Page, selector: str) -> None:
    """The ring stands around the element, within the window and clear of the panel."""
    page.wait_for_function(
        """(selector) => {
          const [ring, lit, panel] = ['.spotlight', selector, '.lesson'].map((one) =>
            document.querySelector(one).getBoundingClientRect());
          const near = (side) => Math.abs(ring[side] + 5 - lit[side]) < 2;
          const clear = panel.left > 0 ? lit.right <= panel.left : lit.top < panel.top - 20;
          return near('left') && near('top') && clear && lit.top > -2 && lit.top < innerHeight;
        }""",
        arg=selector,
    )


def reveal(page: Page, guess: str) -> None:
    page.fill("#lesson-guess", guess)
    page.click(".lesson-guess button")


def drag(page: Page) -> None:  # by a few keys, as estimate.js hears them
    page.locator("#threshold input[type=range]").focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")


def by_mouse(page: Page, step: int) -> None:
    """What step `step` asks for."""
    if step == 1:
        page.locator(".lane-lower .tok").nth(4).click()
    elif step == 2:
        for _ in range(3):
            page.locator(".lesson").get_by_role("button", name="Next token").click()
    elif step in (3, 4):
        reveal(page, "12")
    elif step == 5:
        page.get_by_role("button", name="Other lane").click()
    elif step == 6:
        reveal(page, "3")
        drag(page)
        page.locator(".lane-lower .lane-different").click()
    else:
        page.locator(".legend .entry").last.click()


def by_keyboard(page: Page, step: int) -> None:
    """The same without a pointer, from the focus that the step gives: the panel's heading."""
    assert page.evaluate("document.activeElement.id") == "lesson-title"
    if step in (1, 2, 5):
        place = 2 if step == 2 else 3  # of "Next token" and "Other lane" among the moves
        tab_to(page, f".lesson-moves button:nth-child({place})")
        for _ in range(2 if step == 2 else 1):
            page.keyboard.press("Enter")
    elif step in (3, 4):
        tab_to(page, "#lesson-guess")
        page.keyboard.type("9")
        page.keyboard.press("Enter")
    elif step == 6:
        tab_to(page, "#threshold input[type=range]")
        page.keyboard.press("ArrowLeft")
        tab_to(page, ".lane-lower .lane-different", "Shift+Tab")
        page.keyboard.press("Enter")
    else:
        tab_to(page, ".legend .entry:last-child")
        page.keyboard.press("Space")


def tab_to(page: Page, selector: str, key: str = "Tab") -> None:
    for _ in range(60):
        if page.evaluate("(s) => document.activeElement.matches(s)", selector):
            return
        page.keyboard.press(key)
    raise AssertionError(f"Tab does not reach {selector}")


@pytest.mark.parametrize("theme", [in_full("light"), "dark"])
def test_all_steps_by_mouse(open_page: OpenPage, served: Any, theme: str) -> None:
    page = open_page(served[0], theme=theme, **CALM)
    page.click(".lesson-open")
    for step in range(1, 8):
        at_step(page, step)
        expect(page.locator(".spotlight")).to_be_visible()
        expect(page.locator(".lesson-next")).to_be_disabled()
        by_mouse(page, step)
        expect(page.locator(".lesson-tasks li:not(.done)")).to_have_count(0)
        expect(page.locator(".lesson-fact")).not_to_have_text("")
        assert "undefined" not in page.locator(".lesson").inner_text()
        if step in (1, 4):
            assert serious(page) == []
        page.click(".lesson-next")
    expect(page.locator(".lesson")).to_be_hidden()
    expect(page.locator(".spotlight")).to_be_hidden()
    assert "lesson" not in page.url
    assert page.evaluate("document.activeElement.className") == "lesson-open"


@pytest.mark.thorough
def test_all_steps_by_keyboard_alone(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0], **CALM)
    page.locator(".lesson-open").focus()
    page.keyboard.press("Enter")
    for step in range(1, 8):
        at_step(page, step)
        by_keyboard(page, step)
        expect(page.locator(".lesson-tasks li:not(.done)")).to_have_count(0)
        page.locator("#lesson-title").focus()
        tab_to(page, ".lesson-next")
        page.keyboard.press("Enter")
    expect(page.locator(".lesson")).to_be_hidden()


@pytest.mark.thorough
def test_the_spotlight_on_a_phone(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0], width=390, **CALM)
    page.click(".lesson-open")
    lit_by_the_ring(page, ".lane-lower")
    for selector in (
        ".panel-trace",
        ".tok.veiled",
        ".panel-kv",
        ".panel-kv",
        "#threshold",
        ".legend",
    ):
        page.click(".lesson-foot button:text-is('Skip')")
        lit_by_the_ring(page, selector)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious(page) == []
    by_mouse(page, 7)
    lit_by_the_ring(page, ".tile-saved")


@pytest.mark.thorough
def test_the_ring_follows_a_new_layout(open_page: OpenPage, served: Any) -> None:
    page = open_page(f"{served[0]}?lesson=2", forced_colors="active", **CALM)
    lit_by_the_ring(page, ".panel-trace")
    page.set_viewport_size({"width": 1000, "height": 800})
    lit_by_the_ring(page, ".panel-trace")
    page.evaluate("document.querySelector('.lanes').style.marginTop = '40px'")
    lit_by_the_ring(page, ".panel-trace")
    ring = page.locator(".spotlight")
    assert ring.evaluate("r => getComputedStyle(r).borderTopStyle") == "solid"
    assert ring.evaluate("r => getComputedStyle(r).pointerEvents") == "none"


@pytest.mark.parametrize(("asked", "step"), [("4", 4), ("x", 1)])
def test_a_link_opens_a_step(open_page: OpenPage, served: Any, asked: str, step: int) -> None:
    page = open_page(f"{served[0]}?lesson={asked}")
    at_step(page, step)
    assert page.evaluate("document.activeElement.id") == "lesson-title"


@pytest.mark.thorough
def test_the_link_to_a_step_is_copied(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0], permissions=["clipboard-read", "clipboard-write"])
    page.click(".lesson-open")
    page.click(".lesson-dot >> nth=4")
    at_step(page, 5)
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator(".lesson-link-line")).to_contain_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()").endswith("lesson=5")


def test_guesses_are_compared_with_the_record(open_page: OpenPage, served: Any) -> None:
    page = open_page(f"{served[0]}?lesson=3", **CALM)
    said = page.locator("#lesson-verdict")
    reveal(page, "31")
    expect(said).to_contain_text("whole number from 1 to 30")
    expect(page.locator(".tok.veiled")).to_have_count(1)
    reveal(page, "")
    expect(said).to_contain_text("The record says")
    truth = said.inner_text().removeprefix("The record says ").rstrip(".")
    expect(page.locator(".tok.veiled")).to_have_count(0)
    expect(page.locator(".panel-trace")).to_contain_text(f"left after layer {truth}")
    reveal(page, truth)
    expect(said).to_have_text(f"Exactly: {truth}.")
    reveal(page, "1")
    expect(said).to_contain_text(f"You said 1, the record says {truth}.")


def test_holes_and_what_fills_them(open_page: OpenPage, served: Any) -> None:
    page = open_page(f"{served[0]}?lesson=4", **CALM)
    expect(page.locator(".lesson-term")).to_contain_text("KV mask with threshold 0.97")
    assert page.locator(".lane-lower .tok").first.evaluate(
        "c => getComputedStyle(c).visibility") == "hidden"  # fmt: skip
    expect(page.locator(".kv-count[data-source=m]")).to_have_count(1)
    reveal(page, "")
    expect(page.locator("#lesson-verdict")).to_have_text("The record says 4.")
    expect(page.locator(".lane-lower .tok.different")).to_have_attribute("data-index", "3")
    page.click(".lesson-next")
    by_mouse(page, 5)
    expect(page.locator(".lesson-fact")).to_contain_text("and 0 are missing")
    expect(page.locator(".kv-count[data-source=m]")).to_have_count(0)
    expect(page.locator(".kv-count[data-source=r]")).to_have_count(1)


def shown(page: Page) -> list[Any]:
    return page.evaluate(
        """() => [document.querySelector('[data-origin=live]').ariaPressed,
        document.querySelector('.lane-upper').innerText,
        document.querySelector('.run-chooser').value,
        [...document.querySelectorAll('.tok.selected, .tok.pinned')].map((c) =>
          [c.dataset.index, ...[...c.classList].sort()].join(' ')),
        [...document.querySelectorAll('.entry')].map((e) => e.ariaPressed),
        document.querySelector('#threshold input[type=range]').value]"""
    )


@pytest.mark.thorough
@pytest.mark.parametrize("live", [False, True])
def test_closing_restores_what_was_on_show(open_page: OpenPage, served: Any, live: bool) -> None:
    page = open_page(served[0], **CALM)
    if live:
        run_to_end(page)
    else:
        page.select_option(".run-chooser", "1")
    page.locator(".lane-upper .tok").nth(7).click()
    page.locator(".legend .entry").nth(1).click()
    page.mouse.move(0, 0)
    before = shown(page)
    page.click(".lesson-open")
    for step in (1, 6, 7):
        page.locator(".lesson-dot").nth(step - 1).click()
        by_mouse(page, step)
    assert shown(page) != before
    page.locator("#lesson-title").focus()
    page.keyboard.press("Escape")
    expect(page.locator(".lesson")).to_be_hidden()
    assert shown(page) == before


@pytest.mark.thorough
def test_another_run_meanwhile_is_said_and_kept(open_page: OpenPage, served: Any) -> None:
    page = open_page(f"{served[0]}?lesson=2", **CALM)
    page.click("[data-origin=live]")
    expect(page.locator(".lesson-away")).to_be_visible()
    page.get_by_role("button", name="Show it again").click()
    expect(page.locator(".lesson-away")).to_be_hidden()
    page.click("[data-origin=live]")
    page.get_by_role("button", name="Close lesson").click()
    expect(page.locator("[data-origin=live]")).to_have_attribute("aria-pressed", "true")


@pytest.mark.thorough
def test_questions_and_notes_stay_closed_until_asked(open_page: OpenPage, served: Any) -> None:
    page = open_page(f"{served[0]}?lesson=7")
    assert page.locator(".lesson-questions details:not([open])").count() == 3
    expect(page.locator(".lesson-notes p").first).to_be_hidden()
    page.get_by_text("Teacher notes").click()
    expect(page.locator(".lesson-notes p").first).to_contain_text("Time:")


def test_the_lesson_in_an_exported_file(browser: Browser, tmp_path: Path) -> None:
    out, watch = tmp_path / "river.html", Watch()
    export.main(["--out", str(out)])
    page = opened(browser, out, watch)
    page.click(".lesson-open")
    for step, title in enumerate(TITLES, 1):
        expect(page.locator("#lesson-title")).to_have_text(title)
        by_mouse(page, step)
        page.click(".lesson-next")
    expect(page.locator(".lesson")).to_be_hidden()
    page.context.close()
    assert watch.errors == []
