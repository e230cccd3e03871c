"""Measurements that the page asks for beside its runs, on the runner's one worker, in their turn.

What is measured is `river_core`'s business; here is only which points, how to stop, and where the
results stand until the page has drawn them. Knows no figures.
"""

from __future__ import annotations

import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from river_core.errors import RiverError
from river_core.records import RunRecord
from river_core.settings import check_threshold

from .recorded import read
from .shipped import RUNS, SHIPPED
from .views.english import Refused, known, told
from .views.ledger import ledger
from .views.policies import policy_name
from .views.run import LANES
from .views.wording import say

INTERVAL = 0.25  # seconds between looks at a measurement
TOKENS, ROUNDS = 20, 2
KV_POLICIES = ("river", "state-propagation", "full-quant")
TAILS = ("river", "state-propagation", "kv-mask", "batch-recompute")
BETWEEN = (0.4, 0.8)  # thresholds of the sweep, from the slider's lowest to 1
SHOWN_PROMPT = 60  # characters of it in a caption

Say = Callable[[str, float | None], None]
Records = Mapping[tuple[str, str], RunRecord]


class Stopped(Exception):
    """Raised inside a measurement that was stopped, at its next step."""


@dataclass
class Study:
    """One press on a measuring button: how far it is, then its `result` or what went wrong."""

    text: str = field(default_factory=lambda: say("charts.measure.waiting"))
    result: dict[str, Any] | None = None
    stopped: threading.Event = field(default_factory=threading.Event)

    def say(self, step: str, share: float | None) -> None:
        """Note a step; the place where a measurement stops."""
        if self.stopped.is_set():
            raise Stopped
        done = "…" if share is None else f"{share:.0%}".replace("%", " %")
        self.text = say("charts.measure.step", share=done, step=step)


class Studies:
    """Measurements on `worker` with the model that `ready` gives there, over the page's records."""

    def __init__(
        self, worker: ThreadPoolExecutor, ready: Callable[[], Any], records: Records
    ) -> None:
        self._worker, self._ready, self._records = worker, ready, records
        self._studies: dict[str, Study] = {}

    def records(self, run_id: str) -> list[RunRecord]:
        """The records of a run, upper lane first. Raises RiverError where they are not kept."""
        if not run_id:
            raise Refused(say("charts.unfinished"))
        kind, _, name = run_id.partition(" ")
        if kind == "recorded" and name in SHIPPED:
            return read(RUNS / f"{name}.jsonl")
        kept = [self._records.get((run_id, lane)) for lane in LANES]
        found = [record for record in kept if record is not None]
        if not found or kept[0] is None:
            raise Refused(say("charts.no_record"))
        return found

    def ledger(self) -> dict[str, Any]:
        """The memory table of the model, which has to be loaded."""
        from river_core.footprint import Layout
        from river_core.inventory import sizes_of

        model = self._ready()
        spec = sizes_of(model.path, model.info.name)[0]
        layout = Layout(model.info.quant, model.info.entry_layer)
        return ledger(spec, layout, model.info.name, model.capacity)

    def run(self, name: str, values: Mapping[str, Any], session: str) -> Iterator[Study]:
        """The measurement's state again and again until it has ended; closing stops it.

        `name` is one of MEASURES; `values` hold prompt, threshold and the lowest one.
        """
        study = Study()
        self._studies[session] = study
        future = self._worker.submit(self._measure, MEASURES[name], study, dict(values))
        try:
            while not future.done():
                yield study
                wait([future], timeout=INTERVAL)
            study.text = _ending(future, study)
            yield study
        finally:
            study.stopped.set()
            if self._studies.get(session) is study:
                del self._studies[session]

    def stop(self, session: str) -> None:
        """Stop the session's measurement at its next step, if it has one."""
        study = self._studies.get(session)
        if study is not None:
            study.stopped.set()

    def _measure(self, measure: Measure, study: Study, values: dict[str, Any]) -> None:
        study.say(say("status.sent"), None)
        model = self._ready()
        values["threshold"] = check_threshold(values["threshold"])
        about = {
            "model": model.info.name,
            "device": str(model.device),
            "threshold": f"{values['threshold']:.4g}",
            "prompt": _short(values["prompt"]),
            "tokens": TOKENS,
            "rounds": ROUNDS,
        }
        study.result = {**measure(model, values, study.say), "about": about}


def kv_errors(model: Any, values: Mapping[str, Any], tell: Say) -> dict[str, Any]:
    """`rows`: per policy and layer the mean cosines of keys and values with the backbone's."""
    from river_core.kv_error import CacheReference

    tell(say("charts.measure.reference"), 0.0)
    reference = CacheReference.of(model, values["prompt"], max_new_tokens=TOKENS)
    rows = []
    for n, policy in enumerate(KV_POLICIES, start=1):
        share = n / (len(KV_POLICIES) + 1)
        tell(say("charts.measure.compare", policy=policy_name(policy)), share)
        found = reference.against(model, policy=policy, threshold=values["threshold"])[1]
        rows += [{"policy": policy, **asdict(cell)} for cell in found.layers]
    return {"rows": rows}


def sweep(model: Any, values: Mapping[str, Any], tell: Say) -> dict[str, Any]:
    """`quality` under the fixed head and `speed` with own heads, rows as in `strategies.py`."""
    from river_core.cells import BASELINE, Setting, Study, quality_rows, speed_rows
    from river_core.resumable import Lines

    points = [values["lowest"] + (1 - values["lowest"]) * share for share in BETWEEN]
    thresholds = sorted({*(round(point, 4) for point in points), values["threshold"]})
    heads = {policy: None if policy == "river" else "lens" for policy in TAILS}
    quality = [Setting(p, "river", t, prefill="full") for p in TAILS for t in thresholds]
    speed = [Setting(p, heads[p], t, prefill="full") for p in TAILS for t in thresholds]
    with tempfile.TemporaryDirectory() as folder:
        file = Lines(Path(folder) / "sweep.jsonl")

        def part(name: str, begin: float) -> Study:
            half = lambda text, share: tell(known(text), begin + (share or 0) / 2)  # noqa: E731
            return Study(file, name, model, [values["prompt"]], TOKENS, half)

        part("quality", 0.0).quality(quality)
        part("speed", 0.5).speed([Setting(BASELINE), *speed], ROUNDS)
        return {
            "quality": _named(quality_rows(file.of("quality", "cell"))),
            "speed": _named(speed_rows(file.of("speed", "time"))),
        }


Measure = Callable[[Any, Mapping[str, Any], Say], dict[str, Any]]
MEASURES: dict[str, Measure] = {"kv": kv_errors, "sweep": sweep}


def _named(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**row, "policy": row["setting"].policy, "head": row["setting"].head}
        | {"point": row["setting"].point}
        for row in rows
    ]


def _ending(future: Future[None], study: Study) -> str:
    """The last sentence: done, stopped, or what was wrong."""
    if future.cancelled() or isinstance(fault := future.exception(), Stopped):
        return say("charts.measure.stopped")
    if fault is None:
        return say("charts.measure.done")
    if isinstance(fault, RiverError):
        return told(fault)
    traceback.print_exception(fault)
    return say("error.unexpected")


def _short(prompt: str) -> str:
    text = " ".join(prompt.split())
    return text if len(text) <= SHOWN_PROMPT else f"{text[:SHOWN_PROMPT]}…"
