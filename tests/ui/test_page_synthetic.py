"""The page over made-up runs: hostile text, cells, keyboard, pins, stop, bad input."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from tests.ui.driving import run_to_end
from tests.ui.synthetic import EVERY_SOURCE, HOSTILE, answers

OpenPage = Callable[..., Page]


def texts(page: Page, lane: str) -> list[str]:
    return page.locator(f".lane-{lane} .tok .txt").all_text_contents()


def test_hostile_tokens_are_plain_text(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page, "hostile")
    shown = texts(page, "upper")
    wanted = [t.strip(" ") for t in HOSTILE if t.strip() and t.isprintable()]
    for text in wanted:
        assert text in [s.removeprefix("◌") for s in shown], text
    for symbol in (
        "↵",
        "↵↵",
        "⇥",
        "·",
        "···",
        "⟨U+202E⟩evil⟨U+202C⟩",
        "20 F0 9F",
        "8C",
        "🌊",
        "end",
    ):
        assert symbol in shown
    assert len(shown) == len(answers("hostile")[0])
    assert page.evaluate("window.pwned") is None
    assert page.locator(".rv img, .rv script").count() == 0
    labels = page.locator(".lane-upper .tok").evaluate_all("a => a.map(c => c.ariaLabel)")
    assert "<img src=x onerror=" in labels[HOSTILE.index(HOSTILE[6])]


def test_every_view_of_a_hostile_token_is_text(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page, "hostile")
    for index in range(page.locator(".lane-upper .tok").count()):
        page.locator(".lane-upper .tok").nth(index).focus()
        assert page.locator(".panel-trace svg.trace").count() == 1
    page.locator(".table-box summary").click()
    rows = page.locator(".tokens .of-answers tr")
    expect(rows).to_have_count(sum(len(a) for a in answers("hostile")))
    expect(rows.first).to_contain_text("${1+1}")


def test_cells_carry_colour_bar_and_frame(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page)
    backbone = page.locator(".lane-lower .tok").first
    assert backbone.evaluate("c => getComputedStyle(c).backgroundColor") == "rgb(0, 44, 100)"
    assert backbone.evaluate("c => getComputedStyle(c).borderTopStyle") == "double"
    early = page.locator(".lane-upper .tok.b0").first
    assert early.evaluate("c => getComputedStyle(c).backgroundColor") == "rgb(248, 223, 60)"
    assert early.evaluate("c => getComputedStyle(c).color") == "rgb(0, 0, 0)"
    assert early.locator(".bar").evaluate("b => parseFloat(b.style.width)") <= 100 * 5 / 30 + 0.01
    counts = page.locator(".legend .count").all_text_contents()
    assert sum(map(int, counts)) == page.locator(".lane-upper .tok").count()
    small = page.locator(".tok").evaluate_all(
        "a => a.filter(c => c.offsetWidth < 24 || c.offsetHeight < 24).length"
    )
    assert small == 0


def test_the_first_difference_is_marked_and_linked(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page)
    expect(page.locator(".tok.different")).to_have_count(2)
    page.locator(".lane-lower .lane-different").click()
    expect(page.locator(":focus")).to_have_class(re.compile(r"\bdifferent\b"))


def test_keyboard(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page)
    assert page.locator(".lane .tok[tabindex='0']").count() == 1
    page.locator(".lane .tok[tabindex='0']").focus()
    page.keyboard.press("Home")
    here = "document.activeElement"
    where = f"{here}.closest('.lane').dataset.lane + {here}.dataset.index"
    assert page.evaluate(where) == "upper0"
    for key, place in (
        ("ArrowRight", "upper1"),
        ("ArrowRight", "upper2"),
        ("ArrowLeft", "upper1"),
        ("ArrowDown", "lower1"),
        ("End", "lower43"),
        ("ArrowUp", "upper43"),
        ("End", "upper59"),
        ("ArrowDown", "lower43"),
        ("Home", "lower0"),
        ("ArrowLeft", "lower0"),
        ("ArrowUp", "upper0"),
    ):
        page.keyboard.press(key)
        assert page.evaluate(where) == place, key
    assert page.locator(".lane .tok[tabindex='0']").count() == 1
    expect(page.locator(".panel-trace h2")).to_have_text("Similarity of Rain")


def test_pin_and_unpin(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page)
    page.locator(".lane-upper .tok").nth(4).focus()
    page.keyboard.press("Enter")
    expect(page.locator(".panel-trace .panel-head")).to_contain_text("token 5, River · pinned")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".panel-trace .panel-head")).to_contain_text("token 5, River · pinned")
    expect(page.locator(".trace-beside")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator(".panel-trace .panel-head")).to_contain_text("token 6, River")
    page.locator(".lane-lower .tok").nth(2).click()
    expect(page.locator(".panel-trace .panel-head")).to_contain_text("token 3, Backbone · pinned")
    expect(page.locator(".panel-trace")).to_contain_text("this lane runs every layer")


def test_trace_and_column_of_a_token(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page)
    cell = page.locator(".lane-upper .tok:not(.never)").nth(3)
    cell.focus()
    label = cell.get_attribute("aria-label") or ""
    layer = int(label.split("chosen after ")[1].split(" ")[0])
    position = int(label.split("position ")[1].split(" ")[0])
    expect(page.locator(".panel-trace")).to_contain_text("τ = 0.980")
    expect(page.locator(".panel-trace")).to_contain_text(f"left after layer {layer}")
    assert page.locator(".trace-dot").count() == layer
    assert page.locator(".kv-column .kv-slot-b").count() == layer
    assert page.locator(".kv-column .kv-slot-r").count() == 30 - layer
    expect(page.locator(".column-sentence")).to_contain_text(f"at position {position} wrote")
    heights = page.locator(".kv-column .kv-slot-b").evaluate_all(
        "a => a.map(r => +r.getAttribute('y'))"
    )
    assert heights == sorted(heights, reverse=True), "layer 1 is at the bottom"
    page.locator(".lane-upper .tok.never").first.focus()
    expect(page.locator(".panel-trace")).to_contain_text("never left")
    expect(page.locator(".panel-choice .choice tr")).to_have_count(5)


def test_every_kv_source_has_its_own_look(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page, "hostile")
    page.locator(".lane-upper .tok").first.focus()
    for letter in "brpmdn":
        slots = page.locator(f".kv-column .kv-slot-{letter}")
        assert slots.count() == EVERY_SOURCE.count(letter)
    looks = {
        page.locator(f".kv-column .kv-slot-{letter}").first.evaluate(
            "s => getComputedStyle(s).fill"
        )
        for letter in "brpd"
    }
    assert len(looks) == 4
    assert page.locator(".kv-column .kv-cross").count() == EVERY_SOURCE.count("m")
    expect(page.locator(".column-keys")).to_contain_text("propagated: layers 12 to 16")


def test_stop_keeps_the_tokens(open_page: OpenPage, served: Any) -> None:
    url, source = served
    page = open_page(url)
    source.pause = 0.15
    page.fill("#prompt textarea", "long")
    page.click("#run")
    page.wait_for_function("document.querySelectorAll('.lane-upper .tok').length > 10")
    page.click("#stop")
    expect(page.locator("#status")).to_have_text("Stopped")
    source.pause = 0.03
    assert 10 < page.locator(".lane-upper .tok").count() < 400
    assert page.input_value("#prompt textarea") == "long"


def test_a_long_answer_stays_whole(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page, "long")
    for lane, wanted in zip(("upper", "lower"), answers("long"), strict=True):
        assert len(texts(page, lane)) == len(wanted)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_bad_input_is_told_beside_the_prompt(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    page.fill("#prompt textarea", "  ")
    page.click("#run")
    alert = page.locator("[role=alert]:has-text('prompt is empty')")
    expect(alert).to_be_visible()
    assert page.get_attribute("#prompt textarea", "aria-invalid") == "true"
    run_to_end(page)
    expect(alert).to_have_count(0)


def test_legend_entries_filter(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page)
    entry = page.locator(".legend .entry").last
    entry.click()
    assert entry.get_attribute("aria-pressed") == "true"
    never = page.locator(".lane-upper .tok.never").count()
    assert page.locator(".lane-upper .tok:not(.faded)").count() == never
    entry.click()
    assert page.locator(".tok.faded").count() == 0


def test_the_calibration_sets_the_sliders_scale(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    slider = page.locator("#threshold input[type=range]")
    expect(slider).to_have_attribute("min", "0.9")
    expect(slider).to_have_attribute("max", "1")
    assert slider.input_value() == "0.98"
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert float(slider.input_value()) == 0.9805
    expect(page.locator("#threshold")).to_contain_text("Calibrated: 0.9915 keeps 98.6%")


def test_run_pressed_twice_changes_nothing(open_page: OpenPage, served: Any) -> None:
    url, source = served
    page = open_page(url)
    source.pause = 0.1
    page.fill("#prompt textarea", "long")
    page.click("#run")
    page.wait_for_function("document.querySelectorAll('.lane-upper .tok').length > 10")
    run = page.locator("#rv-lanes [data-run]").get_attribute("data-run")
    page.click("#run")
    page.locator("#prompt textarea").press("Enter")
    page.wait_for_timeout(400)
    assert page.locator(".lane-upper .tok").count() > 10
    assert page.locator("#rv-lanes [data-run]").get_attribute("data-run") == run
    page.click("#stop")
    expect(page.locator("#status")).to_have_text("Stopped")
    source.pause = 0.03
