"""The README's text on adding a policy, run as it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import river_core
from river_core.exits import EXITS
from river_core.fills import FILLS, Fill
from river_core.policies import POLICIES, Policy

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    """What a test adds is taken out again."""
    before = [(table, dict(table)) for table in (EXITS, POLICIES, FILLS)]
    yield
    for table, rows in before:
        table.clear()
        table.update(rows)


def readme_code() -> str:
    section = README.partition("\n## Add a policy\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return code


@pytest.mark.few
def test_the_readme_adds_a_policy_in_twenty_lines(tiny):
    code = readme_code()
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    exec(compile(code, "README.md", "exec"), {})
    layers = tiny.config.layers
    runs = [
        river_core.generate(tiny.load(bits=16), tiny.prompt, policy=p, max_new_tokens=9)
        for p in ("backbone", "every-third")
    ]
    assert [t.token_id for t in runs[0].tokens] == [t.token_id for t in runs[1].tokens]
    assert [t.exit_layer for t in runs[1].tokens[1:]] == [2, 2, layers, 2, 2, layers, 2, 2]
    forced = river_core.teacher_forced(
        tiny.load(bits=4), tiny.prompt, [3] * 9, policy="every-third"
    )
    assert {t.exit_layer for t in forced.tokens[1:]} == {2, layers}


def test_a_fill_is_a_row_too(one_tiny):
    FILLS["fresh"] = Fill("p", "p")
    POLICIES["fresh"] = Policy(
        sentence="As state propagation.", source="a test", exits=("fixed",), fill="fresh",
        heads=("lens",), prefills=("full",),
    )  # fmt: skip
    settings = {"exit": "fixed", "options": {"exit_layer": 2}, "head": "lens", "max_new_tokens": 6}
    runs = [
        river_core.generate(one_tiny.load(bits=4), one_tiny.prompt, policy=p, **settings)
        for p in ("fresh", "state-propagation")
    ]
    assert [t.token_id for t in runs[0].tokens] == [t.token_id for t in runs[1].tokens]
    assert (
        runs[0].tokens[1].kv_source
        == runs[1].tokens[1].kv_source
        == "bb" + "p" * (one_tiny.config.layers - 2)
    )


def test_an_unknown_name_is_unknown_again(one_tiny):
    with pytest.raises(river_core.RiverError, match="unknown policy 'every-third'"):
        river_core.generate(one_tiny.load(), one_tiny.prompt, policy="every-third")
