"""Two people at the one worker of a real app: how long until a stop has reached page and worker."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from playwright.sync_api import Browser, Page

from tests.ui.driving import LOADED_WITHIN, finish, start

STORY = "Tell me a very long story about a river."
LONG = "The river runs down to the sea and brings water, sand and stories. " * 100  # 1,500 tokens
PHASE = "document.body.dataset.phase === '{}'"
NOTE = """() => {
  window.seen = [];
  const note = () => seen.push([document.body.dataset.phase, Date.now()]);
  new MutationObserver(note).observe(document.body, {attributeFilter: ["data-phase"]});
}"""
PRESS = "() => { const now = Date.now(); document.getElementById('stop').click(); return now; }"
FREE = ("prompt", "decoding", "tracing", "done")  # phases of a run whose turn has come


def busy() -> float:
    """How many times longer things take because others compute here: processes per core, or 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def visitor(browser: Browser, url: str) -> Page:
    """Somebody with the page open and the model ready; phases are noted with their times."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(url)
    page.wait_for_selector("#rv-details .tile")
    page.wait_for_function(PHASE.format("ready"), timeout=LOADED_WITHIN)
    page.evaluate(NOTE)
    return page


def until(page: Page, condition: str) -> None:
    """Wait for a condition in the page's script."""
    page.wait_for_function(condition, timeout=120_000, polling=20)


def queue(page: Page) -> None:
    """Ask for a short run while another one is at work."""
    page.evaluate("seen.length = 0")
    start(page, "Hi", 2)
    until(page, PHASE.format("waiting"))


def noted(page: Page, phases: tuple[str, ...]) -> float:
    """When the page first came into one of the phases, in milliseconds of the clock."""
    first = f"seen.find(([name]) => {list(phases)}.includes(name))"
    until(page, first)
    return float(page.evaluate(f"{first}[1]"))


@dataclass(frozen=True)
class Moment:
    """Something that can be stopped: how it begins, and the sign that it has ended so."""

    begin: Callable[[Page], None]
    ended: str = PHASE.format("stopped")


def running(prompt: str, tokens: int, condition: str) -> Moment:
    """A run, once a condition holds."""

    def begin(page: Page) -> None:
        start(page, prompt, tokens)
        until(page, "document.body.dataset.phase !== 'stopped' && " + condition)

    return Moment(begin)


def working(kind: str) -> Moment:
    """Work on a finished run, once it has begun."""
    said = f"document.querySelector('.{kind}-button ~ [role=status]').textContent"

    def begin(page: Page) -> None:
        start(page, STORY, 40)
        finish(page)
        page.locator(f".{kind}-button").dispatch_event("click")
        until(page, f"{said} !== '' && !/Starting|Waiting/.test({said})")

    return Moment(begin, f"{said} === 'Stopped'")


MOMENTS = {
    "prompt": running(LONG, 32, PHASE.format("prompt")),
    "decode": running(STORY, 1500, PHASE.format("decoding")),
    "second lane": running(STORY, 160, "document.querySelector('.lane-lower .tok') !== null"),
    "tracing": running(LONG[:2400], 4, PHASE.format("tracing")),
    "measure": working("measure"),
    "safe": working("safe"),
}


def seconds_to_stop(one: Page, two: Page, moment: Moment, wait: int) -> tuple[float, float]:
    """From the click on Stop, `wait` milliseconds after the moment: (page, worker) seconds.

    The page has stopped when it says so, the worker is free when the other's run has its turn.
    """
    moment.begin(one)
    queue(two)
    one.wait_for_timeout(wait)
    clicked = one.evaluate(PRESS)
    until(one, moment.ended)
    ended = float(one.evaluate("Date.now()"))
    free = noted(two, FREE)
    until(two, PHASE.format("done"))
    return (ended - clicked) / 1000, (free - clicked) / 1000
