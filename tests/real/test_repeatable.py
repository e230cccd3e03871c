"""Two processes give the same runs of the packaged model, to the last bit, in the stored dtype."""

from __future__ import annotations

import pytest

from tests.real.conftest import NAME
from tests.tiny.repeated import could_differ, in_a_process

PROMPT = "Why is the sky blue? Answer in one sentence, and then say why sunsets are red."


@pytest.mark.thorough  # tests/tiny/test_repeatable.py holds the same on a small model
def test_two_processes() -> None:
    """The first one chooses kernels where none are stored; the second recalls its choice."""
    arguments = (NAME, PROMPT, "auto", "--threshold", "0.8")
    first, second = in_a_process(*arguments), in_a_process(*arguments, "--backwards")
    assert first == second and could_differ(first)
