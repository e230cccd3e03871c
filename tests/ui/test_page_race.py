"""The comparison, the race, a measurement with repeats and safe exits, over made-up runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.driving import run_to_end
from tests.ui.synthetic import answers
from tests.ui.test_page_access import serious
from tests.whole import in_full

OpenPage = Callable[..., Page]
INK = """() => {
  const canvas = document.querySelector(".race-canvas");
  const seen = canvas.getContext("2d").getImageData(0, 18, canvas.width, 74).data;
  let blue = 0;
  for (let i = 0; i < seen.length; i += 4) if (seen[i + 2] === 100 && seen[i + 1] === 44) blue++;
  return blue;
}"""


def seek(page: Page, share: float) -> None:
    page.locator(".race-slider").evaluate(
        """(slider, share) => { slider.value = slider.max * share;
        slider.dispatchEvent(new Event("input", {bubbles: true})); }""",
        share,
    )


def heads(page: Page) -> list[str]:
    return page.locator(".race-head").all_text_contents()


def test_the_first_difference_stands_with_both_opinions(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page)
    section = page.locator(".compare")
    expect(section).to_contain_text("River and Backbone chose the same first 3 of 44 tokens, 7 %.")
    expect(section.locator(".compare-side h3")).to_have_text(
        ["River chose ·up", "Backbone chose ·by"]
    )
    expect(section.locator(".choice tr")).to_have_count(10)
    expect(section.locator(".alt-chosen .whose")).to_have_text(["chosen here", "chosen here"])
    expect(section).to_contain_text("tokens are not compared further")
    section.locator(".compare-show").click()
    expect(page.locator(":focus")).to_have_class(re.compile(r"\bdifferent\b"))


@pytest.mark.thorough
def test_nothing_is_compared_before_both_lanes_are_done(open_page: OpenPage, served: Any) -> None:
    url, source = served
    page = open_page(url)
    source.pause = 0.1
    page.fill("#prompt textarea", "long")
    page.click("#run")
    page.wait_for_function("document.querySelectorAll('.lane-upper .tok').length > 10")
    expect(page.locator(".compare .compare-sides")).to_have_count(0)
    expect(page.locator(".race")).to_be_hidden()
    expect(page.locator(".gap")).to_be_hidden()
    expect(page.locator(".measure-button")).to_be_hidden()
    page.click("#stop")
    expect(page.locator("#status")).to_have_text("Stopped")
    source.pause = 0.03


def test_layers_and_time_with_what_lies_between(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page)
    bars = page.locator(".gap-bar")
    expect(bars.locator(".number")).to_have_text(["100 %", re.compile(r"\d+ %"), "80 %"])
    widths = bars.locator(".gap-track").evaluate_all(
        """tracks => tracks.map(t => [...t.children].reduce((sum, c) => sum +
        c.getBoundingClientRect().width, 0) / t.getBoundingClientRect().width)"""
    )
    assert widths[0] == pytest.approx(1, abs=0.01)
    assert widths[1] < widths[2] < widths[0]
    assert widths[2] == pytest.approx(27.1 / 33.9, abs=0.01)
    expect(page.locator(".gap-lines")).to_contain_text("exit decisions")


def test_the_race_follows_the_recorded_times(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page)
    expect(page.locator(".race")).to_contain_text("The two ran one after the other")
    assert heads(page)[0] == "River: all 60 tokens, 1.71 s · prompt pass before it 214 ms"
    whole = page.evaluate(INK)
    seek(page, 0.5)
    # Tokens come every 29 ms, the first at 0; half of 59 intervals.
    assert heads(page)[0].startswith("River: 30 of 60 tokens")
    assert heads(page)[1].startswith("Backbone: 30 of 44 tokens")
    assert 0 < page.evaluate(INK) < whole
    expect(page.locator(".race-text").first).to_have_text(re.compile("^Rain is made up of water,"))
    seek(page, 0)
    assert heads(page)[0].startswith("River: 1 of 60 tokens")
    expect(page.locator(".race-text").first).to_have_text("Rain")


def test_the_race_plays_pauses_and_ends(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page)
    play = page.locator(".race-play")
    play.focus()
    page.keyboard.press("Space")
    expect(play).to_have_text("Pause")
    page.wait_for_function("document.querySelector('.race-slider').value > 0.2")
    page.keyboard.press("Space")
    expect(play).to_have_text("Play")
    at = page.locator(".race-slider").input_value()
    assert 0.2 < float(at) < 1.71
    page.wait_for_timeout(150)
    assert page.locator(".race-slider").input_value() == at
    page.locator(".race-slider").focus()
    page.keyboard.press("End")
    assert "60 tokens, Backbone 44" in (page.get_attribute(".race-slider", "aria-valuetext") or "")
    page.keyboard.press("Home")
    assert page.locator(".race-slider").input_value() == "0"
    play.click()
    page.wait_for_function("document.querySelector('.race-slider').value >= 1.7", timeout=8000)
    expect(play).to_have_text("Play")


@pytest.mark.thorough
def test_reduced_motion_steps_from_token_to_token(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0], reduced_motion="reduce")
    run_to_end(page)
    step = page.locator(".race-play")
    expect(step).to_have_text("Next token")
    step.click()
    assert heads(page)[0].startswith("River: 1 of 60")
    step.click()
    assert heads(page)[0].startswith("River: 2 of 60")
    page.wait_for_timeout(100)
    assert heads(page)[0].startswith("River: 2 of 60")


def test_two_thousand_tokens_stay_fluid(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page, "huge")
    assert len(answers("huge")[0]) == 2000
    spent = page.locator(".race-slider").evaluate(
        """slider => { const times = [];
        for (let i = 1; i <= 60; i++) {
          const start = performance.now();
          slider.value = slider.max * i / 60;
          slider.dispatchEvent(new Event("input", {bubbles: true}));
          document.querySelector(".race-text").scrollHeight;
          times.push(performance.now() - start);
        }
        return times.sort((a, b) => a - b)[30]; }"""
    )
    assert spent < 33, f"{spent:.0f} ms per frame"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.thorough
def test_a_click_on_the_race_selects_the_token(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page)
    page.locator(".race-canvas").click(position={"x": 12, "y": 30})
    expect(page.locator(".panel-trace .panel-head")).to_contain_text("token 2, River")


def test_a_measurement_replaces_the_quick_look(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page)
    badge = page.locator(".measure-line .measure-badge")
    expect(badge).to_have_text("quick look: one run each")
    expect(page.locator(".tile-upper_rate .tile-value")).to_have_text("33.9")
    page.locator(".measure-button").click()
    expect(badge).to_have_text("measured: n = 5 interleaved")
    expect(page.locator(".tile-upper_rate .tile-value")).to_have_text("34.0")
    expect(page.locator(".tile-upper_rate")).to_contain_text("30.9 to 35.5")
    expect(page.locator(".tile-lower_rate")).to_contain_text("26.1 to 28.0")
    page.locator(".measure-facts summary").click()
    expect(page.locator(".measure-facts")).to_contain_text("n = 5")
    expect(page.locator(".measure-facts")).to_contain_text("threads")
    expect(page.locator(".gap-bar .number").last).to_have_text("80 %")
    run_to_end(page)
    expect(badge).to_have_text("quick look: one run each")
    expect(page.locator(".gap .measure-badge")).to_have_text("quick look: one run each")


def test_measured_numbers_and_those_of_one_run_are_kept_apart(
    open_page: OpenPage, served: Any
) -> None:
    page = open_page(served[0])
    run_to_end(page)
    groups = page.locator(".tiles")
    titles, rates = (
        page.locator(".blocks .block:has(.both) h2"),
        page.locator(".both tr:has-text('decode')"),
    )
    expect(groups.nth(1)).to_be_hidden()
    expect(page.locator(".measure-rest")).to_be_hidden()
    expect(titles).to_have_text(["Both lanes, quick look"])
    page.locator(".measure-button").click()
    expect(titles).to_have_text(["Both lanes, measured", "Both lanes, quick look"])
    keys = "all => all.map(one => one.className.split('tile-')[1])"
    measured = groups.nth(0).locator(".tile").evaluate_all(keys)
    assert measured == ["upper_rate", "lower_rate", "mean_exit", "saved"]
    assert groups.nth(1).locator(".tile").evaluate_all(keys) == ["agreement", "memory"]
    expect(page.locator(".measure-rest .measure-badge")).to_have_text("quick look: one run each")
    expect(page.locator(".tile-saved")).to_contain_text("time saved by round: 12 % to 24 %")
    expect(rates.nth(0)).to_contain_text("34.0 (30.9 to 35.5)")
    expect(rates.nth(1)).to_contain_text("33.9")
    expect(page.locator(".gap .measure-badge")).to_have_text("measured: n = 5 interleaved")
    expect(page.locator(".lane-upper")).to_contain_text("tok/s in this run")


def test_a_measurement_is_stopped(open_page: OpenPage, served: Any) -> None:
    url, source = served
    page = open_page(url)
    run_to_end(page)
    source.pause = 1.0
    page.locator(".measure-button").click()
    expect(page.locator(".measure-button")).to_have_text("Stop measuring")
    expect(page.locator(".safe-button")).to_be_disabled()
    expect(page.locator(".measure-line")).to_contain_text(re.compile(r"Round \d of 5: River"))
    page.locator(".measure-button").click()
    expect(page.locator(".measure-line")).to_contain_text("Stopped")
    source.pause = 0.03
    expect(page.locator(".measure-line .measure-badge")).to_have_text("quick look: one run each")


@pytest.mark.thorough
def test_a_refused_measurement_is_one_sentence(open_page: OpenPage, served: Any) -> None:
    url, source = served
    page = open_page(url)
    run_to_end(page)
    source.shown = None
    page.locator(".measure-button").click()
    expect(page.locator(".measure [role=alert]")).to_have_text(
        "The server keeps this run no longer; run it again first."
    )


def test_earliest_safe_exits_in_the_inspector(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page)
    page.locator(".safe-button").click()
    expect(page.locator(".safe-found")).to_contain_text("earliest safe exit: layer")
    for index, words in (
        (3, "earliest safe exit: layer 4; from layer 5 on every exit is safe"),
        (4, "earliest safe exit: layer 2"),
        (0, ""),
    ):
        page.locator(".lane-upper .tok").nth(index).focus()
        assert page.locator(".safe-found").text_content() == words
    page.locator(".lane-lower .tok").nth(2).focus()
    expect(page.locator(".safe-found")).to_be_empty()


@pytest.mark.thorough
def test_a_recorded_run_is_compared_but_not_measured(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    expect(page.locator(".compare-sides")).to_be_visible()
    expect(page.locator(".race-canvas")).to_be_visible()
    expect(page.locator(".measure-button")).to_be_hidden()
    expect(page.locator(".safe-button")).to_be_hidden()


@pytest.mark.parametrize("theme", [in_full("light"), "dark"])
def test_all_of_it_is_accessible_and_narrow(open_page: OpenPage, served: Any, theme: str) -> None:
    page = open_page(served[0], theme=theme, width=390)
    run_to_end(page, "hostile")
    page.locator(".measure-button").click()
    page.wait_for_selector(".measure-line .is-measured")
    page.locator(".measure-facts summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious(page) == []
    assert page.evaluate("window.pwned") is None
    small = page.locator(
        ".race button, .race-slider, .measure button, .compare button"
    ).evaluate_all("a => a.filter(c => c.offsetHeight && c.offsetHeight < 24).length")
    assert small == 0
