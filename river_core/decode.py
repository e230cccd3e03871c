"""The one loop: prompt pass, decode passes, records as they happen.

Owns position, clock and cancellation. What happens inside a pass is passes.py's, by the plan; this
file asks for no policy's name. Everything a caller can get wrong is refused before the first pass.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .cache import Rows
from .control import Clock, Control
from .errors import Cancelled, RiverError, SettingsError
from .giving_up import looking_at
from .model import RiverModel
from .passes import Passes, rewritten, verified
from .planning import resolve
from .prompts import Prompt, check_ids, encode
from .recorder import PARTS, Pass, Recorder
from .records import CacheUpdate, PromptRecord, Record, RunRecord, RunSummary, TokenRecord
from .sampling import Choice, sample
from .settings import DecodeSettings
from .text import TextStream
from .thresholds import threshold_of
from .trace import full_trace as full_depth


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
        plan = resolve(settings, model.num_layers, model.info.entry_layer, model.resident)
        self._forced = None if forced is None else check_ids(model, forced)
        if plan.draft and forced is not None:
            raise SettingsError(
                f"policy {settings.policy!r} verifies its own drafts, so tokens cannot be forced "
                "on it; use generate."
            )
        new = settings.max_new_tokens if self._forced is None else len(self._forced)
        model.cache.check(len(ids), new)
        self._model, self._ids, self._settings, self._plan = model, ids, settings, plan
        self._new = new
        self._control = control if control is not None else Control()
        threshold = threshold_of(model, settings, plan)
        self._threshold = threshold.value
        self._passes = Passes(model, plan, self._control)
        engine = self._passes.engine
        self._log = Recorder(model, settings, plan, engine.name, chat, notes=engine.notes)
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

    def record(
        self, *, full_trace: bool | None = None, control: Control | None = None
    ) -> RunRecord:
        """Everything up to the summary as one RunRecord, with the full trace if it was asked for:
        here, or (None) in the settings.

        `control` can cancel the trace, which is then left out. Raises RiverError while the run is
        unfinished.
        """
        if not self._got or not isinstance(self._got[-1], RunSummary):
            raise RiverError("the run is unfinished; take its records to the summary first.")
        tokens = tuple(r for r in self._got if isinstance(r, TokenRecord))
        trace = None
        wanted = self._settings.full_trace if full_trace is None else full_trace
        if wanted and tokens:
            fed = self._ids + tuple(t.token_id for t in tokens[:-1])
            with suppress(Cancelled):
                trace = full_depth(self._model, fed, len(tokens), looking_at(control))
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
        self._passes.begin()
        self._clock = Clock()
        text = TextStream(model.tokenizer, self._settings.stop)
        self._generator = torch.Generator().manual_seed(self._settings.seed)
        reason, prefill, last = "cancelled", 0.0, 0.0
        now = self._open(Rows(self._ids, tuple(range(len(self._ids)))), 0)
        try:
            if self._plan.full_river:
                model.ensure_full_river(looking_at(self._control))
                self._clock = Clock()  # building is no part of the prompt's time
            self._passes.run(now, self._plan.prefill == "exit")
            chosen = [(now, self._choose(now))]
            prefill = self._clock.now()
            yield from self._held(self._log.prompt(now, prefill))
            while chosen:
                for now, choice in chosen:
                    ends = self._ends(now, choice)
                    shown = self._text(text, choice, ends)
                    last = self._clock.now() - prefill if now.index else 0.0
                    yield from self._held(self._log.token(now, choice, shown, last))
                    reason = "stop" if text.stopped and not ends else ends
                    if reason or self._control.cancelled:
                        break
                yield from self._updates(now, now.index)
                if reason or self._control.cancelled:
                    break
                chosen = self._round(choice.token_id, now.index + 1)
        except Cancelled:
            if not self._got:
                yield self._log.prompt(now, self._clock.now())
        self._passes.forget(len(self._ids) + now.index)
        if reason not in ("", "cancelled"):
            self._passes.flush(now.index + 1)
            yield from self._updates(now, now.index + 1)
        self._log.counters["extra_rows"] = self._passes.extra_rows
        self._log.counters["slots_missing"] = model.cache.count("m")
        yield self._log.summary(reason or "cancelled", prefill, last)

    def _round(self, fed: int, index: int) -> list[tuple[Pass, Choice]]:
        """Feed the last token: one pass, or drafts and the pass that verifies them."""
        draft = min(self._plan.draft, self._new - 1 - index)
        if not self._plan.draft:
            now = self._open(self._row(fed, index), index)
            self._passes.run(now)
            return [(now, self._choose(now))]
        drafts: list[Pass] = []
        ids = [fed]
        while len(drafts) < draft and ids[-1] not in self._model.eos_ids:
            at = index + len(drafts)
            now = self._open(self._row(ids[-1], at), at)
            self._passes.run(now)
            ids.append(self._choose(now).token_id)
            drafts.append(now)
        return self._verify(tuple(ids), index, drafts)

    def _row(self, fed: int, index: int) -> Rows:
        """The row of the pass that chooses token `index`."""
        return Rows((fed,), (len(self._ids) + index - 1,))

    @torch.inference_mode()
    def _verify(
        self, ids: tuple[int, ...], index: int, drafts: list[Pass]
    ) -> list[tuple[Pass, Choice]]:
        """One full pass over what was fed and drafted: what agrees stays, and one token more.

        Rows that wait are carried along; where none do, all rows run from the embedding again.
        """
        first, count = len(self._ids) + index - 1, len(ids)
        rows = Rows(ids, tuple(range(first, first + count)))
        if self._passes.waiting:
            rows = Rows(ids[-1:], rows.positions[-1:])
        check = self._open(rows, index + count - 1)
        self._passes.run(check, may_leave=False, every_row=True)
        assert check.logits is not None
        found = [self._passes.engine.describe(row) for row in check.logits]
        agreed = 0
        while agreed < count - 1 and found[agreed].token_id == ids[agreed + 1]:
            agreed += 1
        events = [rewritten(now, index + agreed) for now in drafts[:agreed]]
        self._passes.updates = [event for event in events if event.layers]
        self._passes.forget(first + agreed + 1)
        self._log.counters["drafted"] += count - 1
        self._log.counters["accepted"] += agreed
        last = verified(check, drafts, Rows(ids[agreed:][:1], (first + agreed,)), count - agreed)
        return list(zip([*drafts[:agreed], last], found, strict=False))

    def _updates(self, now: Pass, last: int) -> Iterator[CacheUpdate]:
        """Events about slots of rows that were recorded, by pass `last` where it was cut short."""
        updates, self._passes.updates = self._passes.updates, []
        for update in updates:
            if update.position <= now.rows.positions[-1]:
                yield replace(update, pass_index=min(update.pass_index, last))

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
    def _choose(self, now: Pass) -> Choice:
        """The next token: forced, greedy or drawn; with what the record says about it."""
        assert now.logits is not None
        if self._forced is not None:
            self._logits.append(now.logits.float().cpu().clone())
            return self._passes.engine.describe(now.logits, self._forced[now.index])
        s = self._settings
        if s.temperature == 0:
            return self._passes.engine.describe(now.logits)
        drawn = sample(now.logits, s.temperature, s.top_p, self._generator)
        return self._passes.engine.describe(now.logits, drawn)

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
    model: RiverModel,
    prompt: Prompt,
    token_ids: Sequence[int],
    *,
    control: Control | None = None,
    **settings: Any,
) -> RunRecord:
    """Feed the given tokens whatever the model would say; keeps the logits [n, V] in memory.

    Record i's `token_id` is the forced one, `alternatives[0]` the model's own choice.
    """
    checked = DecodeSettings.from_keywords(settings)
    if not isinstance(token_ids, Sequence) or not len(token_ids):
        raise SettingsError("token_ids is empty; give at least one token to force.")
    run = RunStream(model, prompt, checked, control, forced=token_ids)
    for _ in run:
        pass
    return run.record()
