"""What a caller may set: frozen dataclasses, checked as soon as they are made.

Knows nothing of models or policies; a policy checks its own `options` (policies.py).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import PureWindowsPath
from typing import Any

from .errors import SettingsError

EXITS = ("similarity", "confidence", "gap", "fixed", "schedule", "oracle")
HEADS, PREFILLS = ("river", "lens"), ("exit", "full")
DEVICES, DTYPES = ("auto", "cpu", "cuda", "mps"), ("auto", "float32", "float16", "bfloat16")
LAYER_GRAPHS = "layer-graphs"  # a CUDA graph for each layer, and none for layers often run together
EXECUTIONS = ("auto", "eager", LAYER_GRAPHS)
GROUP_SIZES, METHODS = (32, 64, 128), ("hqq", "rtn", "gptq", "awq")
METADATA_BITS = 16  # of a group's scale and of its zero, as every int4 and int8 kernel keeps them


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) < math.inf  # of an int too: math.isfinite would make it a float


def _one_of(name: str, value: object, allowed: tuple[str, ...], *, none: bool = False) -> None:
    if (none and value is None) or (isinstance(value, str) and value in allowed):
        return
    raise SettingsError(f"{name} is {value!r}; choose one of {', '.join(map(repr, allowed))}.")


@dataclass(frozen=True)
class QuantSpec:
    """How the river's weights are stored.

    `bits=16` is the identical river: an unquantised twin (design property 2); group size and method
    then have no effect. Codes of 2, 3 or 4 bits are all stored in 4, those of 8 in 8, in groups of
    `group_size` along the columns. `method`: "hqq" (method.md 3.13), "rtn" (round to nearest, the
    control), "gptq" (second-order error compensation, with the inputs that a bundled text gives),
    "awq" (activation-aware scales, with the same inputs; its twins have norms of their own). With
    `options={"checkpoint": name}` an AWQ checkpoint of the same model is the river: a folder or a
    hub id. The other methods take `options={"budget": bits}`, mixed precision: the most sensitive
    matrices in 8 bits, as many as this mean of stored bits per weight allows.
    """

    bits: int = 4
    group_size: int = 64
    method: str = "hqq"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.bits not in (2, 3, 4, 8, 16) or not _is_int(self.bits):
            raise SettingsError(
                f"bits is {self.bits!r}; use 8, 4, 3 or 2, or 16 for a river identical to the "
                "backbone."
            )
        if self.group_size not in GROUP_SIZES or not _is_int(self.group_size):
            sizes = ", ".join(map(str, GROUP_SIZES))
            raise SettingsError(f"group_size is {self.group_size!r}; use one of {sizes}.")
        _one_of("method", self.method, METHODS)
        if not isinstance(self.options, Mapping) or self.options:
            self._check_options()

    def _check_options(self) -> None:
        options = self.options
        takes = "checkpoint" if self.method == "awq" else "budget"
        if not isinstance(options, Mapping) or list(options) != [takes] or self.bits != 4:
            raise SettingsError(
                f"options are {options!r}; with method {self.method!r} and 4 bits use only "
                f"{takes!r}, with other bits none."
            )
        value = options[takes]
        if takes == "budget":
            value = self._checked_budget(value)
        elif not isinstance(value, str) or not value:
            raise SettingsError(
                f"option 'checkpoint' is {value!r}; use the hub id or folder of an AWQ checkpoint."
            )
        object.__setattr__(self, "options", {takes: value})

    def _checked_budget(self, value: Any) -> float:
        low, high = (bits + 2 * METADATA_BITS / self.group_size for bits in (4, 8))
        if not _is_number(value) or not low <= value <= high:
            raise SettingsError(
                f"option 'budget' is {value!r}; at group_size {self.group_size} use {low:g} (every "
                f"matrix in 4 bits) to {high:g} (in 8) stored bits per weight."
            )
        return float(value)

    @classmethod
    def parse(cls, label: str) -> QuantSpec:
        """The spec of a label such as ``gptq-4bit-g64``, ``16bit`` or ``awq-4bit-g128:NAME``.

        ``awq:NAME`` is short for the last one. Bits with a point are a budget: ``gptq-4.6bit-g64``.
        Raises SettingsError for others.
        """
        if label == "16bit":
            return cls(bits=16)
        if label.startswith("awq:"):
            return cls(4, 128, "awq", {"checkpoint": label.removeprefix("awq:")})
        found = re.fullmatch(r"([a-z]+)-(\d+)(\.\d+)?bit-g(\d+)(?::(.+))?", label)
        if found is None:
            raise SettingsError(
                f"river is {label!r}; use method, bits and group size, such as 'gptq-4bit-g64', "
                "or 'awq:' with the folder or hub id of an AWQ checkpoint."
            )
        options: dict[str, Any] = {} if found[5] is None else {"checkpoint": found[5]}
        if found[3] is not None:
            options["budget"] = float(found[2] + found[3])
        bits = int(found[2]) if found[3] is None else 4
        return cls(bits, int(found[4]), found[1], options)

    @property
    def top(self) -> int:
        """The largest code."""
        return int(2**self.bits - 1)

    @property
    def code_bits(self) -> int:
        """Bits that a code is stored in: 4 or 8."""
        return 8 if self.bits == 8 else 4

    @property
    def needs_inputs(self) -> bool:
        """Whether the method looks at what goes into a matrix, not only at its numbers."""
        made_here = self.method == "gptq" or (self.method == "awq" and self.checkpoint is None)
        return self.bits != 16 and made_here

    @property
    def checkpoint(self) -> str | None:
        """Name or folder of the AWQ checkpoint that is the river; None where it is made here."""
        name: str | None = self.options.get("checkpoint")
        return name

    @property
    def budget(self) -> float | None:
        """Most stored bits per weight of a river of mixed precision; None for any other."""
        bits: float | None = self.options.get("budget")
        return bits

    @property
    def forms(self) -> tuple[QuantSpec, ...]:
        """What the matrices are made by: with a budget, in 4 bits or in 8; else as this says."""
        if self.budget is None:
            return (self,)
        return tuple(QuantSpec(bits, self.group_size, self.method) for bits in (4, 8))

    @property
    def own_norms(self) -> bool:
        """Whether a twin has norms of its own: scales of its inputs are folded into them."""
        return self.bits != 16 and self.method == "awq"

    @property
    def label(self) -> str:
        """Short text for headers, such as ``hqq-4bit-g64``, with the name of a checkpoint."""
        if self.bits == 16:
            return "16bit"
        bits = self.bits if self.budget is None else self.budget
        coded = f"{self.method}-{bits}bit-g{self.group_size}"
        return coded if self.checkpoint is None else f"{coded}:{self.checkpoint}"

    @property
    def shown(self) -> str:
        """The label for records and pages: of a checkpoint in a folder only the folder's name."""
        coded, _, name = self.label.partition(":")
        if not name or re.fullmatch(r"[\w.-]+/[\w.-]+", name):  # a hub id, owner/name
            return self.label
        return f"{coded}:{PureWindowsPath(name).name}"  # splits at either slash

    @property
    def stem(self) -> str:
        """The label as part of a file's name: a checkpoint's becomes a hash."""
        coded, _, name = self.label.partition(":")
        return f"{coded}-{hashlib.sha256(name.encode()).hexdigest()[:12]}" if name else coded


DEFAULT_RIVER = QuantSpec(4, 64, "gptq")  # of a model with a tokenizer; docs/quantizers.md


@dataclass(frozen=True)
class LoadSettings:
    """Arguments of `river_core.load` after the name, checked."""

    device: str = "auto"
    dtype: str = "auto"
    river: QuantSpec = field(default_factory=QuantSpec)
    entry_layer: int = 2
    resident_layers: int | str | None = None
    capacity: int | None = None
    execution: str = "auto"

    def __post_init__(self) -> None:
        kind = self.device.split(":")[0] if isinstance(self.device, str) else None
        if kind not in DEVICES:
            raise SettingsError(f"device is {self.device!r}; use one of {', '.join(DEVICES)}.")
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("execution", self.execution, EXECUTIONS)
        if not isinstance(self.river, QuantSpec):
            raise SettingsError(f"river is {self.river!r}; give a QuantSpec.")
        if not _is_int(self.entry_layer) or self.entry_layer < 2:
            raise SettingsError(f"entry_layer is {self.entry_layer!r}; use 2 or more.")
        if self.resident_layers is not None:
            check_resident(self.resident_layers)
        if self.capacity is not None and (not _is_int(self.capacity) or self.capacity < 1):
            raise SettingsError(f"capacity is {self.capacity!r}; use a number of tokens >= 1.")


@dataclass(frozen=True)
class DecodeSettings:
    """One run's settings (records.md, Settings). None means: the policy row's or model's value."""

    policy: str = "river"
    threshold: float | str | None = None
    target_match: float = 0.98
    exit: str | None = None
    head: str | None = None
    prefill: str | None = None
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    chat: bool = True
    stop: tuple[str, ...] = ()
    profile: bool = False
    prompt_trace: bool = False
    full_trace: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.policy, str):
            raise SettingsError(f"policy is {self.policy!r}; give a policy's name.")
        if self.threshold is not None and self.threshold != "auto":
            check_threshold(self.threshold)
        if not _is_number(self.target_match) or not 0 <= self.target_match <= 1:
            raise SettingsError(f"target_match is {self.target_match!r}; use a number from 0 to 1.")
        _one_of("exit", self.exit, EXITS, none=True)
        _one_of("head", self.head, HEADS, none=True)
        _one_of("prefill", self.prefill, PREFILLS, none=True)
        if not _is_int(self.max_new_tokens) or self.max_new_tokens < 1:
            raise SettingsError(f"max_new_tokens is {self.max_new_tokens!r}; use 1 or more.")
        if not _is_number(self.temperature) or not 0 <= self.temperature <= 10:
            raise SettingsError(f"temperature is {self.temperature!r}; use 0 (greedy) to 10.")
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise SettingsError(f"top_p is {self.top_p!r}; use more than 0 and at most 1.")
        if not _is_int(self.seed) or not 0 <= self.seed < 2**63:
            raise SettingsError(f"seed is {self.seed!r}; use a whole number from 0 to 2**63 - 1.")
        for name in ("chat", "profile", "prompt_trace", "full_trace"):
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"{name} is {getattr(self, name)!r}; use True or False.")
        self._check_stop()
        if not isinstance(self.options, Mapping):
            raise SettingsError(f"options is {self.options!r}; give a dictionary.")
        object.__setattr__(self, "options", dict(self.options))

    def _check_stop(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stop, list | tuple) or not all(isinstance(s, str) and s for s in stop):
            raise SettingsError(f"stop is {self.stop!r}; give non-empty strings.")
        object.__setattr__(self, "stop", tuple(stop))

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any]) -> DecodeSettings:
        """Build settings from keyword arguments; unknown names raise SettingsError by name."""
        known = [f.name for f in fields(cls)]
        unknown = [name for name in keywords if name not in known]
        if unknown:
            raise SettingsError(
                f"unknown setting {', '.join(map(repr, unknown))}; known are {', '.join(known)}."
            )
        return cls(**keywords)


def check_resident(value: object) -> int | str:
    """Return a number of resident layers >= 1, or "auto", as it is; SettingsError otherwise."""
    if value == "auto" or (_is_int(value) and value >= 1):  # type: ignore[operator]
        return value  # type: ignore[return-value]
    raise SettingsError(
        f"resident_layers is {value!r}; use a number of backbone layers from 1 on, or 'auto'."
    )


def check_threshold(value: object) -> float:
    """Return `value` as a float in [-1, 1], or raise SettingsError."""
    if not _is_number(value) or not -1 <= value <= 1:  # type: ignore[operator]
        raise SettingsError(
            f"threshold is {value!r}; use a number from -1 (leave as early as possible) to 1 "
            "(never leave)."
        )
    return float(value)  # type: ignore[arg-type]
