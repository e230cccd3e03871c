"""What the tests of backbone offloading share."""

from __future__ import annotations

from dataclasses import replace

import river_core

TOKENS = 10
QUIET = {"max_new_tokens": TOKENS, "full_trace": False}


def fresh(tiny, **settings):
    """A model of its own, fp32 on the CPU."""
    return river_core.load(str(tiny.folder), device="cpu", dtype="float32", **settings)


def shown(run):
    """What a run says of each token, times apart."""
    return [replace(t, seconds=0.0) for t in run.tokens]


def ids(run):
    return [t.token_id for t in run.tokens]
