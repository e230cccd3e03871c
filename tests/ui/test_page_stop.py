"""Stop, closing the tab and other visitors, over the packaged model.

Bounds are for a machine with a core for each process; they grow with the processes per core.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import pytest
from gradio_client import Client
from playwright.sync_api import Browser, Page, expect

from tests.ui.conftest import Watch
from tests.ui.driving import finish, start
from tests.ui.stopping import (
    FREE,
    MOMENTS,
    PHASE,
    STORY,
    busy,
    noted,
    queue,
    seconds_to_stop,
    until,
    visitor,
)

SOON, LOOSE, LEFT = 0.5, 1.5, 2.0  # seconds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def people(browser: Browser, packaged_app: str) -> Iterator[list[Page]]:
    """Three people with the page open; no error on any page at the end."""
    watch = Watch()
    pages = [visitor(browser, packaged_app) for _ in range(3)]
    for page in pages:
        watch.attach(page)
    yield pages
    for page in pages:
        page.context.close()
    assert (watch.errors, watch.dialogs, watch.strangers) == ([], [], [])


@pytest.mark.parametrize("moment", ["prompt", "decode", "second lane", "measure", "safe"])
def test_stop_reaches_page_and_worker(people: list[Page], moment: str) -> None:
    bound = LOOSE * busy()
    page, worker = seconds_to_stop(*people[:2], MOMENTS[moment], 200)
    assert page < bound and worker < bound


@pytest.mark.thorough
@pytest.mark.parametrize("moment", MOMENTS)
def test_stop_within_half_a_second(people: list[Page], moment: str) -> None:
    bound = SOON * busy()
    times = [seconds_to_stop(*people[:2], MOMENTS[moment], 150 * n) for n in range(1, 6)]
    page, worker = (median(column) for column in zip(*times, strict=True))
    assert page < bound and worker < bound, times


@pytest.mark.parametrize("moment", ["prompt", "decode", "measure"])
def test_a_closed_page_frees_the_worker(
    browser: Browser, people: list[Page], packaged_app: str, moment: str
) -> None:
    other = people[1]
    leaving = visitor(browser, packaged_app)
    MOMENTS[moment].begin(leaving)
    queue(other)
    bound, closed = LEFT * busy(), 1000 * time.time()
    leaving.context.close()
    assert (noted(other, FREE) - closed) / 1000 < bound
    finish(other)


def run_id(page: Page) -> str:
    return str(page.locator("#rv-lanes [data-run]").get_attribute("data-run"))


def words(page: Page, lane: str = "upper") -> list[str]:
    return page.locator(f".lane-{lane} .tok .txt").all_text_contents()


def test_visitors_wait_in_order_and_get_their_own_runs(
    people: list[Page], packaged_app: str
) -> None:
    one, two, three = people
    start(one, STORY, 1500)
    until(one, PHASE.format("decoding"))
    start(two, "Name three colours.", 10)
    start(three, "Why is the sky blue?", 12)
    expect(two.locator("#status")).to_contain_text("1 before")
    expect(three.locator("#status")).to_contain_text("2 before")
    before = len(words(one))
    two.locator("#threshold input[type=range]").press("Home")  # not of the run of another
    two.click("#stop")
    until(two, PHASE.format("stopped"))
    expect(three.locator("#status")).to_contain_text("1 before")
    until(one, f"document.querySelectorAll('.lane-upper .tok').length > {before + 3}")
    one.click("#stop")
    until(one, PHASE.format("stopped"))
    finish(three)
    start(two, "Name three colours.", 10)
    finish(two)
    client = Client(packaged_app, verbose=False)
    records = [client.predict(run_id(page), "upper", api_name="/record") for page in people]
    thresholds = [{token["threshold"] for token in record["tokens"]} for record in records]
    assert thresholds[0] == thresholds[2] and len(thresholds[0]) == 1
    assert max(thresholds[1]) < min(thresholds[0])
    prompts = ["".join(record["prompt"]["texts"]) for record in records]
    for text, asked in zip(prompts, (STORY, "three colours", "sky blue"), strict=True):
        assert asked in text
    for page, record in zip(people, records, strict=True):
        texts = [token["text"].strip() for token in record["tokens"]]
        assert [t for t in texts if t.isalpha()] == [w for w in words(page) if w.isalpha()]
    assert len({run_id(page) for page in people}) == 3
