"""Cases of a parametrised test that only `--whole` runs."""

from __future__ import annotations

from typing import Any

import pytest


def in_full(*values: Any) -> Any:
    """The values of one case, marked `thorough`."""
    return pytest.param(*values, marks=pytest.mark.thorough)
