"""Checks of design.md's structure, as functions over a tree: path -> text in, problems out.

Imports are read from the syntax tree, so nothing is executed: rows, single owners, cycles.
An import inside a function counts as one, and so does `import_module("...")`; one under
`TYPE_CHECKING` counts for rows only, since nothing is imported when the program runs.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from tests.unit.architecture_rows import Owner, Rows

Files = Mapping[str, str]  # path from the root, with slashes -> text


@dataclass(frozen=True)
class Import:
    """One imported name as written, resolved to a dotted module or module.attribute."""

    target: str
    line: int
    lazy: bool
    type_only: bool


def read_files(root: Path, *folders: str) -> dict[str, str]:
    """Every source file of ours under the folders (or the files) given, by path from the root."""
    suffixes = {".py", ".js", ".css", ".cpp", ".h", ".cu"}
    found = [path for name in folders for path in [root / name, *(root / name).rglob("*")]]
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(set(found))
        if path.is_file() and path.suffix in suffixes
    }


@cache
def parse(text: str) -> ast.Module:
    return ast.parse(text)


def python(files: Files, *patterns: str) -> Iterator[tuple[str, ast.Module]]:
    """Path and syntax tree of every Python file, or of those that match a pattern."""
    for path, text in files.items():
        if path.endswith(".py") and (not patterns or any(fnmatch(path, p) for p in patterns)):
            yield path, parse(text)


def module_name(path: str) -> str:
    """`river_core/kernels/base.py` -> `river_core.kernels.base`; `app.py` stays itself."""
    if path == "app.py":
        return path
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def imports(path: str, tree: ast.Module) -> list[Import]:
    """Every import of one file, absolute."""
    found: list[Import] = []
    package = module_name(path).split(".")
    if not path.endswith("__init__.py"):
        package = package[:-1]

    def visit(node: ast.AST, lazy: bool, type_only: bool) -> None:
        for target in _targets(node, package):
            found.append(Import(target, node.lineno, lazy, type_only))  # type: ignore[attr-defined]
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                visit(child, lazy, True)
            for child in node.orelse:
                visit(child, lazy, type_only)
            return
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inside, type_only)

    visit(tree, False, False)
    return found


def _targets(node: ast.AST, package: list[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        start = ".".join([*base, *([node.module] if node.module else [])])
        return [f"{start}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = ast.unparse(node.func).split(".")[-1]
        if called in ("import_module", "__import__"):
            name = str(node.args[0].value)
            return [".".join(package) + name if name.startswith(".") else name]
    return []


def internal(files: Files) -> dict[str, list[tuple[str, Import]]]:
    """Per file: the files of this tree that it imports."""
    by_name = {module_name(path): path for path in files if path.endswith(".py")}
    edges: dict[str, list[tuple[str, Import]]] = {}
    for path, tree in python(files):
        edges[path] = []
        for item in imports(path, tree):
            hit = by_name.get(item.target) or by_name.get(item.target.rpartition(".")[0])
            if hit is not None and hit != path:
                edges[path].append((hit, item))
    return edges


def place(path: str, rows: Rows) -> tuple[int, int] | None:
    """Row and place in the row; an exact name wins over a pattern."""
    spots = [(name, (r, i)) for r, row in enumerate(rows) for i, name in enumerate(row)]
    exact = [spot for name, spot in spots if name == path]
    return next(iter(exact + [spot for name, spot in spots if fnmatch(path, name)]), None)


def check_rows(files: Files, rows: Rows) -> list[str]:
    """Each file is in the table and imports only what stands before it there."""
    problems = []
    edges = internal(files)
    for path in edges:
        here = place(path, rows)
        if here is None:
            problems.append(
                f"{path} is in no row: add it to the table in tests/unit/architecture.py, in the "
                "row that design.md gives it"
            )
            continue
        for target, item in edges[path]:
            there = place(target, rows)
            if there is not None and there >= here:
                problems.append(
                    f"{path}:{item.line} (row {here[0]}) imports {target} (row {there[0]}), which "
                    "is not before it in the table"
                )
    return problems


def check_boundary(files: Files) -> list[str]:
    """river_core knows nothing of app, and neither knows the tests."""
    return [
        f"{path}:{item.line} imports {item.target}"
        for path, tree in python(files)
        for item in imports(path, tree)
        if item.target.split(".")[0]
        in (("app", "tests") if path.startswith("river_core/") else ("tests",))
    ]


def check_owners(files: Files, owners: Mapping[str, Owner]) -> list[str]:
    """A library with an owner is imported only there, and lazily where that is asked."""
    problems = []
    for path, tree in python(files):
        for item in imports(path, tree):
            owner = owners.get(item.target.split(".")[0])
            if owner is None or item.type_only:
                continue
            where = f"{path}:{item.line} imports {item.target}"
            if not any(fnmatch(path, pattern) for pattern in owner.files):
                problems.append(f"{where}, which only {', '.join(owner.files)} may")
            elif not item.lazy and any(fnmatch(path, pattern) for pattern in owner.lazy):
                problems.append(f"{where} at the top; import it inside the function that needs it")
    return problems


def check_declared(files: Files, declared: Collection[str]) -> list[str]:
    """Every library that is imported (for types too) is one of the `declared` import names."""
    known = {*sys.stdlib_module_names, *(path.split("/")[0].removesuffix(".py") for path in files)}
    return [
        f"{path}:{item.line} imports {item.target}, which requirements.txt does not name"
        for path, tree in python(files)
        for item in imports(path, tree)
        if item.target.split(".")[0] not in {*known, *declared}
    ]


def check_cycles(files: Files) -> list[str]:
    """No file imports itself through others (imports for types apart)."""
    edges = {
        path: sorted({target for target, item in found if not item.type_only})
        for path, found in internal(files).items()
    }
    done: set[str] = set()
    problems: list[str] = []

    def walk(path: str, trail: list[str]) -> None:
        if path in trail:
            problems.append(" -> ".join([*trail[trail.index(path) :], path]))
        elif path not in done:
            for target in edges[path]:
                walk(target, [*trail, path])
            done.add(path)

    for path in edges:
        walk(path, [])
    return problems
