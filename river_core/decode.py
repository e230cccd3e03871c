"""The one loop: prompt pass, decode passes, records as they happen.

Owns position, clock and cancellation. What runs on a layer is the plan's word (policies.py), how
it runs is the execution's; this file asks for no policy's name. Everything a caller can get wrong
is refused before the first pass.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .cache import Rows
from .errors import Cancelled, RiverError, SettingsError
from .execution import open_execution
from .exits import Moment
from .fills import KV_SOURCE
from .model import RiverModel
from .policies import resolve
from .prompts import Prompt, check_ids, encode
from .recorder import PART_OF, PARTS, Pass, Recorder
from .records import CacheUpdate, PromptRecord, Record, RunRecord, RunSummary, TokenRecord
from .sampling import Choice, describe, greedy, sample
from .settings import DecodeSettings, check_threshold
from .text import TextStream
from .trace import full_trace


class Control:
    """A run's live controls, safe to use from another thread."""

    def __init__(self) -> None:
        self._threshold: float | None = None
        self._cancelled = False

    @property
    def threshold(self) -> float | None:
        """Threshold from the next pass on; None leaves the run's own."""
        return self._threshold

    @threshold.setter
    def threshold(self, value: float) -> None:
        self._threshold = check_threshold(value)

    def cancel(self) -> None:
        """Stop the run within one step."""
        self._cancelled = True

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled


class _Clock:
    """Seconds of the run's own work: the time its consumer holds a record does not count."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def skip(self, seconds: float) -> None:
        self._start += seconds


class RunStream(Iterator[Record]):
    """An iterator of records: PromptRecord, TokenRecord | CacheUpdate ..., RunSummary.

    `header` is known from the start; `record()` gathers what has come into a RunRecord.
    """

    def __init__(
        self,
        model: RiverModel,
        prompt: Prompt,
        settings: DecodeSettings,
        control: Control | None = None,
        forced: Sequence[int] | None = None,
    ) -> None:
        ids, chat = encode(model, prompt, settings.chat)
        plan = resolve(settings, model.num_layers, model.info.entry_layer)
        self._forced = None if forced is None else check_ids(model, forced)
        new = settings.max_new_tokens if self._forced is None else len(self._forced)
        model.cache.check(len(ids), new)
        self._model, self._ids, self._settings, self._plan = model, ids, settings, plan
        self._new = new
        self._control = control if control is not None else Control()
        own = settings.threshold
        self._threshold = model.info.default_threshold if own is None else own
        self._engine = open_execution(model)
        self._actions = {"b": self._engine.backbone, "r": self._engine.river}
        self._log = Recorder(model, settings, plan, self._engine.name, chat)
        self.header = self._log.header(self._threshold, self._forced is not None)
        self._got: list[Record] = []
        self._logits: list[Tensor] = []
        self._iterator = self._records()

    def __next__(self) -> Record:
        record = next(self._iterator)
        self._got.append(record)
        return record

    def close(self) -> None:
        """Give the run up; what was computed so far stays valid."""
        self._iterator.close()

    def record(self) -> RunRecord:
        """Everything up to the summary as one RunRecord, with the full trace if it was asked for.

        Raises RiverError while the run is unfinished.
        """
        if not self._got or not isinstance(self._got[-1], RunSummary):
            raise RiverError("the run is unfinished; take its records to the summary first.")
        tokens = tuple(r for r in self._got if isinstance(r, TokenRecord))
        trace = None
        if self._settings.full_trace and tokens:
            fed = self._ids + tuple(t.token_id for t in tokens[:-1])
            trace = full_trace(self._model, fed, len(tokens))
        prompt = self._got[0]
        assert isinstance(prompt, PromptRecord)
        return RunRecord(
            header=self.header,
            prompt=prompt,
            tokens=tokens,
            updates=tuple(r for r in self._got if isinstance(r, CacheUpdate)),
            summary=self._got[-1],
            full_trace=trace,
            logits=torch.stack(self._logits) if self._logits else None,
        )

    def _records(self) -> Generator[Record, None, None]:
        model = self._model
        if self._plan.full_river:
            model.ensure_full_river()
        model.run += 1
        self._run_number = model.run
        model.cache.reset()
        self._clock = _Clock()
        text = TextStream(model.tokenizer, self._settings.stop)
        generator = torch.Generator().manual_seed(self._settings.seed)
        reason, prefill, last = "cancelled", 0.0, 0.0
        current = self._open(Rows(self._ids, tuple(range(len(self._ids)))), 0)
        try:
            self._run_pass(current, self._plan.prefill == "exit")
            choice = self._choose(current, generator)
            prefill = self._clock.now()
            yield from self._held(self._log.prompt(current, prefill))
            while True:
                ends = self._ends(current, choice)
                shown = self._text(text, choice, ends)
                last = self._clock.now() - prefill if current.index else 0.0
                yield from self._held(self._log.token(current, choice, shown, last))
                reason = "stop" if text.stopped and not ends else ends
                if reason or self._control.cancelled:
                    break
                position = current.rows.span
                current = self._open(Rows((choice.token_id,), (position,)), current.index + 1)
                self._run_pass(current, True)
                choice = self._choose(current, generator)
        except Cancelled:
            if not self._got:
                yield self._log.prompt(current, self._clock.now())
        yield self._log.summary(reason or "cancelled", prefill, last)

    def _held(self, record: Record) -> Iterator[Record]:
        """Yield a record; the time until the consumer comes back is not the run's."""
        given = time.perf_counter()
        yield record
        self._clock.skip(time.perf_counter() - given)

    def _open(self, rows: Rows, index: int) -> Pass:
        live = self._control.threshold
        threshold = self._threshold if live is None else live
        parts = dict.fromkeys(PARTS, 0.0) if self._settings.profile else None
        return Pass(index, rows, threshold, parts=parts)

    @torch.inference_mode()
    def _run_pass(self, now: Pass, may_leave: bool) -> None:
        """One pass over all layers: backbone until the rows leave, the plan's fill after that."""
        model, engine = self._model, self._engine
        if model.run != self._run_number:
            raise RiverError("another run started on this model; this one cannot go on.")
        engine.start(now.rows)
        left = may_leave and self._plan.full_river and self._leaves(now, 0)
        first_exit, last = model.info.entry_layer - 1, model.num_layers
        letters: list[str] = []
        for layer in range(1, last + 1):
            if self._control.cancelled and (now.index == 0 or layer == 1):
                now.path = "".join(letters)
                now.similarities = engine.trace(now.exit_layer)
                raise Cancelled
            letter = self._plan.fill.action(layer) if left else "b"
            self._timed(now, PART_OF.get(letter, "fill"), self._actions[letter], layer)
            model.cache.mark(layer, now.rows, KV_SOURCE[letter])
            letters.append(letter)
            if not left:
                now.exit_layer = layer
                left = may_leave and first_exit <= layer < last and self._leaves(now, layer)
        now.path = "".join(letters)
        now.logits = self._timed(now, "head", engine.logits)
        now.similarities = engine.trace(now.exit_layer)

    def _leaves(self, now: Pass, layer: int) -> bool:
        """Ask the exit rule after `layer`, timing the decision."""
        rule = self._plan.rule
        if self._settings.profile:
            self._engine.settle()
        start = time.perf_counter()
        values = self._engine.read(layer) if rule.reads_similarity and layer else ()
        left = rule.leaves(Moment(now.index, layer, now.threshold), values)
        spent = time.perf_counter() - start
        if layer and rule.reads_similarity:
            now.decisions.append(spent)
        if now.parts is not None:
            now.parts["decision"] += spent * 1e3
        return left

    def _timed(self, now: Pass, part: str, call: Any, *arguments: int) -> Any:
        """Call; in profile mode wait for the device and add the milliseconds to `part`."""
        if now.parts is None:
            return call(*arguments)
        start = time.perf_counter()
        result = call(*arguments)
        self._engine.settle()
        now.parts[part] += (time.perf_counter() - start) * 1e3
        return result

    @torch.inference_mode()
    def _choose(self, now: Pass, generator: torch.Generator) -> Choice:
        """The next token: forced, greedy or drawn; with what the record says about it."""
        assert now.logits is not None
        if self._forced is not None:
            self._logits.append(now.logits.float().cpu().clone())
            return describe(now.logits, self._forced[now.index])
        s = self._settings
        if s.temperature == 0:
            return describe(now.logits, greedy(now.logits))
        return describe(now.logits, sample(now.logits, s.temperature, s.top_p, generator))

    def _ends(self, now: Pass, choice: Choice) -> str:
        """Why this token is the last one, or ''."""
        if self._forced is None and choice.token_id in self._model.eos_ids:
            return "eos"
        return "length" if now.index == self._new - 1 else ""

    def _text(self, text: TextStream, choice: Choice, ends: str) -> str:
        if ends == "eos":
            return text.flush()
        return text.push(choice.token_id, last=bool(ends))


def stream(
    model: RiverModel, prompt: Prompt, *, control: Control | None = None, **settings: Any
) -> RunStream:
    """Decode, yielding records as they happen; settings are DecodeSettings' fields.

    Raises SettingsError, CacheFull (both RiverError) before any work is done.
    """
    return RunStream(model, prompt, DecodeSettings.from_keywords(settings), control)


def generate(
    model: RiverModel, prompt: Prompt, *, control: Control | None = None, **settings: Any
) -> RunRecord:
    """Decode to the end and return the whole run; as `stream` otherwise."""
    run = stream(model, prompt, control=control, **settings)
    for _ in run:
        pass
    return run.record()


def teacher_forced(
    model: RiverModel, prompt: Prompt, token_ids: Sequence[int], **settings: Any
) -> RunRecord:
    """Feed the given tokens whatever the model would say; keeps the logits [n, V] in memory.

    Record i's `token_id` is the forced one, `alternatives[0]` the model's own choice.
    """
    checked = DecodeSettings.from_keywords(settings)
    if not isinstance(token_ids, Sequence) or not len(token_ids):
        raise SettingsError("token_ids is empty; give at least one token to force.")
    run = RunStream(model, prompt, checked, forced=token_ids)
    for _ in run:
        pass
    return run.record()
