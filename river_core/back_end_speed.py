"""How fast a model decodes with each back end's river: all of them in one interleaved run.

A consumer of bench.py: every token leaves after the same layer, and the models share one backbone,
so that only the river differs. A run is one line of the study's file, since rounds of two runs were
not interleaved; the last one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from . import bench
from .contenders import Engine
from .errors import SettingsError
from .machine import FreeMemory, free_gpu, free_ram
from .model import RiverModel
from .prompts import Prompt, encode
from .resumable import Lines
from .settings import QuantSpec
from .sweep import Say

PART = "speed"
EXIT_LAYER = 4
GIB = 2**30
KEPT = ("tokens_per_second", "slowest", "fastest", "to_backbone", "mean_exit_layer")


@dataclass(frozen=True)
class Timing:
    """What is timed: `tokens` tokens after `prompt`, `rounds` times; all leave after a layer."""

    prompt: Prompt
    tokens: int
    rounds: int = 5
    exit_layer: int = EXIT_LAYER

    def asked(self, specs: Sequence[QuantSpec]) -> dict[str, Any]:
        """As a run's line says it."""
        names = ("tokens", "rounds", "exit_layer")
        return {n: getattr(self, n) for n in names} | {"back_ends": [s.label for s in specs]}


def measure(
    file: Lines,
    specs: Sequence[QuantSpec],
    load: Callable[[QuantSpec], RiverModel],
    timing: Timing,
    *,
    say: Say,
) -> None:
    """Append a run over the backbone and all of `specs`, unless the last one was of just these.

    Raises SettingsError where their rivers do not fit beside each other, for fewer than two tokens
    or five rounds, and where the file holds another model or machine.
    """
    if timing.tokens < 2 or timing.rounds < 5:
        raise SettingsError("speed needs 2 tokens or more and 5 rounds or more.")
    asked, last = timing.asked(specs), last_run(file)
    if last is not None and all(last[name] == value for name, value in asked.items()):
        return
    models = side_by_side(specs, load)
    first = models[0]
    ids, _ = encode(first, timing.prompt, True)
    head = bench.header(first, len(ids))
    head = {name: value for name, value in head.items() if name not in ("quantisation", "peers")}
    file.begin(PART, {**head, "device": str(first.device)})
    rows = [Engine(bench.BASELINE, _endless(first), ids, {"policy": "backbone"})]
    forced = {"exit": "fixed", "options": {"exit_layer": timing.exit_layer}, "prefill": "full"}
    for spec, model in zip(specs, models, strict=True):
        rows.append(Engine(spec.label, _endless(model), ids, {"policy": "river", **forced}))
    facts, found = bench.measure(rows, timing.tokens, timing.rounds, head, say)
    read = [round(rate, 2) for rate in facts["read_gigabytes_per_second"]]
    kept = [_kept(asdict(row)) for row in found]
    file.append({"part": PART, "type": "run", **asked, "read": read, "rows": kept})


def _kept(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the run as its line holds it."""
    numbers = {name: round(row[name], 4) for name in KEPT}
    return {"name": row["name"], **numbers, "kernels": row["kernels"]}


def _endless(model: RiverModel) -> RiverModel:
    """It decodes through stop ids, so that every row decodes as many tokens."""
    return replace(model, eos_ids=())


def side_by_side(
    specs: Sequence[QuantSpec], load: Callable[[QuantSpec], RiverModel]
) -> list[RiverModel]:
    """A model per back end, all with the first one's backbone, head and cache.

    Each is loaded whole, then gives up all but its river: SettingsError before one that does not
    fit the memory that is free.
    """
    models: list[RiverModel] = []
    for spec in specs:
        if models:
            _check_room(models[0], spec)
        model = load(spec)
        model.require_whole("speed")
        if models:
            model = replace(models[0], river=model.river, info=model.info)
        models.append(model)
    return models


def _check_room(first: RiverModel, spec: QuantSpec) -> None:
    """Raise SettingsError unless another model as large as the first fits, or that is unknown."""
    gpu = first.device.type == "cuda"
    free = FreeMemory("GPU memory", free_gpu()) if gpu else FreeMemory("RAM", free_ram())
    needed = sum(first.memory().values())
    if free.holds(needed) is False:
        assert free.size is not None
        raise SettingsError(
            f"{spec.label} cannot be loaded beside the others: that takes {needed / GIB:.1f} GiB, "
            f"and {free.size / GIB:.1f} GiB of {free.kind} are free; leave --speed out, or name "
            "fewer back ends with a file of their own."
        )


def last_run(file: Lines) -> dict[str, Any] | None:
    """The line of the last run, None where none was."""
    runs = file.of(PART, "run")
    return runs[-1] if runs else None


def rates(file: Lines) -> dict[str, str]:
    """Cell of each back end of the last run: median and spread of its tokens per second."""
    run = last_run(file)
    return {} if run is None else {row["name"]: _rate(row) for row in run["rows"]}


def _rate(row: Mapping[str, Any]) -> str:
    return f"{row['tokens_per_second']:.1f} ({row['slowest']:.1f} to {row['fastest']:.1f})"


def sentence(file: Lines) -> Iterator[str]:
    """What the rates are of, and the backbone's own; nothing where none was measured."""
    run = last_run(file)
    if run is None:
        return
    (head,) = file.of(PART, "header")
    before, after = run["read"]
    yield (
        f"tok/s: backbone {rates(file)[bench.BASELINE]} tok/s in the same run. Median (slowest to "
        f"fastest) of {run['rounds']} rounds over all rows, interleaved after a warm-up each: "
        f"{run['tokens']} tokens after {head['prompt_tokens']}, each leaving after layer "
        f"{run['exit_layer']}; {head['dtype']}, device {head['device']} ({head['processor']}), "
        f"{head['threads']} threads; read bandwidth {before:.1f} GB/s before, {after:.1f} after."
    )
