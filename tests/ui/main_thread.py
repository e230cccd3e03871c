"""How long the page's main thread is held by one task, from the browser's own trace."""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Mapping
from typing import Any

from playwright.sync_api import Browser, Page

PLAY = """async ([actions, rounds, pause]) => {
  const rest = () => new Promise((done) => setTimeout(done, pause));
  for (let round = 0; round < rounds; round++) {
    for (const [name, action] of Object.entries(actions)) {
      await rest();
      performance.mark(`act:${name}`);
      new Function("round", action)(round);
    }
  }
  await rest();
}"""


def longest_tasks(
    browser: Browser, page: Page, actions: Mapping[str, str], *, rounds: int, pause: int = 250
) -> dict[str, list[float]]:
    """Per action (JavaScript that may use `round`), the longest task of each round until the next.

    Milliseconds of the thread's own processor time.
    """
    browser.start_tracing(page=page, categories=["toplevel", "blink.user_timing"])
    page.evaluate(PLAY, [dict(actions), rounds, pause])
    events = json.loads(browser.stop_tracing())["traceEvents"]
    acts = sorted(
        (event["ts"], event["name"].removeprefix("act:"), event["pid"], event["tid"])
        for event in events
        if str(event.get("name")).startswith("act:")
    )
    return _assign(events, acts)


def _assign(
    events: list[dict[str, Any]], acts: list[tuple[float, str, int, int]]
) -> dict[str, list[float]]:
    thread, starts = acts[0][2:], [act[0] for act in acts]
    longest = [0.0] * len(acts)
    for event in events:
        if event.get("ph") != "X" or (event["pid"], event["tid"]) != thread:
            continue
        if not event["name"].endswith("RunTask"):
            continue
        place = bisect(starts, event["ts"] + event["dur"]) - 1
        if place >= 0:
            longest[place] = max(longest[place], event.get("tdur", 0) / 1000)
    tasks: dict[str, list[float]] = {}
    for (_, name, *_), time in zip(acts, longest, strict=True):
        tasks.setdefault(name, []).append(time)
    return tasks
