"""Decode speed, interleaved: the same prompt, tokens, threads and clock for every contender.

A consumer of the loop. Beside each rate stand the bytes of weights that its tokens read, the ratio
that those bytes allow, and the machine's read bandwidth of the same run. Knows nothing of the
command line or of how a model was loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Protocol

import torch

from .bandwidth import ReadBytes, read_bandwidth
from .bench_report import KernelTime, Row
from .devices import processor
from .errors import SettingsError
from .kernels.choose import KernelPlan, kind_of
from .machine import peak_memory
from .model import RiverModel
from .peers import Decoder
from .recorder import versions

BASELINE = "backbone"
WARM_UP_TOKENS = 16
Say = Callable[[str, float | None], None]


@dataclass(frozen=True)
class Sample:
    """One timed run: tokens per second after the first, and what the engine says of it."""

    tokens_per_second: float
    mean_exit_layer: float
    decision_microseconds: float | None = None
    execution: str = ""  # how the steps ran


@dataclass(frozen=True)
class Detail:
    """What is found out apart from the timed rounds, each None where it does not apply.

    `parts`: milliseconds per token by part, in profile mode, which slows a run; `agreement` with
    the backbone, 0..1; `memory`: bytes of weights and KV cache.
    """

    parts: Mapping[str, float] | None = None
    agreement: float | None = None
    memory: int | None = None


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
    """One whose bytes and kernels are known; the first `peer` is the one of the ratios."""

    @property
    def peer(self) -> bool:
        """Whether it is another engine than ours."""
        ...

    def reads(self) -> ReadBytes | None:
        """What a token of it reads; None where a token is no single pass."""
        ...

    def kernels(self, exit_layer: float) -> str:
        """Names of the kernels that serve a token with that mean exit layer."""
        ...

    def detail(self, tokens: int) -> Detail:
        """What is found out apart from the timed rounds, by runs of its own."""
        ...


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
    details: Mapping[str, Detail] | None = None,
) -> list[Row]:
    """One row per contender; the first peer, if there is one, is the peer of the ratios.

    `read` is the read bandwidth in GB/s, of which the rows give their share.
    """
    base = next(c for c in contenders if c.name == BASELINE).reads()
    assert base is not None
    peer = next((samples[c.name] for c in contenders if c.peer), None)
    others = (samples[BASELINE], peer)
    found = details or {}
    return [
        _row(c, samples[c.name], others, (base.at(base.layers), read), found.get(c.name, Detail()))
        for c in contenders
    ]


def _row(
    contender: Contender,
    own: Sequence[Sample],
    others: tuple[Sequence[Sample], Sequence[Sample] | None],
    bounds: tuple[float, float | None],
    detail: Detail,
) -> Row:
    """A row beside the backbone's and the peer's samples, under the backbone's bytes and `read`."""
    (base, peer), (full, read) = others, bounds
    rates = [s.tokens_per_second for s in own]
    decisions = [s.decision_microseconds for s in own if s.decision_microseconds is not None]
    exit_layer, reads = fmean(s.mean_exit_layer for s in own), contender.reads()
    size = None if reads is None else reads.at(exit_layer)
    speed = None if size is None else size * median(rates) / 1e9
    return Row(
        name=contender.name,
        tokens_per_second=median(rates),
        slowest=min(rates),
        fastest=max(rates),
        ms_per_token=1e3 / median(rates),
        mean_exit_layer=exit_layer,
        bytes_per_token=size,
        gigabytes_per_second=speed,
        byte_bound=None if size is None else full / size,
        to_backbone=_ratio(own, base),
        to_peer=None if peer is None else _ratio(own, peer),
        decision_microseconds=median(decisions) if decisions else None,
        kernels=": ".join(filter(None, [own[-1].execution, contender.kernels(exit_layer)])),
        rounds=len(own),
        share_of_read=None if read is None or speed is None else speed / read,
        parts=detail.parts,
        agreement=detail.agreement,
        memory=detail.memory,
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
    *,
    detailed: bool = False,
) -> tuple[dict[str, Any], list[Row]]:
    """Read bandwidth, all rounds, read bandwidth again: `header` with these facts, and the rows.

    With `detailed` each contender's `detail` too, after all that is timed. Raises SettingsError for
    fewer than one round.
    """
    if rounds < 1:
        raise SettingsError(f"rounds is {rounds}; use 1 or more, 5 for a spread worth the name.")
    device = torch.device(header["device"])
    _tell(say, "reading memory", 0.0)
    before = read_bandwidth(device)
    samples = interleave(contenders, tokens, rounds, say)
    after = read_bandwidth(device)
    facts = {"tokens": tokens, "rounds": rounds, "read_gigabytes_per_second": [before, after]}
    facts["peak_bytes"] = peak_memory(device.type)
    details: dict[str, Detail] = {}
    for n, contender in enumerate(contenders if detailed else ()):
        _tell(say, f"parts and agreement of {contender.name}", n / len(contenders))
        details[contender.name] = contender.detail(tokens)
    return {**header, **facts}, rows(contenders, samples, (before + after) / 2, details)


def header(model: RiverModel, prompt_tokens: int, peers: Sequence[Decoder] = ()) -> dict[str, Any]:
    """What the numbers depend on: model, kernels, processor, threads, versions."""
    info = model.info
    found = dict(versions())
    for peer in peers:
        found |= peer.versions
    return {
        "model": info.name,
        "origin": info.origin,
        "num_layers": model.num_layers,
        "quantisation": info.quant.shown,
        "dtype": str(model.embedding.dtype).removeprefix("torch."),
        "peers": [peer.name for peer in peers],
        "device": str(model.device),
        "processor": processor(model.device),
        "threads": torch.get_num_threads(),
        "versions": found,
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
