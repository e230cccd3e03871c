"""Which kernel serves which shape: a short micro-test at load, verified, stored, and shown.

A choice is stored per (processor, torch, threads, shape) and measured again only on request; then
it changes only for more than 10 % (records.md, Repeatability). Knows shapes, not models.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..devices import processor
from ..errors import KernelUnavailable
from .base import Linear, QuantMatrix
from .micro import Candidates, random_codes, random_weight, time_in_turns
from .native import NativeDense, NativeInt4, NativeInt8
from .native_library import load_library
from .torch_dense import MkldnnDense, TorchDense
from .torch_int4 import AtenInt4, TinygemmInt4
from .torch_int8 import TorchInt8
from .triton_loading import load_triton, triton_dense, triton_int4

Shape = tuple[int, int]
Coded = tuple[int, int, int]  # bits that a code is stored in, N, K
Key = TypeVar("Key", Shape, Coded)
Row = tuple[str, Candidates]  # under which key a choice is stored, and what it is between
DENSE: dict[str, Callable[[Tensor], Linear]] = {
    "native": NativeDense,
    "torch": TorchDense,
    "onednn": MkldnnDense,
    "triton": triton_dense,
}
DENSE_ON = {"cpu": ["native", "torch", "onednn"], "cuda": ["torch", "triton"]}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
CODED: dict[str, Callable[[QuantMatrix], Linear]] = {
    "native-int4": NativeInt4,
    "aten-int4": AtenInt4,
    "tinygemm-int4": TinygemmInt4,
    "triton-int4": triton_int4,
    "native-int8": NativeInt8,
    "torch-int8": TorchInt8,
}
CODED_ON = {
    ("cpu", 4): ["native-int4", "aten-int4"],
    ("cuda", 4): ["tinygemm-int4", "triton-int4"],
    ("cpu", 8): ["native-int8", "torch-int8"],
    ("cuda", 8): ["torch-int8"],
}
MEASURED = "two visits, cold"  # how: choices that were measured in other ways are not recalled
DEQUANTISED = "dequantised"  # fp32 mode (exact), or where no such kernel runs: a dense kernel
# these kernels also run fused: as one call per layer (execution/native.py), as a few launches
FUSED = ("native", "triton")  # (execution/kernel_pieces.py) ...
FUSED_WITHIN = 1.25  # ... which is worth more than this much lost on the products alone
KEEP_WITHIN = 1.10
TWICE_THE_MEMORY = 1.25  # fp32 has to be faster by this much to be chosen over 16 bits


@dataclass(frozen=True)
class KernelPlan:
    """The chosen kernel per shape, and how to build it. One dense dtype per model."""

    dtype: torch.dtype
    dense: Mapping[Shape, str]
    coded: Mapping[Coded, str]
    microseconds: Mapping[str, float]
    notes: tuple[str, ...] = ()

    def make_dense(self, weight: Tensor) -> Linear:
        """A dense kernel over `weight` [N, K], cast to the plan's dtype."""
        name = self.dense[(weight.shape[0], weight.shape[1])]
        return DENSE[name.rsplit("-", 1)[0]](weight.to(self.dtype))

    def make_coded(self, matrix: QuantMatrix) -> Linear:
        """The kernel for a quantised matrix [N, K] and its code bits; dense where dequantised."""
        name = self.coded[(matrix.code_bits, *matrix.shape)]
        return self.make_dense(matrix.dense()) if name == DEQUANTISED else CODED[name](matrix)

    def shown(self) -> dict[str, str]:
        """Shape to kernel names, as the header and the page show them."""
        rows = {f"{n}x{k} dense": name for (n, k), name in self.dense.items()}
        return rows | {f"{n}x{k} int{bits}": name for (bits, n, k), name in self.coded.items()}


def kind_of(kernel: str) -> str:
    """What a kernel of this name multiplies, as `KernelPlan.shown` says it: dense, int4, int8."""
    return kernel.rsplit("-", 1)[1] if kernel in CODED else "dense"


@dataclass
class _Store:
    """Earlier choices, one JSON file; an unreadable file counts as empty and is rewritten."""

    path: Path | None
    rows: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None or not self.path.is_file():
            return
        try:
            rows = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        self.rows = rows if isinstance(rows, dict) else {}

    def save(self) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(f".{time.monotonic_ns()}.part")
        part.write_text(json.dumps(self.rows, indent=1, sort_keys=True), encoding="utf-8")
        part.replace(self.path)


@dataclass
class Chooser:
    """Chooses kernels for one device; `store` None measures without remembering.

    `wide` says that a model's values leave the range of fp16 (Gemma's reach 100,000), so that fp16
    is not chosen, only obeyed.
    """

    device: torch.device
    group: int = 64
    store: Path | None = None
    remeasure: bool = False
    wide: bool = False

    def __post_init__(self) -> None:
        self._store = _Store(self.store)
        self._notes: list[str] = []
        self._microseconds: dict[str, float] = {}
        self._built = "native"  # what is compiled here, as keys say it
        self._lacks = ""  # and the start of the names of kernels that could not be
        try:
            if self.device.type == "cpu":
                load_library()
            elif self.device.type == "cuda":
                self._built = f"triton {load_triton(self.device)}"
        except KernelUnavailable as error:
            self._lacks = "native" if self.device.type == "cpu" else "triton"
            self._built = f"no {self._lacks}"
            self._notes.append(str(error))
            if self._lacks == "native":
                self._notes.append(
                    "torch's kernels serve instead: slower, and River gains little by them "
                    "(docs/speed-cpu.md)."
                )

    def plan(
        self, dense: Mapping[Shape, int], coded: Mapping[Coded, int], dtype: str
    ) -> KernelPlan:
        """Choose for shapes -> how often a token reads one; `dtype` "auto" or a torch dtype name.

        A river may have several code bits at once; only those of `coded` are measured.

        Raises KernelUnavailable where a dtype cannot run on the device.
        """
        shorts = self._dtypes(dtype)
        exact = dtype == "float32"  # fp32 metadata, no rounding of activations
        rows = {(s, short): self._dense(s, short) for s in dense for short in shorts}
        codes = {} if exact else {c: self._coded(c) for c in coded}
        spent = self._costs(list(rows.values()) + list(codes.values()))
        costs = {short: {s: spent[rows[s, short][0]] for s in dense} for short in shorts}
        if not all(costs[short][s] for s, short in rows):
            raise KernelUnavailable(f"no dense {' or '.join(shorts)} kernel runs on {self.device}.")
        tables = {short: _pick(table, dense) for short, table in costs.items()}
        total = {
            short: sum(dense[s] * costs[short][s][name] for s, name in table.items())
            for short, table in tables.items()
        }
        if len(total) > 1 and "fp32" in total:
            total["fp32"] *= TWICE_THE_MEMORY
        short = self._remember(f"dtype|{sorted(dense.items())}", total, shorts)
        found = {c: spent[codes[c][0]] if c in codes else {} for c in coded}
        for bits, n, k in (c for c, row in found.items() if not row and not exact):
            self._notes.append(f"no int{bits} kernel runs {n} x {k}: dequantised there.")
        found = {c: row or {DEQUANTISED: 0.0} for c, row in found.items()}
        names = _pick(found, coded) if found else {}
        river = sum(uses * found[c][names[c]] for c, uses in coded.items())
        own = {s: costs[short][s][tables[short][s]] for s in dense}
        self._notes += slower(river, sum(uses * own.get(c[1:], 0) for c, uses in coded.items()))
        self._store.save()
        notes = tuple(dict.fromkeys(self._notes))
        return KernelPlan(DTYPES[short], tables[short], names, dict(self._microseconds), notes)

    def _dtypes(self, dtype: str) -> list[str]:
        wanted = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}.get(dtype)
        if wanted == "fp16" and self.wide:
            self._notes.append("fp16 as asked, though this model's values can leave its range.")
        if self.device.type == "cpu":
            every = ["bf16", "fp32"] if self.wide else ["fp16", "bf16", "fp32"]
            return [wanted] if wanted else every
        if self.device.type == "mps":
            return [wanted or ("fp32" if self.wide else "fp16")]
        has_bf16 = torch.cuda.get_device_capability(self.device) >= (8, 0)
        if wanted == "bf16" and not has_bf16:
            raise KernelUnavailable(
                "this GPU only emulates bf16 (compute capability below 8.0); use dtype='float16'."
            )
        other = "fp32" if self.wide else "fp16"
        if wanted is None and not has_bf16:
            self._notes.append(f"{other}: this GPU (compute capability below 8.0) has no bf16.")
        return [wanted or ("bf16" if has_bf16 else other)]

    def _dense(self, shape: Shape, short: str) -> Row:
        """The dense kernels of one dtype that could serve a shape."""
        kinds = DENSE_ON.get(self.device.type, ["torch"])
        dtype = DTYPES[short]

        def build(name: str) -> Linear:
            return DENSE[name.rsplit("-", 1)[0]](random_weight(shape, dtype).to(self.device))

        names = [f"{kind}-{short}" for kind in kinds if f"{kind}-{short}" != "triton-fp32"]
        return self._row(f"dense|{short}", names, shape, build)

    def _coded(self, coded: Coded) -> Row:
        """The kernels that could serve these codes."""
        bits, shape = coded[0], coded[1:]

        def build(name: str) -> Linear:
            return CODED[name](random_codes(shape, self.group, bits).to(self.device))

        names = CODED_ON.get((self.device.type, bits), [])
        return self._row(f"int{bits}|g{self.group}", names, shape, build)

    def _row(
        self, kind: str, names: list[str], shape: Shape, build: Callable[[str], Linear]
    ) -> Row:
        able = tuple(n for n in names if not (self._lacks and n.startswith(self._lacks)))
        return f"{kind}|{shape[0]}x{shape[1]}", Candidates(able, shape, build)

    def _costs(self, rows: list[Row]) -> dict[str, dict[str, float]]:
        """Measure (or recall) microseconds by key and name, a key's kept winner first."""
        spent = {} if self.remeasure else {key: self._known(key, those) for key, those in rows}
        unknown = [(key, those) for key, those in rows if not spent.get(key)]
        fresh = time_in_turns([those for _, those in unknown], self.device)
        spent |= {key: found for (key, _), found in zip(unknown, fresh, strict=True)}
        for key, those in rows:
            n, k = those.shape
            self._microseconds |= {f"{name} {n}x{k}": us for name, us in spent[key].items()}
            if spent[key]:
                first = self._remember(key, spent[key], list(those.names))
                spent[key] = {first: spent[key][first]} | spent[key]
        return spent

    def _full_key(self, key: str) -> str:
        machine = f"{processor(self.device)}|torch {torch.__version__}|{torch.get_num_threads()}"
        return f"{MEASURED}|{machine}|{self._built}|{key}"

    def _known(self, key: str, those: Candidates) -> dict[str, float]:
        """What is stored of a choice between the same candidates; empty where nothing is."""
        row = self._store.rows.get(self._full_key(key))
        if not isinstance(row, dict) or row.get("candidates") != list(those.names):
            return {}
        costs: dict[str, float] = row["microseconds"]
        return costs

    def _remember(self, key: str, costs: Mapping[str, float], names: list[str]) -> str:
        """The cheapest name, or the stored one while it is within 10 %; the choice is stored."""
        full = self._full_key(key)
        row = self._store.rows.get(full)
        best = min(costs, key=lambda name: costs[name])
        stored = str(row.get("choice")) if isinstance(row, dict) else ""
        if stored in costs and costs[stored] <= KEEP_WITHIN * costs[best]:
            best = stored
        entry = {"choice": best, "candidates": names, "microseconds": dict(costs)}
        self._store.rows[full] = entry
        return best


def slower(river: float, backbone: float) -> list[str]:
    """A note where the river's products take longer than the backbone's of the same layers, in us.

    0 means that they were not measured: a dequantised river runs the backbone's kernels.
    """
    if not 0 < backbone < river:
        return []
    return [
        f"the river's products take {river / backbone:.1f} times as long as the backbone's here: "
        "tokens that leave early save layers, but no time."
    ]


def _pick(costs: Mapping[Key, Mapping[str, float]], uses: Mapping[Key, int]) -> dict[Key, str]:
    """A kernel per shape: the kept winners, or the fused ones where that costs little."""
    best = {shape: next(iter(row)) for shape, row in costs.items()}
    fused = {s: next((n for n in row if n.startswith(FUSED)), "") for s, row in costs.items()}
    if all(fused.values()):
        spent = [sum(uses[s] * costs[s][pick[s]] for s in costs) for pick in (fused, best)]
        if spent[0] <= FUSED_WITHIN * spent[1]:
            return fused
    return best
