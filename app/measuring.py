"""Both lanes measured with repeats: a warm-up, then rounds in which the lanes take turns.

The engine's bench interleaves; a contender here can be stopped and tells how far it is. The bench
brings torch, so it is imported when the first measurement begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from river_core.records import RunRecord, TokenRecord

from .task import Records, Task, kept, settings_of
from .views.english import Refused
from .views.measured import Rounds, measured
from .views.policies import policy_name
from .views.run import LANES
from .views.wording import say

ROUNDS = 5
MOST_TOKENS = 64  # per repeat: what the run on show has, at most this


@dataclass
class Measuring(Task):
    """The same prompt and number of tokens for both lanes, `ROUNDS` times."""

    kind = "measure"
    done: int = 0  # repeats begun, warm-ups included
    tokens: int = 0  # of all repeats so far
    whole: int = 1  # tokens to decode in all

    def work(self, engine: Any, model: Any, records: Records) -> dict[str, Any]:
        """Medians and spreads, and what they were measured on."""
        from river_core.bench import WARM_UP_TOKENS, interleave
        from river_core.devices import threads

        lanes = kept(records)
        count = min(MOST_TOKENS, max(len(record.tokens) for record in lanes))
        if count < 2:
            raise Refused(say("measure.short"))
        contenders = [
            Repeats(lane, self, engine, model.endless(), record)
            for lane, record in zip(LANES, lanes, strict=True)
        ]
        self.whole = len(LANES) * (min(count, WARM_UP_TOKENS) + ROUNDS * count)
        samples = interleave(contenders, count, ROUNDS)
        rates = {lane: [s.tokens_per_second for s in samples[lane]] for lane in LANES}
        return measured([c.last for c in contenders], rates, Rounds(ROUNDS, count, threads()))

    def enter(self, policy: str) -> None:
        """Say which repeat begins."""
        self.go_on()
        turn = self.done - len(LANES)
        words = {"round": turn // len(LANES) + 1, "rounds": ROUNDS, "policy": policy}
        self.said = say("measure.warm_up" if turn < 0 else "measure.round", **words)
        self.done += 1

    def step(self) -> None:
        """One token more."""
        self.tokens += 1
        self.share = self.tokens / self.whole


@dataclass
class Repeats:
    """One lane as the bench times it; `last` is the record of its latest repeat."""

    name: str
    task: Measuring
    engine: Any
    model: Any
    record: RunRecord
    last: RunRecord = field(init=False)

    def run(self, tokens: int) -> Any:
        """Decode `tokens` tokens as the lane did, and time those after the first."""
        from river_core.bench import Sample

        self.task.enter(policy_name(str(self.record.header.settings.get("policy"))))
        self.task.control = control = self.engine.Control()
        if self.task.stopped.is_set():
            control.cancel()
        settings = settings_of(self.record) | {"max_new_tokens": tokens}
        prompt = list(self.record.prompt.token_ids)
        stream = self.engine.stream(self.model, prompt, control=control, **settings)
        for record in stream:
            if isinstance(record, TokenRecord):
                self.task.step()
        self.task.go_on()
        self.last = stream.record(full_trace=False)
        done = self.last.summary
        if done.tokens_per_second is None or done.mean_exit_layer is None:
            raise Refused(say("measure.short"))
        return Sample(done.tokens_per_second, done.mean_exit_layer, done.decision_microseconds)
