"""How often a page is told of work that goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping

INTERVAL = 0.11  # seconds between views: 8 to 10 a second with what Gradio adds
BESIDE = 0.6  # the same where the page's browser takes its time from the work


def between_views(device: str, environment: Mapping[str, str] = os.environ) -> float:
    """Seconds between two views of work on `device`: "cpu", "cuda", "" where nothing is loaded yet.

    Longer where the page's browser takes its time from the work: both are on this machine, and the
    work uses every core. Before a Space (SPACE_ID) the browser is elsewhere.
    """
    if device != "cpu" or "SPACE_ID" in environment:
        return INTERVAL
    from river_core.devices import threads, usable_cores

    return BESIDE if threads() >= usable_cores() else INTERVAL
