"""Decode speed, interleaved: the same prompt, tokens, threads and clock for every contender.

A consumer of the loop. Beside each rate stand the bytes of weights that its tokens read, the ratio
that those bytes allow, and the machine's read bandwidth of the same run. Knows nothing of the
command line or of how a model was loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any, Protocol

import torch

from .bandwidth import ReadBytes, read_bandwidth
from .bench_report import KernelTime, Row
from .decode import generate
from .devices import processor
from .errors import SettingsError
from .kernels.choose import KernelPlan, kind_of
from .model import RiverModel
from .peers import HFGenerate
from .recorder import versions
from .settings import check_threshold

BASELINE = "backbone"
WARM_UP_TOKENS = 16
Say = Callable[[str, float | None], None]


def exit_schedule(mean: float, tokens: int, allowed: Sequence[int]) -> list[int]:
    """Exit layers whose mean over decode passes 1..tokens-1 is the largest that is <= `mean`.

    They alternate between the two layers around `mean`, which is held within `allowed`.
    """
    mean = min(max(mean, allowed[0]), allowed[-1])
    steps = [math.floor(mean * (n + 1)) - math.floor(mean * n) for n in range(tokens - 1)]
    return [math.ceil(mean), *steps]


@dataclass(frozen=True)
class Sample:
    """One timed run: tokens per second after the first, and what the engine says of it."""

    tokens_per_second: float
    mean_exit_layer: float
    decision_microseconds: float | None = None
    execution: str = ""  # how the steps ran


class Timed(Protocol):
    """Something that decodes the same prompt."""

    @property
    def name(self) -> str:
        """As the table shows it."""
        ...

    def run(self, tokens: int) -> Sample:
        """Decode `tokens` tokens and time those after the first."""
        ...


class Contender(Timed, Protocol):
    """One whose bytes and kernels are known."""

    def reads(self) -> ReadBytes:
        """What a token of it reads."""
        ...

    def kernels(self, exit_layer: float) -> str:
        """Names of the kernels that serve a token with that mean exit layer."""
        ...


@dataclass(frozen=True)
class Engine:
    """Our loop with some DecodeSettings, timed by its own clock (RunSummary)."""

    name: str
    model: RiverModel
    prompt: tuple[int, ...]
    settings: Mapping[str, Any]

    def run(self, tokens: int) -> Sample:
        """Decode greedily."""
        settings = {"max_new_tokens": tokens, "full_trace": False, **self.settings}
        done = generate(self.model, list(self.prompt), **settings).summary
        assert done.tokens_per_second is not None
        assert done.mean_exit_layer is not None
        return Sample(
            done.tokens_per_second,
            done.mean_exit_layer,
            done.decision_microseconds,
            done.kernels["execution"],
        )

    def reads(self) -> ReadBytes:
        """What the model's kernels store."""
        return ReadBytes.of_model(self.model)

    def kernels(self, exit_layer: float) -> str:
        """The kernels of the layers that run, and of the head."""
        model = self.model
        layers = model.backbone if exit_layer > 0 else []
        twins = model.river if exit_layer < model.num_layers else []
        there = [w for w in [*layers, *twins] if w is not None]
        linears = [x for w in there for x in w.linears.values()]
        return " + ".join(dict.fromkeys(x.name for x in [*linears, model.head]))


@dataclass(frozen=True)
class Peer:
    """Hugging Face `generate` on the weights of `model`, in the peer's own dtype."""

    name: str
    peer: HFGenerate
    model: RiverModel
    prompt: tuple[int, ...]

    def run(self, tokens: int) -> Sample:
        """Decode the same prompt."""
        done = self.peer.generate(self.prompt, tokens)
        assert done.tokens_per_second is not None
        return Sample(done.tokens_per_second, self.model.num_layers)

    def reads(self) -> ReadBytes:
        """The whole model in the peer's dtype."""
        model, bits = self.model, self.peer.bits
        return ReadBytes.of_shape(model.shape, model.num_layers, model.vocab, dense=bits)

    def kernels(self, exit_layer: float) -> str:
        """What transformers calls."""
        return "transformers"


def engines(
    model: RiverModel,
    prompt: tuple[int, ...],
    tokens: int,
    thresholds: Sequence[float],
    mean_exit: float,
) -> list[Engine]:
    """Our rows for a prompt of token ids: backbone, full quantization, River per threshold, forced.

    River prefills in full, as the backbone does; stop ids are decoded through, so that every row
    decodes the same number of tokens. Raises SettingsError for fewer than two, for numbers that
    are no threshold or no mean, and where a backbone layer is not resident.
    """
    model.require_whole("bench")
    if tokens < 2:
        raise SettingsError(f"tokens is {tokens}; use 2 or more, the first is not timed.")
    if not math.isfinite(mean_exit):
        raise SettingsError(f"mean exit layer is {mean_exit}; give a number of layers.")
    for threshold in thresholds:
        check_threshold(threshold)
    allowed = range(model.info.entry_layer - 1, model.num_layers + 1)
    forced = {"exit_layers": exit_schedule(mean_exit, tokens, allowed)}
    rows: dict[str, dict[str, Any]] = {
        BASELINE: {"policy": "backbone"},
        "full quantization": {"policy": "full-quant"},
    }
    for threshold in thresholds:
        rows[f"River, threshold {threshold:g}"] = {"threshold": threshold, "prefill": "full"}
    rows["River, forced exits"] = {"exit": "schedule", "options": forced, "prefill": "full"}
    return [Engine(name, model.endless(), prompt, settings) for name, settings in rows.items()]


def interleave(
    contenders: Sequence[Timed], tokens: int, rounds: int, say: Say | None = None
) -> dict[str, list[Sample]]:
    """Samples by name: a warm-up each, then `rounds` rounds over all.

    Every round starts one contender later than the one before, so that none always follows the
    same other.
    """
    samples: dict[str, list[Sample]] = {c.name: [] for c in contenders}
    for n, contender in enumerate(contenders):
        _tell(say, f"warming up {contender.name}", n / len(contenders))
        contender.run(min(tokens, WARM_UP_TOKENS))
    for r in range(rounds):
        first = r % len(contenders)
        for contender in [*contenders[first:], *contenders[:first]]:
            _tell(say, f"round {r + 1} of {rounds}: {contender.name}", r / rounds)
            samples[contender.name].append(contender.run(tokens))
    return samples


def _tell(say: Say | None, text: str, share: float) -> None:
    if say is not None:
        say(text, share)


def rows(
    contenders: Sequence[Contender],
    samples: Mapping[str, Sequence[Sample]],
    read: float | None = None,
) -> list[Row]:
    """One row per contender; the first Peer, if there is one, is the peer of the ratios.

    `read` is the read bandwidth in GB/s, of which the rows give their share.
    """
    base = next(c for c in contenders if c.name == BASELINE)
    full = base.reads().at(base.reads().layers)
    peer = next((samples[c.name] for c in contenders if isinstance(c, Peer)), None)
    found = [_row(c, samples, full, peer) for c in contenders]
    if read is None:
        return found
    return [replace(row, share_of_read=row.gigabytes_per_second / read) for row in found]


def _row(
    contender: Contender,
    samples: Mapping[str, Sequence[Sample]],
    full: float,
    peer: Sequence[Sample] | None,
) -> Row:
    own = samples[contender.name]
    rates = [s.tokens_per_second for s in own]
    decisions = [s.decision_microseconds for s in own if s.decision_microseconds is not None]
    exit_layer = fmean(s.mean_exit_layer for s in own)
    size = contender.reads().at(exit_layer)
    return Row(
        name=contender.name,
        tokens_per_second=median(rates),
        slowest=min(rates),
        fastest=max(rates),
        ms_per_token=1e3 / median(rates),
        mean_exit_layer=exit_layer,
        bytes_per_token=size,
        gigabytes_per_second=size * median(rates) / 1e9,
        byte_bound=full / size,
        to_backbone=_ratio(own, samples[BASELINE]),
        to_peer=None if peer is None else _ratio(own, peer),
        decision_microseconds=median(decisions) if decisions else None,
        kernels=": ".join(filter(None, [own[-1].execution, contender.kernels(exit_layer)])),
        rounds=len(own),
    )


def _ratio(own: Sequence[Sample], other: Sequence[Sample]) -> float:
    pairs = zip(own, other, strict=True)
    return median(a.tokens_per_second / b.tokens_per_second for a, b in pairs)


def measure(
    contenders: Sequence[Contender],
    tokens: int,
    rounds: int,
    header: Mapping[str, Any],
    say: Say | None = None,
) -> tuple[dict[str, Any], list[Row]]:
    """Read bandwidth, all rounds, read bandwidth again: `header` with these facts, and the rows.

    Raises SettingsError for fewer than one round.
    """
    if rounds < 1:
        raise SettingsError(f"rounds is {rounds}; use 1 or more, 5 for a spread worth the name.")
    device = torch.device(header["device"])
    _tell(say, "reading memory", 0.0)
    before = read_bandwidth(device)
    samples = interleave(contenders, tokens, rounds, say)
    after = read_bandwidth(device)
    facts = {"tokens": tokens, "rounds": rounds, "read_gigabytes_per_second": [before, after]}
    return {**header, **facts}, rows(contenders, samples, (before + after) / 2)


def header(model: RiverModel, prompt_tokens: int, peer: HFGenerate | None) -> dict[str, Any]:
    """What the numbers depend on: model, kernels, processor, threads, versions."""
    info = model.info
    return {
        "model": info.name,
        "origin": info.origin,
        "num_layers": model.num_layers,
        "quantisation": info.quant.shown,
        "dtype": str(model.embedding.dtype).removeprefix("torch."),
        "peer": None if peer is None else f"{peer.name}, {peer.dtype}".replace("torch.", ""),
        "device": str(model.device),
        "processor": processor(model.device),
        "threads": torch.get_num_threads(),
        "versions": {**versions(), **({} if peer is None else peer.versions)},
        "prompt_tokens": prompt_tokens,
        "kernels": dict(info.kernels),
        "notes": list(info.notes),
    }


def kernel_times(plan: KernelPlan) -> list[KernelTime]:
    """Every kernel that the micro-test timed, by kind and shape, fastest first."""
    shown, found = plan.shown(), []
    for key, microseconds in plan.microseconds.items():
        kernel, shape = key.rsplit(" ", 1)
        kind = kind_of(kernel)
        chosen = shown.get(f"{shape} {kind}") == kernel
        found.append(KernelTime(shape, kind, kernel, microseconds, chosen))
    return sorted(found, key=lambda t: (t.kind, t.shape, t.microseconds))
