"""design.md's budgets and habits as functions over a tree: path -> text in, problems out.

A limit is raised only with a reason in the same commit.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from tests.unit.architecture import Files, python

FILE_LINES = 300
FUNCTION_LINES = 60
USUAL_LINES, USUAL_SHARE = 30, 0.9
POSITIONAL = 6
VAGUE_NAMES = ("utils", "util", "common", "helpers", "helper", "misc")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[tuple[str, Function, ast.ClassDef | None]]:
    """Every function with its dotted name and the class it is a method of."""

    def visit(
        node: ast.AST, names: list[str]
    ) -> Iterator[tuple[str, Function, ast.ClassDef | None]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                owner = node if isinstance(node, ast.ClassDef) else None
                yield ".".join([*names, child.name]), child, owner
            named = isinstance(child, Function | ast.ClassDef)
            yield from visit(child, [*names, child.name] if named else names)

    yield from visit(tree, [])


def lines(function: Function) -> int:
    """Lines from `def` to the end, docstring included, decorators not."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def check_file_lines(files: Files) -> list[str]:
    return [
        f"{path} has {count} lines, over {FILE_LINES}: split it"
        for path, text in files.items()
        if (count := len(text.splitlines())) > FILE_LINES
    ]


def check_function_lines(files: Files) -> list[str]:
    """No function is over the limit, and the usual share of them is short."""
    sizes = [
        (lines(function), f"{path}:{function.lineno} {name}")
        for path, tree in python(files)
        for name, function, _ in functions(tree)
    ]
    problems = [
        f"{where} has {count} lines, over {FUNCTION_LINES}"
        for count, where in sizes
        if count > FUNCTION_LINES
    ]
    long = sorted((size for size in sizes if size[0] > USUAL_LINES), reverse=True)
    if len(long) > (1 - USUAL_SHARE) * len(sizes):
        names = "; ".join(f"{where} ({count})" for count, where in long)
        problems.append(
            f"{len(long)} of {len(sizes)} functions are over {USUAL_LINES} lines; "
            f"{USUAL_SHARE:.0%} have to be within: {names}"
        )
    return problems


def check_parameters(files: Files) -> list[str]:
    """At most six positional parameters, `self` and `cls` apart.

    A Triton kernel takes every pointer and size by position: it has no structs and the compiler
    ignores keyword-only parameters.
    """
    problems = []
    for path, tree in python(files):
        for name, function, owner in functions(tree):
            if _has_decorator(function, "jit"):
                continue
            names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
            if owner is not None and not _has_decorator(function, "staticmethod"):
                names = names[1:]
            if len(names) > POSITIONAL:
                problems.append(
                    f"{path}:{function.lineno} {name} takes {len(names)} positional parameters, "
                    f"over {POSITIONAL}: make some keyword-only or group them"
                )
    return problems


def _has_decorator(function: Function, name: str) -> bool:
    named = (d.func if isinstance(d, ast.Call) else d for d in function.decorator_list)
    return any(ast.unparse(d).split(".")[-1] == name for d in named)


def check_broad_excepts(files: Files) -> list[str]:
    """No bare `except`, `except Exception` or `suppress(Exception)`."""
    problems = []
    for path, tree in python(files):
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                caught = [node.type]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
                caught = list(node.args)
            else:
                continue
            caught = [e for c in caught for e in (c.elts if isinstance(c, ast.Tuple) else [c])]
            if any(c is None or ast.unparse(c) in ("Exception", "BaseException") for c in caught):
                problems.append(f"{path}:{node.lineno} catches everything: name the errors")
    return problems


def check_public_functions(files: Files) -> list[str]:
    """Public functions, and methods of public classes, are typed and have a docstring."""
    problems = []
    for path, tree in python(files):
        for name, function, owner in functions(tree):
            if not _is_public(tree, name, owner) or _has_decorator(function, "overload"):
                continue
            if _has_decorator(function, "jit") and ast.get_docstring(function) is not None:
                continue  # Triton reads annotations as its own types: only constants have them
            where = f"{path}:{function.lineno} {name}"
            setter = _has_decorator(function, "setter")  # the property's docstring serves both
            if ast.get_docstring(function) is None and not setter:
                problems.append(f"{where} has no docstring")
            if function.returns is None or any(
                a.annotation is None for a in _typed(function, owner)
            ):
                problems.append(f"{where} is not fully typed")
    return problems


def _is_public(tree: ast.Module, name: str, owner: ast.ClassDef | None) -> bool:
    parts = name.split(".")
    at_top = len(parts) == (1 if owner is None else 2)
    return at_top and not any(part.startswith("_") for part in parts)


def _typed(function: Function, owner: ast.ClassDef | None) -> list[ast.arg]:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    if owner is not None and not _has_decorator(function, "staticmethod"):
        positional = positional[1:]
    return [*positional, *given.kwonlyargs, *(a for a in (given.vararg, given.kwarg) if a)]


def check_vague_names(files: Files) -> list[str]:
    return [
        f"{path}: name the file after its job"
        for path in files
        if PurePosixPath(path).stem in VAGUE_NAMES
    ]


LOOP = ("river_core/decode.py", "river_core/passes.py", "river_core/execution/*.py")


def check_policy_names(files: Files, names: Collection[str]) -> list[str]:
    """The loop and the executions name no policy: a policy is data."""
    problems = []
    for path, tree in python(files, *LOOP):
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node.value in names
            ):
                problems.append(f"{path}:{node.lineno} names the policy {node.value!r}")
    return problems
