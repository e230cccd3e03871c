"""One pass: rows through the layers, out where the plan says, and what becomes of the rest.

Turns a plan's data into work: exit rule, skipped halves, tail, fill, rows that wait for a later
pass. Asks for no policy's name; builds no records but CacheUpdates. decode.py says which rows run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from .cache import Rows
from .control import Control
from .errors import Cancelled, RiverError
from .execution import open_execution
from .exits import Moment
from .fills import ATTENTION, FEED_FORWARD, KV_SOURCE, SKIPPED, Skip
from .giving_up import go_on, looking_at
from .model import RiverModel
from .planning import Plan
from .recorder import PART_OF, Pass
from .records import CacheUpdate

HALVES = (ATTENTION, FEED_FORWARD)
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Waiting:
    """A row whose token left after `depth` layers, with its state [d] there (EE-LLM)."""

    token_id: int
    position: int
    depth: int
    state: Tensor


@dataclass
class Passes:
    """Runs the passes of one run over one model; `updates` are the slots that a pass rewrote."""

    model: RiverModel
    plan: Plan
    control: Control
    waiting: list[Waiting] = field(default_factory=list)
    updates: list[CacheUpdate] = field(default_factory=list)
    extra_rows: int = 0

    def __post_init__(self) -> None:
        self.engine = open_execution(self.model)
        self._number = -1
        self._look = looking_at(self.control)

    def begin(self) -> None:
        """Take the model's cache for this run, empty.

        Raises RiverError where the resident layers are not those that the plan was made for.
        """
        if self.model.resident != self.plan.last_exit:
            raise RiverError("the model's resident layers changed; make this run again.")
        self.model.run += 1
        self._number = self.model.run
        self.model.cache.reset()

    @torch.inference_mode()
    def run(self, now: Pass, may_leave: bool = True, every_row: bool = False) -> None:
        """Run `now.rows` to the end and fill in `now`; with `every_row` logits are [R, V].

        Raises Cancelled in a prompt pass, within a layer; RiverError where another run has begun.
        """
        self._own()
        self.engine.pause = self._look if now.index == 0 else go_on
        self.engine.start(now.rows)
        may_leave = may_leave and now.rows.positions[-1] >= self.plan.keep_first
        known = may_leave and self.plan.by_threshold and now.parts is None
        self.engine.foresee(now.threshold if known else None)
        try:
            joined = self._stack(now, may_leave)
            self._finish(now, joined, every_row)
        except Cancelled:
            now.similarities = self.engine.trace(now.exit_layer)
            now.kv_source = "b" * now.exit_layer
            raise
        if not now.forced:
            self.plan.rule.went(now.index, now.exit_layer)

    @torch.inference_mode()
    def flush(self, index: int) -> None:
        """Run what still waits to the last layer, in one pass without a row of its own.

        Raises RiverError where another run has begun; so does `forget`.
        """
        self._own()
        if self.waiting:
            now = Pass(index, Rows((), ()), 0.0)
            self.engine.start(now.rows)
            self._advance(now, self._stack(now, may_leave=False), self.engine.state())

    def forget(self, length: int) -> None:
        """Drop rows and slots at positions >= length: drafts that were not accepted."""
        self._own()
        self.model.cache.crop(length)
        self.waiting = [row for row in self.waiting if row.position < length]

    def _own(self) -> None:
        """Raise RiverError where the cache or the layers are not this run's any more."""
        if self.model.resident != self.plan.last_exit:
            raise RiverError("the model's resident layers changed; this run cannot go on.")
        if self.model.run != self._number:
            raise RiverError(
                "another run started on this model, or its resident layers were changed; this one "
                "cannot go on."
            )

    def _stack(self, now: Pass, may_leave: bool) -> list[Waiting]:
        """Backbone layers until the rows leave; returns the waiting rows that went along.

        Rows that the rule would not let go after the last resident layer are forced to.
        """
        plan, last, done = self.plan, self.plan.last_exit, 0
        joined: list[Waiting] = []
        left = may_leave and plan.full_river and self._leaves(now, 0)
        while done < last and not left:
            if (now.index == 0 or done == 0) and now.rows.token_ids:
                self._look()
            joined += self._join(now, done)
            until = self._until(now, done, may_leave)
            rows = Rows((), (*(w.position for w in joined), *now.rows.positions))
            if not rows.positions:  # nothing has joined a pass without rows of its own yet
                done = until
                continue
            if plan.skip is None:
                if plan.fill.kv != "m":
                    self.model.cache.require(done + 1, until, rows)
                now.path += "b" * (until - done)
                self._timed(now, PART_OF["b"], self.engine.backbone, done + 1, until)
            else:
                now.path += self._timed(now, PART_OF["b"], self._halves, now, plan.skip, until)
            now.exit_layer = done = until
            asks = may_leave and plan.first_exit <= done < plan.num_layers
            left = asks and self._leaves(now, done)
        now.forced = not left and last < plan.num_layers
        return joined

    def _until(self, now: Pass, done: int, may_leave: bool) -> int:
        """The layer up to which nothing is to be decided, after `done` layers.

        A prompt pass stops after each one, where it can be cancelled: its layers take long.
        """
        if now.index == 0 or self.plan.skip is not None:
            return done + 1
        asked = self.plan.last_exit
        if may_leave:
            asked = min(asked, max(done + 1, self.plan.first_exit, self.plan.rule.first(now.index)))
        return min([asked, *(w.depth for w in self.waiting if w.depth > done)])

    def _join(self, now: Pass, done: int) -> list[Waiting]:
        """Take the rows that wait at this depth into the pass."""
        group = [w for w in self.waiting if w.depth == done]
        if group:
            ids, positions = zip(*((w.token_id, w.position) for w in group), strict=True)
            self.engine.join(Rows(ids, positions), torch.stack([w.state for w in group]))
            self.extra_rows += len(group)
        return group

    def _leaves(self, now: Pass, layer: int) -> bool:
        """Ask the exit rule after `layer`, timing the decision."""
        rule = self.plan.rule
        if now.parts is not None:
            self.engine.settle()
        start = time.perf_counter()
        values: tuple[float, ...] = ()
        if rule.reads == "similarity" and layer:
            values = tuple(self.engine.read(layer)[-len(now.rows) :])
        elif rule.reads == "lens":
            best = self.engine.describe(self.engine.logits()).alternatives
            values = tuple(math.exp(logprob) for _, logprob in best[:2])
        left = rule.leaves(Moment(now.index, layer, now.threshold), values)
        spent = time.perf_counter() - start
        if values:
            now.decisions.append(spent)
        if now.parts is not None:
            now.parts["decision"] += spent * 1e3
        return left

    def _halves(self, now: Pass, skip: Skip, layer: int) -> str:
        """Run what the skip leaves of one backbone layer; returns its path letter."""
        engine, at = self.engine, Moment(now.index, layer, now.threshold)
        watched, skipped = skip.watches(at), []
        if not watched and all(skip.factor(at, half) is None for half in HALVES):
            self.model.cache.require(layer, layer, now.rows)
            engine.backbone(layer, layer)
            return "b"
        engine.open_layer()
        for half in HALVES:
            factor = skip.factor(at, half)
            if factor is None:
                if half == ATTENTION:
                    self.model.cache.require(layer, layer, now.rows)
                before = engine.norms() if watched else 1.0
                similarity = engine.half(layer, half)
                if watched:
                    skip.saw(at, half, similarity, engine.norms() / before)
            else:
                engine.scale(factor)
                skipped.append(half)
        engine.close_layer()
        return SKIPPED[tuple(skipped)]

    def _finish(self, now: Pass, joined: list[Waiting], every_row: bool) -> None:
        """From the end of the stack to logits, and every slot of the rows accounted for."""
        plan, engine, done, last = self.plan, self.engine, now.exit_layer, self.plan.num_layers
        left = done < last
        tail = left and (not plan.lens or plan.fill.kv == "r")
        states = engine.state() if joined or (left and plan.fill.kv in "pd") else None
        if joined and states is not None:
            self._advance(now, joined, states)
            if left:
                engine.only_last()
        if not tail or plan.lens:
            now.logits = self._timed(
                now, "head", engine.every_logits if every_row else engine.logits
            )
        if tail:
            self._timed(now, PART_OF["r"], engine.river, done + 1, last)
        if left and plan.fill.kv == "p" and states is not None:
            self._timed(now, "fill", engine.propagate, states[-1:], done + 1, last)
        if tail and not plan.lens:
            now.logits = self._timed(now, "head", engine.logits)
        now.similarities = engine.trace(done)  # it may wait for the device, so it comes last
        now.kv_source = "".join(KV_SOURCE[a] for a in now.path) + plan.fill.kv * (last - done)
        now.path += ("r" if tail else plan.fill.path) * (last - done)
        self.model.cache.mark(1, now.rows, now.kv_source, stand_in=tail)
        if left and plan.fill.kv == "d" and states is not None:
            where = now.rows.token_ids[-1], now.rows.positions[-1]
            self.waiting.append(Waiting(*where, done, states[-1]))

    def _advance(self, now: Pass, joined: list[Waiting], states: Tensor) -> None:
        """Rows that went along stand deeper now: their slots, their states, and the events."""
        done = now.exit_layer
        joined = sorted(joined, key=lambda w: w.position)
        for depth in {row.depth for row in joined}:
            ids, positions = zip(
                *((w.token_id, w.position) for w in joined if w.depth == depth), strict=True
            )
            self.model.cache.mark(depth + 1, Rows(ids, positions), "b" * (done - depth))
        for state, row in zip(states, joined, strict=False):
            layers = tuple(range(row.depth + 1, done + 1))
            self.updates.append(CacheUpdate(row.position, layers, "b", now.index))
            self.waiting.remove(row)
            if done < self.plan.num_layers:
                self.waiting.append(replace(row, depth=done, state=state))

    def _timed(self, now: Pass, part: str, call: Callable[..., T], *arguments: Any) -> T:
        """Call; in profile mode wait for the device and add the milliseconds to `part`."""
        if now.parts is None:
            return call(*arguments)
        start = time.perf_counter()
        result = call(*arguments)
        self.engine.settle()
        now.parts[part] += (time.perf_counter() - start) * 1e3
        return result


def rewritten(now: Pass, index: int) -> CacheUpdate:
    """The event that pass `index` wrote the backbone's entries over all other ones of this row."""
    layers = (n for n, letter in enumerate(now.kv_source, start=1) if letter != "b")
    return CacheUpdate(now.rows.positions[-1], tuple(layers), "b", index)


def verified(check: Pass, drafts: Sequence[Pass], row: Rows, from_end: int) -> Pass:
    """The row that stands `from_end` from the end of a verifying pass, as a pass of its own.

    Similarities of layers that the row ran as a draft, before the pass, are the draft's.
    """
    index = check.index - from_end + 1
    earlier = [now.similarities for now in drafts if now.index == index]
    similarities: list[Sequence[float]] = [
        (own[-from_end] if len(own) >= from_end else earlier[0][layer][-1],)
        for layer, own in enumerate(check.similarities)
    ]
    return replace(check, index=index, rows=row, similarities=similarities, logits=None)
