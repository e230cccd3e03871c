"""A run of every policy can be saved and opened on the page again: the page's check is not too
strict for what the engine writes.
"""

from __future__ import annotations

import pytest

import river_core
from app.recorded import parse, saved, view
from river_core.policies import POLICIES


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_of_each_policy_is_shown_from_its_file(one_tiny, policy):
    for head in POLICIES[policy].heads:
        settings = {"policy": policy, "head": head, "threshold": 0.3, "max_new_tokens": 9}
        run = river_core.generate(
            one_tiny.load(bits=4), one_tiny.prompt, prompt_trace=True, profile=True, **settings
        )
        text = saved([run, run])
        again = parse(text, "saved")
        assert saved(again) == text
        assert view(again, "saved")["lanes"]["upper"]["policy"] == policy
