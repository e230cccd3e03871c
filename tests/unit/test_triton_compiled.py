"""The Triton kernels compiled for cards that are not here: registers, stack, loads of 16 bytes.

What may be wrong without a word on a GPU: registers spilled to memory, or weights read in small
pieces because a hint is missing. The full product of kernels and cards runs with --whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed (requirements-dev.txt)")

from river_core.kernels.triton_attention import (  # noqa: E402
    attend_joined,
    attend_parts,
    turn_and_attend_heads,
)
from river_core.kernels.triton_finish import JOINED_ROWS, join_parts  # noqa: E402
from river_core.kernels.triton_gemv import dense_product  # noqa: E402
from river_core.kernels.triton_int4 import int4_product  # noqa: E402
from river_core.kernels.triton_rows import (  # noqa: E402
    compare_ends,
    end_of_layer,
    turn_and_write_heads,
)
from river_core.kernels.triton_step import COMPARED, tile_of  # noqa: E402
from tests.unit.compiled_kernel import compile_for  # noqa: E402

if not isinstance(int4_product, triton.JITFunction):
    pytest.skip("TRITON_INTERPRET is set: nothing is compiled", allow_module_level=True)

# Bytes of stack: 3.6.0 (torch 2.11's) puts 8 there for two of the kernels at capability 10.0.
STACK = 0 if triton.__version__ >= "3.7" else 8
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
    smaller: int = 0  # loads of 8 bytes, at most: small tensors spread over all threads
    warps: int = 1
    old_types: Mapping[str, str] = field(default_factory=dict)  # instead, below capability 8.0


def int4(rows: int, registers: int, **other: object) -> Case:
    """With 8 rows a thread has half as many columns of x, which it loads 8 bytes at a time."""
    constants = {**FLAGS, "ROWS": rows, "SPANS": 64 // rows, "GROUP": 64, **other}
    smaller = 16 if rows == 8 else 0
    return Case(int4_product, INT4, constants, registers, 4, smaller)


def dense(columns: int, registers: int, **other: object) -> Case:
    constants = {**FLAGS, "ROWS": 4, "COLUMNS": columns, **other}
    vectors = constants["ROWS"] * columns // 256
    return Case(dense_product, DENSE, constants, registers, vectors, 0, 1, {"weight": "*fp16"})


def attention(heads: int, kv_heads: int, dim: int, registers: int) -> Case:
    constants = {"QUERIES": heads // kv_heads, "DIM": dim}
    constants |= tile_of(heads // kv_heads, dim, 4096)
    types = {
        **dict.fromkeys(("query", "parts", "bests", "totals"), "*fp32"),
        "keys": "*bf16",
        "values": "*bf16",
        "position": "*i64",
        "scale": "fp32",
        "capacity": "i32!",
        "window": "i32",
    }
    return Case(attend_parts, types, constants, registers, 2, 1, 4, FP16_CACHE)


def whole_attention(heads: int, kv_heads: int, dim: int, registers: int, capacity: int) -> Case:
    """RoPE, the write and attention in one launch."""
    constants = {"QUERIES": heads // kv_heads, "DIM": dim}
    constants |= tile_of(heads // kv_heads, dim, capacity)
    types = {
        **dict.fromkeys(("qkv", "cos", "sin", "parts", "bests", "totals", "out"), "*fp32"),
        "arrived": "*i32",
        "keys": "*bf16",
        "values": "*bf16",
        "position": "*i64",
        "scale": "fp32",
        "capacity": "i32!",
        "window": "i32",
    }
    return Case(turn_and_attend_heads, types, constants, registers, 2, 8, 4, FP16_CACHE)


FP16_CACHE = {"keys": "*fp16", "values": "*fp16"}
ENDS = dict.fromkeys(("before", "after", "limit", "similarity"), "*fp32")
JOINED = dict.fromkeys(("parts", "bests", "totals", "out"), "*fp32")
TURNED = {
    **dict.fromkeys(("qkv", "cos", "sin", "queries"), "*fp32"),
    "keys": "*bf16",
    "values": "*bf16",
    "position": "*i64",
    **dict.fromkeys(("heads", "kv_heads", "capacity"), "i32"),
}
MOVED = {
    **dict.fromkeys(("before", "hidden", "fresh", "limit"), "*fp32"),
    "inputs": "*i64",
    "words": "*i64",
    "slot": "i32",
    "columns": "i32!",
}
PARTS = {**SUMS, "eps": "fp32", "rows": "i32!", "columns": "i32!"}
CASES = {
    "int4 norm": int4(4, 250),
    "int4 norm, 8 rows": int4(8, 160),
    "int4 norm, groups of 32": int4(4, 250, GROUP=32),
    "int4 norm, groups of 128": int4(4, 250, GROUP=128),
    "int4 norm, splits": int4(4, 250, SPLITS=2),
    "int4 gate and up": int4(8, 160, GATED=True),
    "int4 residual": int4(4, 250, NORM=False, RESIDUAL=True),
    "dense norm": dense(512, 168),
    "dense norm, 8 rows": dense(256, 160, ROWS=8),
    "dense gate and up": dense(256, 160, ROWS=8, GATED=True),
    "dense residual": dense(512, 168, NORM=False, RESIDUAL=True),
    "dense norm, splits": dense(256, 112, SPLITS=2),
    "parts joined": Case(join_parts, PARTS, {**FLAGS, "ROWS": JOINED_ROWS, "SPLITS": 4}, 64, 4),
    "attention, 8B": attention(32, 8, 128, 128),
    "attention, 70B": attention(64, 8, 128, 216),
    "attention, 135M": attention(9, 3, 64, 128),
    "attention joined": Case(attend_joined, JOINED, {"SPLITS": 16, "DIM": 128}, 128, 16),
    "similarity": Case(
        compare_ends, {**ENDS, "flag": "*i32", "columns": "i32!"}, {"BLOCK": COMPARED}, 64, 4, 0, 4
    ),
    "rope, write, attention, 8B": whole_attention(32, 8, 128, 128, 512),
    "rope, write, attention, 8B, long": whole_attention(32, 8, 128, 128, 4096),
    "rope, write, attention, 135M": whole_attention(9, 3, 64, 128, 4096),
    "end of a layer": Case(end_of_layer, MOVED, {"BLOCK": COMPARED}, 64, 4, 0, 4),
    "rope and write": Case(turn_and_write_heads, TURNED, {"HALF": 64}, 48, 0, 6, 1, FP16_CACHE),
}
USUAL = ("int4 norm", "dense norm", "attention, 8B")
USUAL_CARDS = (75, 90)
PRODUCT = [(name, card) for name in CASES for card in CARDS]


def check(name: str, card: int, folder: Path) -> None:
    case = CASES[name]
    types = {**case.types, **(case.old_types if card < 80 else {})}
    code = compile_for(case.kernel, types, case.constants, card, folder, warps=case.warps)
    assert code.stack <= STACK
    assert code.registers <= case.registers
    assert code.loads(128) >= case.vectors
    assert code.loads(64) <= case.smaller


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


def test_the_last_split_sees_what_the_others_wrote(tmp_path: Path) -> None:
    """Before a split is counted all its threads are done and their parts are in memory; after it
    nothing is read from a cache that is older."""
    case = CASES["rope, write, attention, 8B"]
    code = compile_for(case.kernel, case.types, case.constants, 90, tmp_path, warps=case.warps)
    wanted = ("BAR", "MEMBAR.ALL.GPU", "ATOMG.E.ADD.STRONG.GPU", "CCTL.IVALL", "BAR")
    order = re.findall(r"\b(?:BAR(?=\.SYNC)|MEMBAR\.\S+|ATOMG\.\S+|CCTL\.\w+)", code.sass)
    at = order.index(wanted[1])
    assert tuple(order[at - 1 : at + 4]) == wanted
