"""What the benchmark sets against each other: our loop with its settings, and other engines.

Each says what a token of it reads, what it holds in memory, where its time goes and how far it
agrees with the backbone. Knows nothing of rounds or of reports (bench.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from .bandwidth import ReadBytes
from .bench import BASELINE, Detail, Sample
from .compare import compare
from .decode import generate, teacher_forced
from .errors import SettingsError
from .model import RiverModel
from .peers import Decoder
from .recorder import PARTS
from .records import RunRecord
from .settings import check_threshold


def exit_schedule(mean: float, tokens: int, allowed: Sequence[int]) -> list[int]:
    """Exit layers whose mean over decode passes 1..tokens-1 is the largest that is <= `mean`.

    They alternate between the two layers around `mean`, which is held within `allowed`.
    """
    mean = min(max(mean, allowed[0]), allowed[-1])
    steps = [math.floor(mean * (n + 1)) - math.floor(mean * n) for n in range(tokens - 1)]
    return [math.ceil(mean), *steps]


@dataclass
class Answer:
    """The backbone's greedy answer to a prompt, by which others are judged; made when first asked.

    Stop ids are decoded through.
    """

    model: RiverModel
    prompt: tuple[int, ...]
    _free: dict[int, RunRecord] = field(default_factory=dict)
    _forced: dict[int, RunRecord] = field(default_factory=dict)

    def free(self, tokens: int) -> RunRecord:
        """The first `tokens` tokens as the backbone chooses them."""
        if tokens not in self._free:
            self._free[tokens] = generate(
                self.model,
                list(self.prompt),
                policy="backbone",
                max_new_tokens=tokens,
                full_trace=False,
            )
        return self._free[tokens]

    def ids(self, tokens: int) -> tuple[int, ...]:
        """Their ids."""
        return tuple(token.token_id for token in self.free(tokens).tokens)

    def forced(self, tokens: int, settings: Mapping[str, Any]) -> RunRecord:
        """These tokens fed to a run with `settings`."""
        wanted = {"full_trace": False, **settings}
        return teacher_forced(self.model, list(self.prompt), self.ids(tokens), **wanted)

    def match(self, tokens: int, settings: Mapping[str, Any]) -> float:
        """Share of these tokens that `settings` would choose too, 0..1: teacher-forced."""
        if tokens not in self._forced:
            self._forced[tokens] = self.forced(tokens, {"policy": "backbone"})
        return compare(self._forced[tokens], self.forced(tokens, settings)).match

    def common(self, ids: Sequence[int]) -> float:
        """Share of these tokens before the first that a free run chose otherwise, 0..1."""
        own = self.ids(len(ids))
        pairs = enumerate(zip(own, ids, strict=True))
        return next((n for n, (a, b) in pairs if a != b), len(ids)) / len(ids)


@dataclass(frozen=True)
class Engine:
    """Our loop with some DecodeSettings, timed by its own clock (RunSummary).

    `unread` are parts of the ledger that no token of it reads; `whole_river` says that it needs
    the twins below the entry layer too. With `drafts` a token is no single pass: its bytes are not
    told, and agreement is that of the free text. Without an `answer` there is none.
    """

    name: str
    model: RiverModel
    prompt: tuple[int, ...]
    settings: Mapping[str, Any]
    unread: str = ""
    whole_river: bool = False
    drafts: bool = False
    answer: Answer | None = None

    peer = False

    def run(self, tokens: int) -> Sample:
        """Decode greedily."""
        done = self._generate(tokens).summary
        assert done.tokens_per_second is not None
        assert done.mean_exit_layer is not None
        return Sample(
            done.tokens_per_second,
            done.mean_exit_layer,
            done.decision_microseconds,
            done.kernels["execution"],
        )

    def _generate(self, tokens: int, **more: Any) -> RunRecord:
        settings = {"max_new_tokens": tokens, "full_trace": False, **self.settings, **more}
        return generate(self.model, list(self.prompt), **settings)

    def reads(self) -> ReadBytes | None:
        """What the model's kernels store."""
        return None if self.drafts else ReadBytes.of_model(self.model)

    def kernels(self, exit_layer: float) -> str:
        """The kernels of the layers that run, and of the head."""
        model = self.model
        layers = model.backbone if exit_layer > 0 else []
        twins = model.river if exit_layer < model.num_layers else []
        there = [w for w in [*layers, *twins] if w is not None]
        linears = [x for w in there for x in w.linears.values()]
        return " + ".join(dict.fromkeys(x.name for x in [*linears, model.head]))

    def detail(self, tokens: int) -> Detail:
        """Milliseconds by part from a run of its own in profile mode, agreement, and memory."""
        run = self._generate(tokens, profile=True)
        spent = [token.parts for token in run.tokens[1:] if token.parts is not None]
        parts = {part: fmean(p[part] for p in spent) for part in PARTS} if spent else None
        return Detail(parts, self._agreement(run, tokens), self.memory())

    def _agreement(self, run: RunRecord, tokens: int) -> float | None:
        if self.answer is None:
            return None
        if self.drafts:
            return self.answer.common([token.token_id for token in run.tokens])
        return self.answer.match(tokens, self.settings)

    def memory(self) -> int:
        """Bytes of the ledger that this row needs."""
        model, ledger = self.model, self.model.memory()
        there = sum(weights is not None for weights in model.river)
        first = 1 if self.whole_river else model.info.entry_layer
        ledger["river"] = round(ledger["river"] * (model.num_layers - first + 1) / there)
        return sum(size for part, size in ledger.items() if part != self.unread)


@dataclass(frozen=True)
class Peer:
    """Another engine on the weights of `model`, whose answer is held against the backbone's."""

    decoder: Decoder
    model: RiverModel
    prompt: tuple[int, ...]
    answer: Answer | None = None

    peer = True

    @property
    def name(self) -> str:
        """The engine's own."""
        return self.decoder.name

    def run(self, tokens: int) -> Sample:
        """Decode the same prompt."""
        done = self.decoder.generate(self.prompt, tokens)
        assert done.tokens_per_second is not None
        return Sample(done.tokens_per_second, self.model.num_layers)

    def reads(self) -> ReadBytes:
        """The whole model in the peer's bits."""
        model, bits = self.model, self.decoder.bits
        return ReadBytes.of_shape(model.shape, model.num_layers, model.vocab, dense=bits)

    def kernels(self, exit_layer: float) -> str:
        """What the peer is built on."""
        return self.decoder.library

    def detail(self, tokens: int) -> Detail:
        """Agreement of its text with the backbone's; bytes of weights and of a 16-bit KV cache."""
        ids = self.decoder.generate(self.prompt, tokens).token_ids
        shape = self.model.shape
        position = 4 * self.model.num_layers * shape.kv_heads * shape.head_dim
        memory = self.decoder.weight_bytes + position * (len(self.prompt) + tokens)
        return Detail(None, None if self.answer is None else self.answer.common(ids), memory)


def engines(
    model: RiverModel,
    prompt: tuple[int, ...],
    tokens: int,
    thresholds: Sequence[float],
    mean_exits: Sequence[float],
    *,
    verified: float | None = None,
    judged: bool = False,
) -> list[Engine]:
    """Our rows for a prompt of token ids: backbone, full quantization, River per threshold, forced.

    With `verified` one more that drafts by that threshold. River prefills in full, as the backbone
    does; stop ids are decoded through, so that every row decodes the same number of tokens.
    `judged` has each compared with the backbone. Raises SettingsError for fewer than two tokens,
    for numbers that are no threshold or no mean, and where a backbone layer is not resident.
    """
    model.require_whole("bench")
    if tokens < 2:
        raise SettingsError(f"tokens is {tokens}; use 2 or more, the first is not timed.")
    for mean in mean_exits:
        if not math.isfinite(mean):
            raise SettingsError(f"mean exit layer is {mean}; give a number of layers.")
    for threshold in [*thresholds, *([] if verified is None else [verified])]:
        check_threshold(threshold)
    endless = model.endless()
    answer = Answer(endless, prompt) if judged else None

    def engine(name: str, settings: Mapping[str, Any], **more: Any) -> Engine:
        return Engine(name, endless, prompt, settings, answer=answer, **more)

    full = {"policy": "full-quant"}
    rows = [
        engine(BASELINE, {"policy": "backbone"}, unread="river"),
        engine("full quantization", full, unread="backbone", whole_river=True),
    ]
    for threshold in thresholds:
        settings = {"threshold": threshold, "prefill": "full"}
        rows.append(engine(f"River, threshold {threshold:g}", settings))
    for mean in mean_exits:
        rows.append(engine(f"River, forced exits {mean:g}", _forced(model, mean, tokens)))
    if verified is not None:
        settings = {"policy": "river-verified", "threshold": verified}
        rows.append(engine(f"river-verified, threshold {verified:g}", settings, drafts=True))
    return rows


def _forced(model: RiverModel, mean: float, tokens: int) -> dict[str, Any]:
    """Settings of River with a schedule of exit layers of that mean."""
    allowed = range(model.info.entry_layer - 1, model.num_layers + 1)
    layers = exit_schedule(mean, tokens, allowed)
    return {"exit": "schedule", "options": {"exit_layers": layers}, "prefill": "full"}
