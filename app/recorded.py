"""Recorded runs: files of run records, shown through the same snapshots as live ones; no torch.

A file holds the record of the lane above and, after it, of the lane below, each as JSON Lines
(records.md). It may come from anywhere: size, schema and types are checked before anything is
drawn. `python -m app.recorded` decodes the shipped ones again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import river_core
from river_core.errors import RecordError, SettingsError
from river_core.records import PromptRecord, RunHeader, RunRecord, RunSummary, TokenRecord
from river_core.settings import QuantSpec

from .views.packing import pack_trace
from .views.policies import policy_name
from .views.run import Lane, ModelCard, Run
from .views.snapshot import append, snapshot
from .views.wording import ASSETS, prompts, say

RUNS = ASSETS / "runs"
MODEL = "smollm2-135m-packaged"
ROUNDS = 5  # of which the fastest is kept: other work on a machine only slows
LARGEST = 8 * 2**20  # bytes of a file
MOST_LAYERS, MOST_TOKENS = 512, 8192
REASONS = ("eos", "stop", "length", "cancelled")


@dataclass(frozen=True)
class Recipe:
    """How a shipped file is made: an example prompt by its number, and its lanes' settings."""

    prompt: int
    upper: Mapping[str, Any]
    lower: Mapping[str, Any]
    tokens: int = 90


RIVER, BACKBONE = {"policy": "river"}, {"policy": "backbone"}
ONLY_THE_CACHE = {"threshold": 0.97, "head": "river", "prefill": "full"}  # the rest is the same
SHIPPED = {
    "1-rain": Recipe(0, RIVER, BACKBONE),
    "2-sky": Recipe(1, RIVER, BACKBONE),
    "3-lighthouse": Recipe(2, RIVER, BACKBONE),
    "4-holes": Recipe(0, RIVER | ONLY_THE_CACHE, {"policy": "kv-mask"} | ONLY_THE_CACHE, tokens=48),
}


def shipped() -> list[dict[str, Any]]:
    """The views of the runs in `assets/runs`, in order of their names."""
    return [
        view(records, path.stem, _title(path.stem, records))
        for path in sorted(RUNS.glob("*.jsonl"))
        for records in [read(path)]
    ]


def _title(name: str, records: list[RunRecord]) -> str:
    """A shipped file's prompt, and its policies where they are not the usual two."""
    recipe = SHIPPED.get(name)
    if recipe is None:
        return ""
    prompt = prompts()[recipe.prompt]
    if (recipe.upper, recipe.lower) == (RIVER, BACKBONE):
        return prompt
    upper, lower = (policy_name(str(record.header.settings["policy"])) for record in records)
    return say("recorded.title", prompt=prompt, upper=upper, lower=lower)


def read(path: str | Path) -> list[RunRecord]:
    """The one or two records of a file; RecordError, in one sentence, for anything else."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise RecordError(f"{path} is larger than {LARGEST // 2**20} MiB; it is not shown.")
        return parse(data.decode("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} cannot be read as a recorded run: {error}.") from error


def parse(text: str, name: str) -> list[RunRecord]:
    """As `read`, from the text of a file."""
    parts: list[list[str]] = []
    for line in filter(str.strip, text.split("\n")):
        if '"type":"header"' in line[:40].replace(" ", "") or not parts:
            parts.append([])
        parts[-1].append(line)
    if len(parts) not in (1, 2):
        raise RecordError(f"{name} holds {len(parts)} run records instead of one or two.")
    try:
        records = [RunRecord.from_lines(part, name) for part in parts]
        sound = all(map(_sound, records))
    except (RecursionError, OverflowError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{name} is not a recorded run: {error}.") from error
    if not sound or len({record.header.num_layers for record in records}) > 1:
        raise RecordError(f"{name} is not a recorded run: a value has the wrong type or size.")
    return records


def recorded_run(records: list[RunRecord], name: str) -> Run:
    """The lanes of a recorded run, as the runner leaves them when a live one has ended."""
    header = records[0].header
    run = Run(f"recorded {name}", "done", entry_layer=header.entry_layer, notes=header.notes)
    for lane, record in zip(run.lanes, records, strict=False):
        _fill(lane, record)
    if len(records) == 1:
        run.lower.num_layers, run.lower.phase = run.upper.num_layers, "failed"
    return run


def view(records: list[RunRecord], name: str, title: str = "") -> dict[str, Any]:
    """The snapshot of a recorded run, with `recorded`: what the chooser and the label say."""
    header = records[0].header
    card = ModelCard(
        "ready", say("recorded.card"), header.model, header.origin, header.device, header.num_layers
    )
    facts = {
        "title": title or name,
        "label": say("recorded.label", model=header.model, device=header.device),
        "settings": "; ".join(map(_asked, records)),
        "bits": _bits(str(header.quantisation)),
    }
    return snapshot(recorded_run(records, name), card) | {"recorded": facts}


def _asked(record: RunRecord) -> str:
    """A lane's settings, as far as a reader may want them."""
    asked = {name: str(value) for name, value in record.header.settings.items()}
    names = ("policy", "threshold", "head", "prefill")
    known = {name: asked.get(name, "-") for name in names}
    return say("recorded.lane", **known | {"policy": policy_name(known["policy"])})


def _bits(river: str) -> str:
    """Bits of a code of the river, from its label; a label of another kind as it is."""
    try:
        spec = QuantSpec.parse(river)
    except SettingsError:
        return river
    return f"{spec.budget or spec.bits:g}"


def make(folder: Path = RUNS) -> None:
    """Decode the shipped runs with the packaged model and write them to `folder`."""
    model = river_core.load(MODEL, device="cpu")
    for name, recipe in SHIPPED.items():
        lanes: tuple[list[RunRecord], list[RunRecord]] = ([], [])
        for _ in range(ROUNDS):
            for found, settings in zip(lanes, (recipe.upper, recipe.lower), strict=True):
                asked = {**settings, "max_new_tokens": recipe.tokens, "full_trace": True}
                found.append(river_core.generate(model, prompts()[recipe.prompt], **asked))
        lines = [line for found in lanes for line in max(found, key=_rate).lines()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _rate(record: RunRecord) -> float:
    return record.summary.tokens_per_second or 0.0


def _fill(lane: Lane, record: RunRecord) -> None:
    lane.policy = str(record.header.settings.get("policy", "unknown"))
    lane.num_layers, lane.phase = record.header.num_layers, "done"
    lane.prompt, lane.summary = record.prompt, record.summary
    for token in record.tokens:
        append(lane, token)
    lane.updates = list(record.updates)
    if lane.name == "upper":
        lane.trace = [pack_trace(values) for values in record.full_trace or ()]


def _sound(record: RunRecord) -> bool:
    """Whether every value that a view uses has its type and size."""
    layers, start = record.header.num_layers, len(record.prompt.token_ids)
    return (
        _header(record.header)
        and _prompt(record.prompt, layers)
        and len(record.tokens) <= MOST_TOKENS
        and all(_token(t, i, start + i, layers) for i, t in enumerate(record.tokens))
        and _summary(record.summary)
    )


def _header(header: RunHeader) -> bool:
    texts = (header.model, header.origin, header.device, *header.notes)
    return (
        _whole(header.num_layers, MOST_LAYERS)
        and header.num_layers > 0
        and all(isinstance(text, str) for text in texts)
        and isinstance(header.settings, dict)
    )


def _prompt(prompt: PromptRecord, layers: int) -> bool:
    return (
        len(prompt.token_ids) == len(prompt.texts)
        and all(map(_whole, prompt.token_ids))
        and all(isinstance(text, str) for text in (*prompt.texts, *prompt.raw.values()))
        and all(bytes.fromhex(raw) is not None for raw in prompt.raw.values())
        and _whole(prompt.exit_layer, layers)
        and _number(prompt.seconds)
    )


def _token(token: TokenRecord, index: int, position: int, layers: int) -> bool:
    numbers = (token.threshold, token.logprob, token.entropy, token.seconds)
    chances = [chance for _, _, chance in token.alternatives]
    return (
        (token.index, token.position) == (index, position)
        and _whole(token.token_id)
        and all(_whole(number) for number, _, _ in token.alternatives)
        and isinstance(token.text, str)
        and isinstance(token.raw, str)
        and bytes.fromhex(token.raw) is not None
        and _whole(token.exit_layer, layers)
        and all(map(_number, (*numbers, *chances, *token.similarities)))
        and len(token.similarities) in (token.exit_layer, layers, 0)
        and isinstance(token.kv_source, str)
        and len(token.kv_source) == layers
        and len(token.alternatives) <= 16
    )


def _summary(summary: RunSummary) -> bool:
    rates = (summary.tokens_per_second, summary.mean_exit_layer, summary.decision_microseconds)
    return (
        summary.stop_reason in REASONS
        and all(rate is None or _number(rate) for rate in rates)
        and isinstance(summary.device, str)
        and _mapping(summary.memory, int)
        and _mapping(summary.kernels, str)
        and _mapping(summary.versions, str)
    )


def _mapping(found: Mapping[str, Any], kind: type) -> bool:
    return isinstance(found, dict) and all(
        isinstance(value, kind) and (kind is str or _whole(value)) for value in found.values()
    )


def _whole(value: object, largest: int = 2**53) -> bool:
    return type(value) is int and 0 <= value <= largest


def _number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


if __name__ == "__main__":
    make()
