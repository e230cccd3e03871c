"""Measurements that the page asks for beside its runs, and what its charts and table are drawn of.

What is measured is `river_core`'s business; here is only which points and how to stop. Knows no
figures.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from river_core.records import RunRecord
from river_core.settings import check_threshold

from .recorded import read
from .shipped import RUNS, SHIPPED
from .task import Records, Task
from .views.english import Refused, known
from .views.ledger import ledger
from .views.policies import policy_name
from .views.run import LANES
from .views.wording import say

TOKENS, ROUNDS = 20, 2
KV_POLICIES = ("river", "state-propagation", "full-quant")
TAILS = ("river", "state-propagation", "kv-mask", "batch-recompute")
BETWEEN = (0.4, 0.8)  # thresholds of the sweep, from the slider's lowest to 1
SHOWN_PROMPT = 60  # characters of it in a caption

Say = Callable[[str, float | None], None]


@dataclass
class Study(Task):
    """One press on a measuring button: `name` of MEASURES with prompt, threshold, lowest one."""

    kind = "study"
    name: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    def work(self, engine: Any, model: Any, records: Records) -> dict[str, Any]:
        """Rows for the charts, and what they were measured on."""
        threshold = check_threshold(self.values["threshold"])
        about = {
            "model": model.info.name,
            "device": str(model.device),
            "threshold": f"{threshold:.4g}",
            "prompt": _short(self.values["prompt"]),
            "tokens": TOKENS,
            "rounds": ROUNDS,
        }
        values = {**self.values, "threshold": threshold}
        with self.stoppable(engine) as control:
            found = MEASURES[self.name](model, values, self.tell, control)
        return {**found, "about": about}

    def tell(self, step: str, share: float | None) -> None:
        """Note a step; Stop ends a measurement here, or within a step by its control."""
        self.go_on()
        self.share = share or 0.0
        done = "…" if share is None else f"{share:.0%}".replace("%", " %")
        self.said = say("charts.measure.step", share=done, step=step)


def records_of(run_id: str, records: Mapping[str, RunRecord | None]) -> list[RunRecord]:
    """The records of a run, upper lane first, where `records` are those that are kept of it.

    Raises RiverError where they are not kept.
    """
    if not run_id:
        raise Refused(say("charts.unfinished"))
    kind, _, name = run_id.partition(" ")
    if kind == "recorded" and name in SHIPPED:
        return read(RUNS / f"{name}.jsonl")
    found = [record for lane in LANES if (record := records.get(lane)) is not None]
    if not found or records.get(LANES[0]) is None:
        raise Refused(say("charts.no_record"))
    return found


def memory_table(model: Any) -> dict[str, Any]:
    """The memory table of a loaded model."""
    from river_core.footprint import Layout
    from river_core.inventory import sizes_of

    spec = sizes_of(model.path, model.info.name)[0]
    layout = Layout(model.info.quant, model.info.entry_layer)
    return ledger(spec, layout, model.info.name, model.capacity)


def kv_errors(
    model: Any, values: Mapping[str, Any], tell: Say, control: Any = None
) -> dict[str, Any]:
    """`rows`: per policy and layer the mean cosines of keys and values with the backbone's."""
    from river_core.kv_error import CacheReference

    tell(say("charts.measure.reference"), 0.0)
    prompt, threshold = values["prompt"], values["threshold"]
    reference = CacheReference.of(model, prompt, max_new_tokens=TOKENS, control=control)
    rows = []
    for n, policy in enumerate(KV_POLICIES, start=1):
        share = n / (len(KV_POLICIES) + 1)
        tell(say("charts.measure.compare", policy=policy_name(policy)), share)
        settings = {"policy": policy, "threshold": threshold}
        found = reference.against(model, control=control, **settings)[1]
        rows += [{"policy": policy, **asdict(cell)} for cell in found.layers]
    return {"rows": rows}


def sweep(model: Any, values: Mapping[str, Any], tell: Say, control: Any = None) -> dict[str, Any]:
    """`quality` under the fixed head and `speed` with own heads, rows as in `strategies.py`."""
    from river_core.cell_rows import quality_rows, speed_rows
    from river_core.cells import BASELINE, Setting, Study
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
            return Study(file, name, model, [values["prompt"]], TOKENS, half, control)

        part("quality", 0.0).quality(quality)
        part("speed", 0.5).speed([Setting(BASELINE), *speed], ROUNDS)
        return {
            "quality": _named(quality_rows(file.of("quality", "cell"))),
            "speed": _named(speed_rows(file.of("speed", "time"))),
        }


Measure = Callable[[Any, Mapping[str, Any], Say, Any], dict[str, Any]]
MEASURES: dict[str, Measure] = {"kv": kv_errors, "sweep": sweep}


def _named(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**row, "policy": row["setting"].policy, "head": row["setting"].head}
        | {"point": row["setting"].point}
        for row in rows
    ]


def _short(prompt: str) -> str:
    text = " ".join(prompt.split())
    return text if len(text) <= SHOWN_PROMPT else f"{text[:SHOWN_PROMPT]}…"
