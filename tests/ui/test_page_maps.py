"""The heat map, the KV-source map and the enlarged panels over made-up runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.driving import run_to_end
from tests.ui.stopping import busy
from tests.ui.synthetic import EVERY_SOURCE, HOSTILE, LAYERS
from tests.whole import in_full

OpenPage = Callable[..., Page]
LEFT, RIGHT, TOP, BOTTOM = 26, 4, 5, 24  # of both maps, as in canvas.js
BLUE, ORANGE, MARK = (0, 0x72, 0xB2), (0xD5, 0x5E, 0), (0xB0, 0x4A, 0)
COLOURS = """([name, x, y, w, h]) => {
  const canvas = document.querySelector(`.panel-${name} canvas`);
  const seen = canvas.getContext("2d").getImageData(x, y, w, h).data;
  return Array.from({length: seen.length / 4}, (_, i) => [...seen.slice(4 * i, 4 * i + 4)]);
}"""


def settled(page: Page) -> None:
    page.evaluate("() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")


def size(page: Page, name: str) -> tuple[int, int]:
    found = page.evaluate(
        "n => [document.querySelector(`.panel-${n} canvas`)].map(c => [c.width, c.height])[0]",
        name,
    )
    return found[0], found[1]


def edges(page: Page, name: str, columns: int) -> tuple[Callable[[int], int], Callable[[int], int]]:
    """x of a column's left edge and y of a layer's upper edge, in pixels."""
    width, height = size(page, name)
    step = min(16, max(3, (width - LEFT - RIGHT) / columns))
    row = (height - TOP - BOTTOM) / LAYERS
    return (
        lambda column: int(LEFT + column * step + 0.5),
        lambda layer: int(height - BOTTOM - layer * row + 0.5),
    )


def pixels(page: Page, name: str, columns: int, column: int, layer: int) -> list[tuple[int, ...]]:
    """The colours inside one cell, its edges apart."""
    x, y = edges(page, name, columns)
    left, top = x(column) + 1, y(layer) + 1
    box = [name, left, top, x(column + 1) - left - 4, y(layer - 1) - top - 1]
    return [tuple(p) for p in page.evaluate(COLOURS, box)]


def exits(page: Page, lane: str = "upper") -> list[int]:
    labels = page.locator(f".lane-{lane} .tok").evaluate_all("a => a.map(c => c.ariaLabel)")
    return [
        int(label.split("chosen after ")[1].split(" ")[0]) if "never" not in label else LAYERS
        for label in labels
    ]


def solid(cell: list[tuple[int, ...]], colour: tuple[int, ...]) -> bool:
    return all(p[:3] == colour and p[3] == 255 for p in cell)


def test_the_staircase_follows_the_exits(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0], theme="light")
    run_to_end(page)
    page.locator(".lane-upper .tok").first.focus()
    settled(page)
    depths = exits(page)
    x, y = edges(page, "heat", len(depths))
    for column in range(2, len(depths)):
        middle = (x(column) + x(column + 1)) // 2
        line = page.evaluate(COLOURS, ["heat", middle, y(depths[column]) - 1, 1, 2])
        assert [tuple(p[:3]) for p in line] == [MARK, MARK], column
        run = pixels(page, "heat", len(depths), column, 1)
        assert max(max(p[:3]) for p in run) < 80, "the first layer changes most: the dark end"
        assert len(set(run)) == 1 and run[0][3] == 255
        if depths[column] < LAYERS - 1:
            empty = pixels(page, "heat", len(depths), column, depths[column] + 2)
            assert any(p[3] < 100 for p in empty), "a layer that was not run is hatched"


def test_the_cache_by_position_has_the_records_colours(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0], theme="light")
    run_to_end(page)
    page.locator(".lane-upper .tok").last.focus()
    settled(page)
    depths = exits(page)
    columns = 11 + len(depths) - 1
    for column in [0, 10, *range(11, columns - 1)]:
        depth = 5 if column < 11 else depths[column - 10]
        assert solid(pixels(page, "kv", columns, column, depth), BLUE), column
        if depth < LAYERS:
            hatched = pixels(page, "kv", columns, column, depth + 1)
            assert {p[:3] for p in hatched} - {ORANGE} and ORANGE in {p[:3] for p in hatched}
    counts = page.locator(".panel-kv .kv-count").all_text_contents()
    blue = 11 * 5 + sum(depths[1:])
    assert counts == [f"backbone {blue}", f"river {columns * LAYERS - blue}"]


def test_every_source_and_a_later_change(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0], theme="light")
    run_to_end(page, "hostile")
    columns = 11 + page.locator(".lane-upper .tok").count() - 1
    row = 11  # the position that token 2 was chosen at
    page.locator(".lane-upper .tok").nth(2).focus()
    settled(page)
    frame = {"m": "cross", "p": "dots", "d": "lines"}
    for letter in "brpmdn":
        layer = EVERY_SOURCE.index(letter) + 2
        cell = pixels(page, "kv", columns, row, layer)
        colours = {p[:3] for p in cell if p[3] == 255}
        if letter in "br":
            assert (BLUE if letter == "b" else ORANGE) in colours
        inked = sum(p[3] > 0 for p in cell) / len(cell)
        assert (0 < inked < 1) if letter in frame else inked == (letter != "n"), letter
    before = page.locator(".panel-kv .kv-count[data-source=d]").text_content()
    assert before == "deferred 5"
    page.locator(".lane-upper .tok").nth(3).focus()
    settled(page)
    assert page.locator(".panel-kv .kv-count[data-source=d]").count() == 0
    assert solid(pixels(page, "kv", columns, row, 24), BLUE)
    page.locator(".table-box summary").click()
    changed = page.locator(".of-answers .col-later").nth(1)
    expect(changed).to_have_text("layers 22 to 26 by token 4: backbone")
    expect(page.locator(".of-prompts tr")).to_have_count(22)
    expect(page.locator(".of-prompts .col-kv").first).to_have_text("b" * 5 + "r" * 25)


def test_hover_and_click(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page, "hostile")
    page.locator(".lane-upper .tok").nth(2).focus()
    settled(page)
    count = page.locator(".lane-upper .tok").count()
    hostile = next(i for i, t in enumerate(HOSTILE) if t.startswith("<img"))
    for name, columns, column in (("heat", count, hostile), ("kv", 10 + count, 11 + hostile)):
        x, y = edges(page, name, columns)
        spot = {"x": (x(column) + x(column + 1)) / 2, "y": (y(1) + y(0)) / 2}
        canvas = page.locator(f".panel-{name} canvas")
        canvas.hover(position=spot)
        tip = page.locator(f".panel-{name} .map-tip")
        expect(tip).to_be_visible()
        expect(tip).to_contain_text(HOSTILE[hostile])
        expect(tip).to_contain_text("layer 1: ")
        canvas.click(position=spot)
        index = hostile + (name == "kv")
        expect(page.locator(".lane-upper .tok.selected")).to_have_attribute(
            "data-index", str(index)
        )
        expect(canvas).to_have_attribute("aria-label", canvas.get_attribute("aria-label") or "")
        assert f"oken {index + 1}, " in (canvas.get_attribute("aria-label") or "")
    assert page.locator(".lane .tok[tabindex='0']").count() == 1
    assert page.locator(".rv img, .rv script").count() == 0
    assert page.evaluate("window.pwned") is None


@pytest.mark.parametrize("name", ["heat", in_full("trace"), in_full("kv")])
def test_enlarge_and_escape(open_page: OpenPage, served: Any, name: str) -> None:
    page = open_page(served[0])
    run_to_end(page)
    drawing = page.locator(f".panel-{name} {'svg.trace' if name == 'trace' else 'canvas'}")
    before = drawing.bounding_box()
    button = page.locator(f".panel-{name} .enlarge")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator("dialog.enlarged")).to_be_visible()
    settled(page)
    after = drawing.bounding_box()
    assert before and after and after["width"] > 1.5 * before["width"]
    assert after["height"] > 1.5 * before["height"]
    assert page.locator(f"dialog .panel-{name}").count() == 1
    chosen = page.locator(".tok.selected").get_attribute("data-index")
    page.keyboard.press("ArrowRight")
    moved = page.locator(".tok.selected").get_attribute("data-index")
    assert int(moved or 0) == int(chosen or 0) + 1
    page.keyboard.press("Escape")
    expect(page.locator("dialog.enlarged")).to_be_hidden()
    expect(button).to_be_focused()
    expect(button).to_have_text("Enlarge")
    settled(page)
    back = drawing.bounding_box()
    assert back and (back["width"], back["height"]) == (before["width"], before["height"])


def test_three_pins_are_compared(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page)
    for index in (2, 4, 6, 8):
        page.locator(".lane-upper .tok").nth(index).click()
    page.mouse.move(0, 0)
    expect(page.locator(".tok.pinned")).to_have_count(3)
    expect(page.locator(".trace-beside")).to_have_count(2)
    expect(page.locator(".panel-trace .panel-head")).to_contain_text("token 9, River · pinned")
    page.locator(".lane-upper .tok").nth(10).focus()
    expect(page.locator(".trace-beside")).to_have_count(3)
    page.keyboard.press("Escape")
    expect(page.locator(".tok.pinned")).to_have_count(0)
    expect(page.locator(".trace-beside")).to_have_count(0)


def test_why_a_token_left(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page)
    why = page.locator(".panel-choice .why")
    page.locator(".lane-upper .tok.never").first.focus()
    expect(why).to_contain_text("Never left")
    page.locator(".lane-upper .tok:not(.never)").nth(3).focus()
    expect(why).to_contain_text("is above τ = 0.980")
    page.locator(".lane-lower .tok").first.focus()
    expect(why).to_contain_text("Ran all 30 layers")
    expect(page.locator(".panel-heat .map-caption")).to_contain_text("every layer")
    expect(page.locator(".panel-kv .kv-count")).to_have_text(["backbone 330"])


@pytest.mark.thorough
def test_two_thousand_tokens_stay_fluid(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page, "huge")
    scroll = page.locator(".panel-heat .map-scroll")
    assert scroll.evaluate("s => s.scrollWidth") > 6000
    for index in (5, 1000, 1999):
        page.locator(".lane-upper .tok").nth(index).focus()
        settled(page)
        assert drawing_time(page) < 100 * busy()
    assert scroll.evaluate("s => s.scrollLeft") > 5000
    page.locator(".panel-heat canvas").hover(position={"x": 200, "y": 100})
    page.wait_for_timeout(500)
    page.evaluate(
        "() => { window.slow = []; new PerformanceObserver(l => slow.push(...l.getEntries().map("
        "e => e.duration))).observe({type: 'longtask'}); }"
    )
    for left in (0, 700, 3000):
        scroll.evaluate("(s, left) => { s.scrollLeft = left; }", left)
        settled(page)
        page.locator(".panel-heat canvas").hover(position={"x": 200 + left / 100, "y": 150})
        assert drawing_time(page) < 100 * busy()
    page.wait_for_timeout(300)
    assert max(page.evaluate("window.slow"), default=0) < 100 * busy()


def drawing_time(page: Page) -> int:
    """Milliseconds that the latest drawing of both maps took."""
    return int(page.locator(".panel-kv canvas").get_attribute("data-milliseconds") or "1000")
