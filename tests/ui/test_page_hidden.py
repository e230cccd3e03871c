"""A tab in the background: no frame is drawn, timers come once a second; in front again it has all.

A headless browser hides no tab, so what hiding does to a page is done to it by a script.
"""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.ui.conftest import Watch
from tests.whole import in_full

HIDING = """
  const [frame, later] = [window.requestAnimationFrame, window.setTimeout];
  let [behind, held] = [false, []];
  window.requestAnimationFrame = (call) =>
    (behind ? held.push(call) : frame.call(window, call));
  window.setTimeout = (call, wait, ...rest) =>
    later.call(window, call, behind ? Math.max(1000, wait || 0) : wait, ...rest);
  for (const [name, value] of [["hidden", () => behind],
    ["visibilityState", () => (behind ? "hidden" : "visible")]]) {
    Object.defineProperty(Document.prototype, name, {get: value, configurable: true});
  }
  window.hide = (so) => {
    behind = so;
    document.dispatchEvent(new Event("visibilitychange"));
    if (!so) for (const call of held.splice(0)) frame.call(window, call);
  };
"""


@pytest.mark.parametrize(
    ("prompt", "counts"),
    [in_full("plain", (60, 44)), ("long", (400, 396))],
)
def test_a_hidden_tab_catches_up(
    browser: Browser, served: Any, prompt: str, counts: tuple[int, int]
) -> None:
    watch = Watch()
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    watch.attach(page)
    page.add_init_script(HIDING)
    page.goto(served[0])
    page.wait_for_selector("#rv-details .tile")
    page.fill("#prompt textarea", prompt)
    page.click("#run")
    page.wait_for_function("document.querySelectorAll('.lane-upper .tok').length > 3", polling=50)
    page.evaluate("hide(true)")
    page.wait_for_function("document.body.dataset.phase === 'done'", timeout=60_000, polling=100)
    page.evaluate("hide(false)")
    for lane, count in zip(("upper", "lower"), counts, strict=True):
        expect(page.locator(f".lane-{lane} .tok")).to_have_count(count)
    expect(page.locator("#status")).to_have_text("Done")
    page.locator(".lane-lower .tok").nth(2).click()
    expect(page.locator(".panel-trace .panel-head")).to_contain_text("token 3, Backbone")
    page.context.close()
    assert (watch.errors, watch.dialogs, watch.strangers) == ([], [], [])
