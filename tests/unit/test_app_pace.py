"""How often a page is told of work, by where its browser is."""

from __future__ import annotations

import pytest

from app.pace import BESIDE, INTERVAL, between_views
from river_core import devices


@pytest.mark.parametrize(("threads", "seconds"), [(3, INTERVAL), (4, BESIDE), (5, BESIDE)])
def test_seldom_where_the_browser_takes_its_time_from_the_work(
    monkeypatch: pytest.MonkeyPatch, threads: int, seconds: float
) -> None:
    """On this machine, where no core is left for it."""
    monkeypatch.setattr(devices, "usable_cores", lambda: 4)
    monkeypatch.setattr(devices, "threads", lambda: threads)
    assert between_views("cpu", {}) == seconds
    elsewhere = [("cuda", {}), ("", {}), ("cpu", {"SPACE_ID": "a/b"})]
    assert {between_views(*where) for where in elsewhere} == {INTERVAL}
