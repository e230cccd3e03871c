"""Public names stay functions where a file is called the same, and need no torch to be listed."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys, river_core
assert "torch" not in sys.modules and {name!r} in dir(river_core)
import river_core.{module}
from river_core import {name}
assert {name} is river_core.{name} is sys.modules["river_core.{module}"].{name}
assert callable({name})
"""


@pytest.mark.parametrize(
    ("name", "module"),
    [("compare", "compare"), ("kv_error", "kv_error"), ("earliest_safe_exits", "safe_exits")],
)
def test_a_name_is_the_function(name, module):
    code = CODE.format(name=name, module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
