"""From what a pass did to the records that stream out: the only place that builds them.

Knows the model's tokenizer and the run's plan; decides nothing.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median

import torch
from torch import Tensor

from .cache import Rows
from .model import RiverModel
from .planning import Plan
from .records import PromptRecord, RunHeader, RunSummary, TokenRecord
from .sampling import Choice
from .settings import DecodeSettings
from .text import partial_bytes, split
from .thresholds import Threshold
from .version import VERSION

COUNTERS = ("drafted", "accepted", "extra_rows", "slots_missing")  # of RunSummary
PART_OF = {"b": "backbone", "r": "river"}  # of a path letter; what others cost is "fill"
PARTS = ("backbone", "river", "fill", "head", "decision")  # of TokenRecord.parts, milliseconds


@dataclass
class Pass:
    """What one pass did: where it left and whether only for want of resident layers, path and KV
    source letters, similarities [layer][row], decision seconds, milliseconds by part, and logits
    fp32 [V] of its last row, or [R, V]."""

    index: int
    rows: Rows
    threshold: float
    exit_layer: int = 0
    forced: bool = False
    path: str = ""
    kv_source: str = ""
    similarities: list[Sequence[float]] = field(default_factory=list)
    decisions: list[float] = field(default_factory=list)
    parts: dict[str, float] | None = None
    logits: Tensor | None = None


@dataclass
class Recorder:
    """Builds one run's records and keeps what the summary needs."""

    model: RiverModel
    settings: DecodeSettings
    plan: Plan
    execution: str
    chat: bool = False
    passes: list[tuple[int, list[float]]] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    notes: tuple[str, ...] = ()  # the execution's

    def header(self, threshold: Threshold, forced: bool) -> RunHeader:
        """First line of the run's file."""
        info = self.model.info
        settings = asdict(self.settings) | {
            "threshold": threshold.value,
            "exit": self.plan.exit_name,
            "head": self.plan.head,
            "prefill": self.plan.prefill,
            "stop": list(self.settings.stop),
            "options": {k: _plain(v) for k, v in self.settings.options.items()},
        }
        if threshold.origin:
            settings["threshold_from"] = threshold.origin
        return RunHeader(
            model=info.name,
            origin=info.origin,
            revision=info.revision,
            num_layers=self.model.num_layers,
            entry_layer=info.entry_layer,
            quantisation=info.quant.shown,
            device=str(self.model.device),
            settings=settings,
            seed=self.settings.seed,
            kernels=self.kernels,
            forced_tokens=forced,
            notes=(*info.notes, *self.notes, *self._residency(), *threshold.notes),
        )

    def _residency(self) -> tuple[str, ...]:
        """A note where the plan does not have the whole backbone."""
        last, layers = self.plan.last_exit, self.model.num_layers
        if last == layers:
            return ()
        return (f"{last} of {layers} backbone layers are resident: the last one forces the exit.",)

    @property
    def kernels(self) -> dict[str, str]:
        """The execution and the kernel of each shape."""
        return {"execution": self.execution, **self.model.info.kernels}

    def prompt(self, done: Pass, seconds: float) -> PromptRecord:
        """The prompt pass; layers that a cancelled pass never reached read 'n' (none needed)."""
        tokenizer, ids = self.model.tokenizer, done.rows.token_ids
        source = done.kv_source.ljust(self.model.num_layers, "n")
        raw = {i: hexed for i, t in enumerate(ids) if (hexed := partial_bytes(tokenizer, t))}
        matrix = tuple(tuple(row) for row in done.similarities)
        return PromptRecord(
            token_ids=ids,
            texts=split(tokenizer, ids),
            exit_layer=done.exit_layer,
            similarities=tuple(min(row) for row in matrix),
            kv_source=(source,) * len(ids),
            seconds=seconds,
            chat=self.chat,
            matrix=matrix if self.settings.prompt_trace else None,
            raw=raw,
        )

    def token(self, done: Pass, choice: Choice, text: str, seconds: float) -> TokenRecord:
        """The pass that chose a token; its row's similarities are the pass's last row's."""
        self.passes.append((done.exit_layer, done.decisions))
        return TokenRecord(
            index=done.index,
            position=done.rows.positions[-1] + 1,
            token_id=choice.token_id,
            text=text,
            exit_layer=done.exit_layer,
            forced=done.forced,
            threshold=done.threshold,
            similarities=tuple(row[-1] for row in done.similarities),
            path=done.path,
            kv_source=done.kv_source,
            logprob=choice.logprob,
            entropy=choice.entropy,
            alternatives=tuple(
                (i, self.model.token_text(i), logprob) for i, logprob in choice.alternatives
            ),
            seconds=seconds,
            parts=done.parts,
            raw=partial_bytes(self.model.tokenizer, choice.token_id),
        )

    def summary(self, reason: str, prefill_seconds: float, decode_seconds: float) -> RunSummary:
        """The run's rates and weights; means are over the decode passes (i >= 1)."""
        exits = [exit_layer for exit_layer, _ in self.passes[1:]]
        decisions = [seconds for _, spent in self.passes[1:] for seconds in spent]
        mean = fmean(exits) if exits else None
        rate = len(exits) / decode_seconds if exits and decode_seconds > 0 else None
        return RunSummary(
            stop_reason=reason,
            prefill_seconds=prefill_seconds,
            decode_seconds=decode_seconds,
            tokens_per_second=rate,
            mean_exit_layer=mean,
            layers_saved=None if mean is None else 1 - mean / self.model.num_layers,
            decision_microseconds=median(decisions) * 1e6 if decisions else None,
            memory=self.model.memory(),
            counters=dict(self.counters),
            kernels=self.kernels,
            device=str(self.model.device),
            versions=versions(),
        )


def versions() -> Mapping[str, str]:
    """Versions that a result depends on."""
    return {"river": VERSION, "torch": torch.__version__, "python": platform.python_version()}


def _plain(value: object) -> object:
    """Options as JSON keeps them: sequences become lists."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
