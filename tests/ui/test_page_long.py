"""An answer of 2,000 tokens: fluid, whole, with a strip above it, as text or as a timeline.

Time is the processor's, per task of the page's main thread, so that a busy machine counts little;
beside it stands how many cells an action touches, which is the same on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.ui.conftest import Watch
from tests.ui.driving import run_to_end
from tests.ui.main_thread import longest_tasks

OpenPage = Callable[..., Page]
LONGEST = 100.0  # milliseconds of one task
COUNT = 2000
PER_FRAME, CHUNK = 2, 150  # chunks.js

KEY = """document.activeElement.dispatchEvent(
    new KeyboardEvent("keydown", {key: "%s", bubbles: true, cancelable: true}));"""
SLIDE = """const slider = document.querySelector("#threshold input[type=range]");
    slider.value = 0.93 + 0.01 * (round % 5);
    slider.dispatchEvent(new Event("input", {bubbles: true}));"""
TOGGLE = "document.querySelectorAll('.legend .entry')[1].click();"
ACTIONS = {
    "arrow": KEY % "ArrowRight",
    "page down": KEY % "PageDown",
    "end": KEY % "End",
    "home": KEY % "Home",
    "scroll": "scrollBy(0, 700);",
    "legend": TOGGLE,
    "estimate": SLIDE,
    "recorded": "document.querySelector('[data-origin=recorded]').click();",
    "whole run": "document.querySelector('[data-origin=live]').click();",
}
TOUCHED = """async (action) => {
  const grid = document.querySelector(".lanes");
  const cells = new Set();
  const note = (records) => records.forEach(({target}) => {
    const cell = target.closest && target.closest(".tok");
    if (cell) cells.add(cell);
  });
  const watch = new MutationObserver(note);
  watch.observe(grid, {attributes: true, childList: true, subtree: true});
  const round = 3;
  new Function("round", action)(round);
  note(watch.takeRecords());
  watch.disconnect();
  return cells.size;
}"""


@pytest.fixture(scope="module")
def long_page(browser: Browser, served: Any) -> Iterator[Page]:
    """One page for the whole file, since the long run is slow to play; it ends without an error."""
    watch = Watch()
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    watch.attach(page)
    page.goto(served[0])
    page.wait_for_selector("#rv-details .tile")
    run_to_end(page, "huge")
    yield page
    context.close()
    assert (watch.errors, watch.dialogs, watch.strangers) == ([], [], [])


def start(page: Page) -> None:
    """As text, from the top, with the first token in focus and nothing left to be done."""
    page.click("[data-reading=text]")
    page.wait_for_function(f"document.querySelectorAll('.lane-upper .tok').length === {COUNT}")
    page.locator(".lane-upper .tok").first.focus()
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(300)


def in_view(page: Page, index: int) -> bool:
    """Whether an upper cell stands between the strips and the lower edge of the window."""
    return page.evaluate(
        """(index) => {
          const cell = document.querySelectorAll(".lane-upper .tok")[index].getBoundingClientRect();
          const top = document.querySelector(".overview").getBoundingClientRect().bottom;
          return cell.top >= top && cell.bottom <= innerHeight;
        }""",
        index,
    )


def test_no_action_holds_the_page(long_page: Page, browser: Browser) -> None:
    start(long_page)
    tasks = longest_tasks(browser, long_page, ACTIONS, rounds=3)
    assert set(tasks) == set(ACTIONS)
    typical = {name: round(median(times), 1) for name, times in tasks.items()}
    assert max(typical.values()) < LONGEST, typical


def test_an_action_touches_few_cells(long_page: Page) -> None:
    start(long_page)
    touched = {name: long_page.evaluate(TOUCHED, ACTIONS[name]) for name in ("arrow", "end")}
    assert max(touched.values()) <= 4, touched
    long_page.evaluate("scrollTo(0, 0)")
    long_page.wait_for_timeout(200)
    for action in (SLIDE, TOGGLE):
        assert 0 < long_page.evaluate(TOUCHED, action) <= PER_FRAME * CHUNK
        long_page.wait_for_timeout(200)
    long_page.evaluate(TOGGLE)
    long_page.get_by_role("button", name="Show as measured").click()


def test_unseen_cells_follow(long_page: Page) -> None:
    start(long_page)
    long_page.evaluate(f"(() => {{ const round = 1; {SLIDE} }})()")
    counts = [int(c) for c in long_page.locator(".legend .count").all_text_contents()]
    assert sum(counts) == COUNT
    never = "document.querySelectorAll('.lane-upper .tok.never').length"
    long_page.wait_for_function(f"{never} === {counts[-1]}")
    long_page.locator(".legend .entry").first.click()
    shown = "document.querySelectorAll('.lane-upper .tok:not(.faded)').length"
    long_page.wait_for_function(f"{shown} === {counts[0]}")
    long_page.locator(".legend .entry").first.click()
    long_page.wait_for_function(f"{shown} === {COUNT}")
    long_page.get_by_role("button", name="Show as measured").click()
    long_page.wait_for_function(f"{never} !== {counts[-1]}")


def test_the_chart_of_thresholds_says_what_the_estimate_says(long_page: Page) -> None:
    start(long_page)
    bars = long_page.locator(".estimate-bar")
    for number in (1, 22, 49, 58):  # their middles are values of the slider
        long_page.evaluate(
            """(value) => { const slider = document.querySelector("#threshold input[type=range]");
            slider.value = value; slider.dispatchEvent(new Event("input", {bubbles: true})); }""",
            round(0.9 + (number + 0.5) / 600, 4),
        )
        line = long_page.locator(".estimate-line").text_content() or ""
        mean = float(re.findall(r"after ([\d.]+) of", line)[0])
        height = float(bars.nth(number).get_attribute("height") or 0)
        assert abs(height * 30 / 42 - mean) < 0.06, number
    long_page.get_by_role("button", name="Show as measured").click()


def test_the_grid_stays_one_grid(long_page: Page) -> None:
    start(long_page)
    assert long_page.locator(".lane .tok[tabindex='0']").count() == 1
    expect(long_page.get_by_role("grid")).to_have_attribute("aria-colcount", str(COUNT + 1))
    last = long_page.locator(".lane-upper .tok").last
    assert last.get_attribute("aria-colindex") == str(COUNT + 1)
    roles = "c => [...new Set([c.parentElement, c.parentElement.parentElement].map(e => e.role))]"
    assert last.evaluate(roles) == ["presentation"]
    for key, index in (("End", COUNT - 1), ("PageUp", COUNT - 51), ("Home", 0), ("PageDown", 50)):
        long_page.keyboard.press(key)
        long_page.wait_for_timeout(150)
        assert long_page.evaluate("document.activeElement.dataset.index") == str(index)
        assert in_view(long_page, index), key


def test_the_strip_shows_and_reaches_every_place(long_page: Page) -> None:
    start(long_page)
    summary = long_page.locator(".strip-upper .strip-summary")
    expect(summary).to_contain_text(re.compile(r"^River: tokens 1–\d+ of 2000 in view"))
    expect(summary).to_contain_text("token 1 selected · first difference at token 4")
    strip = long_page.locator(".strip-upper canvas")
    assert strip.get_attribute("aria-hidden") == "true"
    box = strip.bounding_box()
    assert box
    middle = {"x": box["width"] / 2, "y": box["height"] - 6}
    strip.click(position=middle)  # the second of two lines
    expect(long_page.locator(".tok.selected")).to_have_attribute(
        "data-index", re.compile("^1(49|50)")
    )
    long_page.wait_for_timeout(200)
    chosen = int(long_page.locator(".tok.selected").get_attribute("data-index") or 0)
    assert in_view(long_page, chosen)
    expect(summary).to_contain_text(f"token {chosen + 1} selected")
    stuck = strip.bounding_box()
    assert stuck and 0 <= stuck["y"] < 100, "the strips stay in view"
    long_page.mouse.move(stuck["x"] + middle["x"], stuck["y"] + middle["y"])
    long_page.mouse.down()
    long_page.mouse.move(stuck["x"] + 100, stuck["y"] + middle["y"], steps=4)
    long_page.mouse.up()
    dragged = int(long_page.locator(".tok.selected").get_attribute("data-index") or 0)
    assert 1000 < dragged < 1200
    colours = strip.evaluate(
        "c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height)"
        ".data.buffer)).size"
    )
    assert colours > 6


def test_a_timeline_puts_equal_numbers_below_each_other(long_page: Page) -> None:
    start(long_page)
    long_page.click("[data-reading=timeline]")
    expect(long_page.locator("[data-reading=timeline]")).to_have_attribute("aria-pressed", "true")
    expect(long_page.locator("[data-reading=text]")).to_have_attribute("aria-pressed", "false")
    long_page.locator(".lane-lower .tok").nth(30).focus()
    left = "c => c.getBoundingClientRect().left"
    for index in (0, 25, 43):
        upper, lower = (
            long_page.locator(f".lane-{lane} .tok").nth(index).evaluate(left)
            for lane in ("upper", "lower")
        )
        assert upper == lower
    tops = long_page.locator(".lane-upper .tok").evaluate_all(
        "a => [...new Set(a.slice(0, 60).map(c => c.offsetTop + '/' + c.offsetWidth))].length"
    )
    assert tops == 1, "one row of equal cells"
    scroller = long_page.locator(".lanes")
    long_page.keyboard.press("ArrowUp")
    long_page.keyboard.press("End")
    assert scroller.evaluate("s => s.scrollLeft + s.clientWidth >= s.scrollWidth - 20")
    assert long_page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(long_page.locator(".strip-upper .strip-summary")).to_contain_text("–2000 of 2000")
    long_page.click("[data-reading=text]")


@pytest.mark.thorough
def test_exact_tokens_in_a_timeline(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0], width=390)
    run_to_end(page, "hostile")
    cells = page.locator(".lane-upper .tok")
    as_text = cells.all_text_contents()
    page.click("[data-reading=timeline]")
    assert cells.all_text_contents() == as_text
    cut = "a => a.filter(c => c.scrollWidth > c.clientWidth).map(c => c.textContent)"
    assert cells.evaluate_all(cut) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    run_to_end(page)
    expect(page.locator("[data-reading=timeline]")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".lanes.timeline")).to_have_count(1)
    expect(page.locator(".overview")).to_be_hidden()


@pytest.mark.thorough
def test_a_phone_lays_out_what_is_near(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0], width=390)
    run_to_end(page, "huge")
    start(page)
    drawn = page.locator(".lane .tok").evaluate_all(
        "a => a.filter(c => c.checkVisibility({contentVisibilityAuto: true})).length"
    )
    assert 100 < drawn < COUNT / 2
    beyond = page.locator(".lane .tok").evaluate_all(
        "a => a.filter(c => c.getBoundingClientRect().right > innerWidth).length"
    )
    assert beyond == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator(".overview").bounding_box()
    assert box and box["height"] < 170
