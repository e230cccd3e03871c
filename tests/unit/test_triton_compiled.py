"""The Triton kernels compiled for cards that are not here: registers, stack, loads of 16 bytes.

What may be wrong without a word on a GPU: registers spilled to memory, or weights read in small
pieces because a hint is missing. The full product of kernels and cards runs with --whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed (requirements-dev.txt)")

from river_core.kernels.triton_gemv import dense_product  # noqa: E402
from river_core.kernels.triton_int4 import int4_product  # noqa: E402
from tests.unit.compiled_kernel import compile_for  # noqa: E402

if not isinstance(int4_product, triton.JITFunction):
    pytest.skip("TRITON_INTERPRET is set: nothing is compiled", allow_module_level=True)

CARDS = (75, 80, 90, 100, 120)  # T4, A100 (and A40's 86), H100, B200, RTX 50
FLAGS = {"NORM": True, "RESIDUAL": False, "GATED": False, "SPLITS": 1}
SUMS = dict.fromkeys(("x", "norm", "out", "residual", "parts", "part_squares"), "*fp32")
INT4 = {
    **SUMS,
    "words": "*i32",
    "meta": "*i32",
    "eps": "fp32",
    "rows": "i32!",
    "spans": "i32",
    "groups": "i32",
    "turns": "i32",
}
DENSE = {
    **SUMS,
    "weight": "*bf16",
    "eps": "fp32",
    "rows": "i32!",
    "columns": "i32!",
    "turns": "i32",
}


@dataclass(frozen=True)
class Case:
    """A kernel as the launcher starts it: constants, and the limits that it has to keep."""

    kernel: object
    types: Mapping[str, str]
    constants: Mapping[str, object]
    registers: int
    vectors: int  # loads of 16 bytes, at least
    warps: int = 1
    old_types: Mapping[str, str] = field(default_factory=dict)  # instead, below capability 8.0


def int4(rows: int, registers: int, **other: object) -> Case:
    constants = {**FLAGS, "ROWS": rows, "SPANS": 16, "GROUP": 64, **other}
    return Case(int4_product, INT4, constants, registers, rows + 8)


def dense(rows: int, columns: int, registers: int, **other: object) -> Case:
    constants = {**FLAGS, "ROWS": rows, "COLUMNS": columns, **other}
    vectors = (rows + 2) * columns // 256
    return Case(dense_product, DENSE, constants, registers, vectors, 1, {"weight": "*fp16"})


CASES = {
    "int4 norm": int4(4, 168),
    "int4 norm, 8 rows": int4(8, 255),
    "int4 norm, groups of 32": int4(4, 192, GROUP=32),
    "int4 norm, groups of 128": int4(4, 168, GROUP=128),
    "int4 norm, splits": int4(4, 168, SPLITS=2),
    "int4 gate and up": int4(8, 255, GATED=True),
    "int4 residual": int4(4, 168, NORM=False, RESIDUAL=True),
    "dense norm": dense(4, 512, 168),
    "dense norm, 8 rows": dense(8, 512, 255),
    "dense gate and up": dense(8, 512, 255, GATED=True),
    "dense residual": dense(4, 512, 168, NORM=False, RESIDUAL=True),
    "dense norm, splits": dense(4, 256, 96, SPLITS=2),
}
USUAL = ("int4 norm", "dense norm")
USUAL_CARDS = (75, 90)
PRODUCT = [(name, card) for name in CASES for card in CARDS]


def check(name: str, card: int, folder: Path) -> None:
    case = CASES[name]
    types = {**case.types, **(case.old_types if card < 80 else {})}
    code = compile_for(case.kernel, types, case.constants, card, folder, warps=case.warps)
    assert code.stack == 0
    assert code.registers <= case.registers
    assert code.loads(128) >= case.vectors
    assert code.loads(64) == 0


@pytest.mark.parametrize("card", USUAL_CARDS)
@pytest.mark.parametrize("name", USUAL)
def test_the_usual_kernels(name: str, card: int, tmp_path: Path) -> None:
    check(name, card, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "card"), [p for p in PRODUCT if p[0] not in USUAL or p[1] not in USUAL_CARDS]
)
def test_every_kernel_on_every_card(name: str, card: int, tmp_path: Path) -> None:
    check(name, card, tmp_path)


def test_without_hints_the_loads_are_small(tmp_path: Path) -> None:
    """The check sees what it is for: the same kernel without hints has no loads of 16 bytes."""
    case = CASES["dense norm"]
    types = {name: kind.rstrip("!") for name, kind in case.types.items()}
    code = compile_for(case.kernel, types, case.constants, 90, tmp_path)
    assert code.loads(128) < case.vectors
