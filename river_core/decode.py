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
from .control import Clock, Control
from .errors import Cancelled, RiverError, SettingsError
from .execution import open_execution
from .exits import Moment
from .fills import KV_SOURCE
from .model import RiverModel
from .policies import resolve
from .prompts import Prompt, check_ids, encode
from .recorder import PART_OF, PARTS, Pass, Recorder
from .records import CacheUpdate, PromptRecord, Record, RunRecord, RunSummary, TokenRecord
from .sampling import Choice, sample
from .settings import DecodeSettings
from .text import TextStream
from .thresholds import threshold_of
from .trace import full_trace


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
        threshold = threshold_of(model, settings, plan)
        self._threshold = threshold.value
        self._first_exit = model.info.entry_layer - 1
        self._engine = open_execution(model)
        self._actions = {"b": self._engine.backbone, "r": self._engine.river}
        self._log = Recorder(model, settings, plan, self._engine.name, chat)
        self.header = self._log.header(threshold, self._forced is not None)
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
        self._clock = Clock()
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
        last, done = model.num_layers, 0
        left = may_leave and self._plan.full_river and self._leaves(now, 0)
        while done < last:
            if self._control.cancelled and (now.index == 0 or done == 0):
                now.similarities = engine.trace(now.exit_layer)
                raise Cancelled
            letter = self._plan.fill.action(done + 1) if left else "b"
            until = self._until(now, done, may_leave and not left)
            self._timed(now, PART_OF.get(letter, "fill"), self._actions[letter], done + 1, until)
            model.cache.mark(done + 1, now.rows, KV_SOURCE[letter] * (until - done))
            now.path += letter * (until - done)
            done = until
            if not left:
                now.exit_layer = done
                left = may_leave and self._first_exit <= done < last and self._leaves(now, done)
        now.logits = self._timed(now, "head", engine.logits)
        now.similarities = engine.trace(now.exit_layer)

    def _until(self, now: Pass, done: int, may_leave: bool) -> int:
        """The layer up to which nothing is to be decided, after `done` layers.

        A prompt pass stops after each one, where it can be cancelled: its layers take long.
        """
        if now.index == 0:
            return done + 1
        if not may_leave:
            return self._model.num_layers
        asked = max(done + 1, self._first_exit, self._plan.rule.first(now.index))
        return min(asked, self._model.num_layers)

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
            return self._engine.describe(now.logits, self._forced[now.index])
        s = self._settings
        if s.temperature == 0:
            return self._engine.describe(now.logits)
        drawn = sample(now.logits, s.temperature, s.top_p, generator)
        return self._engine.describe(now.logits, drawn)

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
