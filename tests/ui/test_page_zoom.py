"""200 % zoom, forced colours, reduced motion: nothing is cut, told by a fill alone, or moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.ui.conftest import Watch
from tests.ui.driving import run_to_end

OpenPage = Callable[..., Page]
ZOOMED = {"width": 640, "device_scale_factor": 2}  # a window of 1,280 pixels at 200 %

# Pairs of things that a person reads or presses of which one lies over the other.
OVERLAPS = """() => {
  const parts = "button, input, select, textarea, summary, h1, h2, h3, .chip, .tagline, .origin, "
    + ".tile, .lane-title, .lane-caption, .legend-help, .estimate-line, .facts dt, .facts dd";
  const shown = [...document.querySelectorAll(parts)].filter((one) =>
    one.checkVisibility({visibilityProperty: true, opacityProperty: true})
    && !one.closest(".sr, .overview, .file-menu, [inert]"));
  const boxes = shown.map((one) => [one, one.getBoundingClientRect()])
    .filter(([one, box]) => box.width > 1 && box.height > 1);
  const found = [];
  for (const [i, [a, p]] of boxes.entries()) {
    for (const [b, q] of boxes.slice(i + 1)) {
      if (a.contains(b) || b.contains(a)) continue;
      const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (wide > 2 && high > 2) found.push([a, b].map((one) =>
        `${one.tagName} ${one.className} ${one.textContent.slice(0, 30)}`).join(" | "));
    }
  }
  return found;
}"""

# Things whose text is cut off, or that lie outside the window where nothing scrolls to them.
CUT = """() => {
  const scrolls = (one) => {
    for (let at = one; at; at = at.parentElement) {
      if (["auto", "scroll"].includes(getComputedStyle(at).overflowX)) return true;
    }
    return false;
  };
  const found = [];
  for (const one of document.querySelectorAll(".rv *, button, label, .block")) {
    if (one.closest(".sr, canvas, svg, .race-text, [inert]") || !one.checkVisibility()) continue;
    const [style, box] = [getComputedStyle(one), one.getBoundingClientRect()];
    const text = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const hides = ["hidden", "clip"].includes(style.overflowX) && !style.webkitLineClamp;
    const cut = text && hides && one.scrollWidth > one.clientWidth + 1
      && !one.classList.contains("segment");
    const out = box.width > 1 && (box.right > innerWidth + 1 || box.left < -1) && !scrolls(one);
    if (cut || out) found.push(`${one.tagName} ${one.className} ${one.textContent.slice(0, 40)}`);
  }
  return found;
}"""

# Controls that the keyboard reaches and that are too small, or have no box at all.
SMALL = """() => [...document.querySelectorAll("button, select, summary, input, textarea")]
  .filter((one) => one.checkVisibility({visibilityProperty: true}) && !one.closest(".sr, .plotly"))
  .filter((one) => one.getBoundingClientRect().width < 16
    || one.getBoundingClientRect().height < 16)
  .map((one) => `${one.tagName} ${one.className} ${one.id}`)"""

OUTLINE = """c => { const s = getComputedStyle(c);
  return [s.outlineStyle, s.outlineWidth, s.outlineOffset].join(" "); }"""


def check_layout(page: Page) -> None:
    """No sideways scroll, nothing cut, nothing over another."""
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate(CUT) == []
    assert page.evaluate(SMALL) == []


def test_a_page_at_200_percent_is_whole(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0], **ZOOMED)
    check_layout(page)  # a recorded run
    run_to_end(page, "hostile")
    page.locator(".lane-upper .tok").nth(6).click()
    check_layout(page)
    for summary in page.locator(".rv summary:visible").all():
        summary.click()
    page.click("#settings > button")
    page.wait_for_selector("#policy-lower input")
    page.wait_for_timeout(300)  # the panel opens over some frames
    check_layout(page)


@pytest.fixture(scope="module")
def forced(browser: Browser, served: Any) -> Iterator[Page]:
    """A finished run under forced colours and reduced motion, one page for the file."""
    watch = Watch()
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, forced_colors="active", reduced_motion="reduce"
    )
    page = context.new_page()
    watch.attach(page)
    page.goto(served[0])
    page.wait_for_selector("#rv-details .tile")
    run_to_end(page)
    yield page
    context.close()
    assert (watch.errors, watch.dialogs, watch.strangers) == ([], [], [])


def style(page: Page, selector: str, name: str) -> str:
    """A computed style of the first such element."""
    return str(page.locator(selector).first.evaluate(f"e => getComputedStyle(e).{name}"))


def test_forced_colours_keep_the_exit_mark(forced: Page) -> None:
    shares = forced.locator(".lane-upper .tok .bar").evaluate_all(
        "bars => bars.map(b => b.getBoundingClientRect().width / b.parentElement.clientWidth)"
    )
    assert min(shares) < 0.3 and max(shares) > 0.95
    bar, paper = ".lane-upper .tok .bar", ".lane-upper .tok"
    assert style(forced, bar, "borderBottomColor") != style(forced, paper, "backgroundColor")
    assert style(forced, ".lane-upper .tok.never", "borderTopStyle") == "double"
    assert style(forced, ".lane-upper .tok:not(.never)", "borderTopStyle") == "solid"


def test_forced_colours_tell_selected_pinned_and_focused_cells_apart(forced: Page) -> None:
    cells = forced.locator(".lane-upper .tok")
    cells.nth(3).click()  # selects and pins it
    forced.keyboard.press("ArrowRight")
    focused = cells.nth(4).evaluate(OUTLINE)
    forced.locator("#prompt textarea").focus()
    pinned, selected = cells.nth(3).evaluate(OUTLINE), cells.nth(4).evaluate(OUTLINE)
    plain = cells.nth(9).evaluate(OUTLINE)
    assert len({pinned, selected, focused, plain}) == 4


@pytest.mark.parametrize("control", ["#run", "#stop", ".legend .entry", "#threshold input"])
def test_forced_colours_show_the_focus(forced: Page, control: str) -> None:
    one = forced.locator(control).first
    before = one.evaluate(OUTLINE)
    forced.locator("#prompt textarea").focus()
    one.focus()
    forced.keyboard.press("Shift")  # the keyboard is in use, so focus is to be seen
    assert one.evaluate(OUTLINE) != before or "none" not in before
    assert one.evaluate("e => getComputedStyle(e).outlineStyle") != "none"


@pytest.mark.parametrize("toggle", [".legend .entry", ".reading button", ".origins button"])
def test_forced_colours_show_which_toggle_is_on(forced: Page, toggle: str) -> None:
    if toggle == ".legend .entry":
        forced.locator(toggle).nth(1).click()
    look = """(all, on) => { const one = all.find((e) => e.getAttribute("aria-pressed") === on);
      const s = getComputedStyle(one); return s.color; }"""
    buttons = forced.locator(toggle)
    assert buttons.evaluate_all(look, "true") != buttons.evaluate_all(look, "false")
    if toggle == ".legend .entry":
        frames = "cells => cells.map(c => getComputedStyle(c).borderTopStyle)"
        assert "dotted" in forced.locator(".lane-upper .tok").evaluate_all(frames)  # the faint ones
        forced.locator(toggle).nth(1).click()


def test_maps_and_the_race_have_a_text(forced: Page) -> None:
    labels = forced.locator("canvas:visible").evaluate_all(
        "all => all.map(c => [c.className, c.getAttribute('role'), c.ariaLabel])"
    )
    assert len(labels) >= 3
    assert all(role == "img" and label and len(label) > 10 for _, role, label in labels), labels


def test_nothing_moves_by_itself(forced: Page) -> None:
    moving = "document.getAnimations().filter(a => a.effect.target.closest('.rv')).length"
    play, clock = forced.locator(".race-play"), forced.locator(".race-clock")
    assert (play.text_content() or "") == "Next token"
    play.click()  # to the start
    play.click()  # to the next token
    shown = clock.text_content()
    forced.wait_for_timeout(250)
    assert clock.text_content() == shown
    assert forced.evaluate(moving) == 0
