"""design.md's structure holds in this tree, and each check fails on a bad example."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit import architecture as arch
from tests.unit import architecture_rows as tree
from tests.unit import budgets

ROOT = Path(__file__).parents[2]
CODE = arch.read_files(ROOT, "river_core", "app", "app.py")
OURS = {**CODE, **arch.read_files(ROOT, "assets", "tests")}


def under(*starts: str) -> dict[str, str]:
    return {path: text for path, text in CODE.items() if path.startswith(starts)}


def policy_names() -> list[str]:
    from river_core.policies import POLICIES

    return list(POLICIES)


OPTIONAL = ("triton", "llama_cpp", "lm_eval", "spaces")  # imported only where installed


def declared() -> list[str]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [*OPTIONAL, *(re.split("[^a-z0-9_]", line)[0] for line in lines)]


CHECKS: dict[str, Callable[[], list[str]]] = {
    "rows of river_core": lambda: arch.check_rows(under("river_core/"), tree.CORE_ROWS),
    "rows of app": lambda: arch.check_rows(under("app"), tree.APP_ROWS),
    "boundary": lambda: arch.check_boundary(CODE),
    "owners": lambda: arch.check_owners(CODE, tree.OWNERS),
    "declared libraries": lambda: arch.check_declared(CODE, declared()),
    "cycles": lambda: arch.check_cycles(CODE),
    "file lines": lambda: budgets.check_file_lines(OURS),
    "function lines": lambda: budgets.check_function_lines(CODE),
    "parameters": lambda: budgets.check_parameters(CODE),
    "broad excepts": lambda: budgets.check_broad_excepts(CODE),
    "public functions": lambda: budgets.check_public_functions(under("river_core/")),
    "vague names": lambda: budgets.check_vague_names(OURS),
    "policy names": lambda: budgets.check_policy_names(CODE, policy_names()),
}


@pytest.mark.parametrize("name", CHECKS)
def test_tree(name: str) -> None:
    problems = CHECKS[name]()
    assert not problems, "\n" + "\n".join(problems)


def test_the_tree_was_read() -> None:
    expected = {"river_core/decode.py", "river_core/kernels/base.py", "app/ui.py", "app.py"}
    assert expected <= set(CODE)
    assert any(path.endswith(".js") for path in OURS)
    assert {"backbone", "river", "full-quant"} <= set(policy_names())


def loads(code: str, library: str, cwd: Path = ROOT) -> bool:
    """Whether a fresh Python that runs `code` ends with `library` in sys.modules."""
    code = f"{code}\nimport sys; print({library!r} in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True
    )
    return done.stdout.strip() == "True"


ALL_VIEWS = """
import importlib, pkgutil, app.views, river_core.records
for found in pkgutil.iter_modules(app.views.__path__):
    importlib.import_module("app.views." + found.name)
"""


@pytest.mark.parametrize("library", ["torch", "gradio", "transformers"])
def test_views_and_records_stay_light(library: str) -> None:
    assert not loads(ALL_VIEWS, library)


def test_lightness_check_sees_a_heavy_import(tmp_path: Path) -> None:
    (tmp_path / "heavy.py").write_text("import wave\n")
    assert loads("import heavy", "wave", tmp_path)
    assert not loads("import json", "wave", tmp_path)


# Each check on a small bad tree, with a word that its message must hold, and on the mended tree.

CHAIN = {"p/low.py": "x = 1\n", "p/mid.py": "from .low import x\n", "p/high.py": "import p.mid\n"}
ROWS = (("p/low.py",), ("p/mid.py", "p/side.py", "p/back_*.py"), ("p/high.py",))
LONG = "def f():\n" + "    x = 1\n" * 60
USUAL = "".join(f"def f{i}():\n    return {i}\n" for i in range(8))
OWN = {"lib": tree.Owner(("p/low.py", "p/lazy.py"), lazy=("p/lazy.py",))}


def rows(files: arch.Files) -> list[str]:
    return arch.check_rows(files, ROWS)


def owners(files: arch.Files) -> list[str]:
    return arch.check_owners(files, OWN)


def libraries(files: arch.Files) -> list[str]:
    return arch.check_declared(files, ["lib"])


def policies(files: arch.Files) -> list[str]:
    return budgets.check_policy_names(files, ["river"])


Check = Callable[[arch.Files], list[str]]
BAD: list[tuple[Check, dict[str, str], str]] = [
    (rows, {"p/low.py": "from .high import y\n"}, "imports p/high.py"),
    (rows, {"p/low.py": "def f():\n    from . import mid\n"}, "imports p/mid.py"),
    (rows, {"p/low.py": "import importlib\nimportlib.import_module('p.high')\n"}, "p/high.py"),
    (rows, {"p/low.py": "if TYPE_CHECKING:\n    from .mid import X\n"}, "imports p/mid.py"),
    (rows, {"p/mid.py": "from .side import y\n", "p/side.py": ""}, "imports p/side.py"),
    (rows, {"p/back_a.py": "from .back_b import y\n", "p/back_b.py": ""}, "p/back_b.py"),
    (rows, {"p/new.py": ""}, "add it to the table"),
    (arch.check_boundary, {"river_core/a.py": "from app.views import x\n"}, "app.views"),
    (arch.check_boundary, {"app/a.py": "import tests.unit\n"}, "tests.unit"),
    (owners, {"p/mid.py": "import lib.core\n"}, "only p/low.py"),
    (owners, {"p/mid.py": "def f():\n    from lib import x\n"}, "only p/low.py"),
    (owners, {"p/lazy.py": "import lib\n"}, "inside the function"),
    (libraries, {"p/low.py": "def f():\n    from other.core import x\n"}, "imports other.core.x"),
    (arch.check_cycles, {"p/low.py": "def f():\n    from p.high import y\n"}, "p/low.py -> p/high"),
    (budgets.check_file_lines, {"p/a.css": "a {}\n" * 301}, "301 lines"),
    (budgets.check_function_lines, {"p/a.py": LONG + USUAL + USUAL}, "over 60"),
    (budgets.check_function_lines, {"p/a.py": LONG[:350] + "\n" + USUAL}, "1 of 9"),
    (budgets.check_parameters, {"p/a.py": "def f(a, b, c, /, d, e, f, g): ...\n"}, "7 positional"),
    (budgets.check_broad_excepts, {"p/a.py": "try:\n    x\nexcept:\n    pass\n"}, "p/a.py:3"),
    (
        budgets.check_broad_excepts,
        {"p/a.py": "try:\n    x\nexcept (OSError, Exception):\n    pass\n"},
        "p/a.py:3",
    ),
    (budgets.check_broad_excepts, {"p/a.py": "with suppress(BaseException):\n    x\n"}, "p/a.py:1"),
    (budgets.check_public_functions, {"p/a.py": "def f() -> None: ...\n"}, "no docstring"),
    (budgets.check_public_functions, {"p/a.py": "def f(x) -> None:\n    '''D.'''\n"}, "typed"),
    (
        budgets.check_public_functions,
        {"p/a.py": "class A:\n    def f(self):\n        '''D.'''\n"},
        "A.f is not fully typed",
    ),
    (budgets.check_vague_names, {"p/utils.py": ""}, "p/utils.py"),
    (policies, {"river_core/decode.py": "x = name == 'river'\n"}, "decode.py:1"),
    (policies, {"river_core/execution/a.py": "match n:\n    case 'river': pass\n"}, "a.py:2"),
]


@pytest.mark.parametrize(("check", "files", "word"), BAD)
def test_check_fails_on_a_bad_tree(check: Check, files: dict[str, str], word: str) -> None:
    problems = check({**CHAIN, **files})
    assert len(problems) == 1
    assert word in problems[0]


GOOD: list[tuple[Check, dict[str, str]]] = [
    (rows, {"p/side.py": "from .mid import x\n", "p/back_a.py": "from . import side\n"}),
    (owners, {"p/lazy.py": "def f():\n    import lib\n", "p/mid.py": "import library\n"}),
    (owners, {"p/mid.py": "if TYPE_CHECKING:\n    import lib\n"}),
    (arch.check_boundary, {"app/a.py": "import river_core, app.views\n", "app.py": "import app\n"}),
    (libraries, {"p/low.py": "import json, lib.core, p.mid\n"}),
    (arch.check_cycles, {"p/low.py": "if TYPE_CHECKING:\n    from p.high import y\n"}),
    (budgets.check_file_lines, {"p/a.js": "x\n" * 300}),
    (budgets.check_function_lines, {"p/a.py": LONG[:-10] + USUAL + USUAL}),
    (budgets.check_parameters, {"p/a.py": "class A:\n    def f(self, a, b, c, d, e, f): ...\n"}),
    (budgets.check_parameters, {"p/a.py": "@triton.jit\ndef k(a, b, c, d, e, f, g): ...\n"}),
    (budgets.check_broad_excepts, {"p/a.py": "try:\n    x\nexcept (OSError, E):\n    pass\n"}),
    (budgets.check_public_functions, {"p/a.py": "def _f(x): ...\nclass _A:\n    def f(x): ...\n"}),
    (policies, {"river_core/policies.py": "x = 'river'\n", "river_core/decode.py": "y = 'd'\n"}),
]


@pytest.mark.parametrize(("check", "files"), GOOD)
def test_check_passes_on_a_good_tree(check: Check, files: dict[str, str]) -> None:
    assert check({**CHAIN, **files}) == []
