"""The page's scripts share one scope: no name is given twice, and each file is in the list."""

from __future__ import annotations

import re
from collections import Counter

from app.theme import EARLY, SCRIPTS, STYLES
from app.views.wording import ASSETS

NAMED = re.compile(r"^(?:async )?(?:function\*? (\w+)|(?:const|let) (\w+))", re.M)


def test_no_name_is_given_twice() -> None:
    names: Counter[str] = Counter()
    for script in SCRIPTS:
        text = (ASSETS / "js" / f"{script}.js").read_text(encoding="utf-8")
        names.update(a or b for a, b in NAMED.findall(text))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_file_is_part_of_the_page() -> None:
    assert sorted([*SCRIPTS, EARLY]) == sorted(path.stem for path in (ASSETS / "js").glob("*.js"))
    assert sorted(STYLES) == sorted(path.stem for path in (ASSETS / "css").glob("*.css"))
