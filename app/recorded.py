"""Recorded runs: files of run records, shown through the same snapshots as live ones; no torch.

A file holds River's record and, after it, the backbone's, each as JSON Lines (records.md). It may
come from anywhere: size, schema and types are checked before anything is drawn.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from river_core.errors import RecordError, SettingsError
from river_core.records import RunRecord
from river_core.settings import QuantSpec

from .command import command, typed_prompt
from .recipe import recipe_of
from .replay_check import check_records
from .views.english import RefusedRecord, known, marked
from .views.packing import pack_trace
from .views.policies import policy_name
from .views.run import LANES, Lane, ModelCard, Run
from .views.snapshot import append, snapshot
from .views.wording import listed_apart, say

LARGEST = 8 * 2**20  # bytes of a file
LONGEST_NAME, LONGEST_REASON = 80, 300  # characters of each that a sentence repeats
_BROKEN = (RecursionError, OverflowError, TypeError, ValueError, LookupError, AttributeError)


def read(path: str | Path) -> list[RunRecord]:
    """The one or two records of a file; RecordError, in one sentence, for anything else."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise RefusedRecord(say("file.large", file=path, most=LARGEST // 2**20))
        return parse(data.decode("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = marked(str(error))
        raise RefusedRecord(say("file.unreadable", file=path, reason=reason)) from error


def parse(text: str, name: str) -> list[RunRecord]:
    """As `read`, from the text of a file."""
    parts: list[list[str]] = []
    for line in filter(str.strip, text.split("\n")):
        if '"type":"header"' in line[:40].replace(" ", "") or not parts:
            parts.append([])
        parts[-1].append(line)
    name = name if len(name) <= LONGEST_NAME else f"…{name[-LONGEST_NAME:]}"
    if len(parts) not in (1, 2):
        raise RefusedRecord(say("file.count", file=name, count=len(parts)))
    try:
        records = [RunRecord.from_lines(part, name) for part in parts]
    except RecordError as error:
        raise RecordError(_short(error)) from error
    except _BROKEN as error:
        raise _no_run(name, error) from error
    try:
        check_records(records, [len(part) for part in parts])
    except (RecordError, *_BROKEN) as error:
        raise _no_run(name, error) from error
    return records


def _no_run(name: str, error: Exception) -> RefusedRecord:
    return RefusedRecord(say("file.no_run", file=name, reason=marked(_short(error))))


def _short(error: Exception) -> str:
    words = " ".join(str(error).split())
    return words if len(words) <= LONGEST_REASON else f"{words[:LONGEST_REASON]}…"


def saved(records: list[RunRecord]) -> str:
    """The text of their file: what RunRecord.save writes, one after the other."""
    return "".join(f"{line}\n" for record in records for line in record.lines())


def recorded_run(records: list[RunRecord], name: str) -> Run:
    """The lanes of a recorded run, as the runner leaves them when a live one has ended."""
    header = records[0].header
    run = Run(f"recorded {name}", "done", entry_layer=header.entry_layer, notes=header.notes)
    for lane, record in zip(run.lanes, records, strict=False):
        _fill(lane, record)
    if len(records) == 1:
        run.lower.num_layers, run.lower.phase = run.upper.num_layers, "failed"
    return run


def view(
    records: list[RunRecord], name: str, title: str = "", prompt: str | None = None
) -> dict[str, Any]:
    """The snapshot of a recorded run, with `recorded`: what the chooser and the label say, and
    `files`: what the page writes of it. `prompt`: as typed, where that is known."""
    header = records[0].header
    origin, place = known(header.origin), (header.device, header.num_layers)
    card = ModelCard("ready", say("recorded.card"), header.model, origin, *place)
    facts = {
        "title": title or name,
        "label": say("recorded.label", model=header.model, device=header.device),
        "settings": listed_apart(map(_asked, records)),
        "bits": _bits(str(header.quantisation)),
    }
    return snapshot(recorded_run(records, name), card) | {
        "recorded": facts,
        "files": _files(records, prompt or typed_prompt(records[0].prompt), name),
    }


def _files(records: list[RunRecord], prompt: str | None, name: str) -> dict[str, Any]:
    commands = [command(record, prompt) for record in records]
    return {
        "name": _slug(prompt or name),
        "recipe": recipe_of(records, prompt),
        "commands": {
            lane: {"line": line, "reason": reason}
            for lane, (line, reason) in zip(LANES, commands, strict=False)
        },
    }


def _slug(text: str) -> str:
    """The first words of `text`, for a file's name."""
    return "-".join(re.findall("[a-z0-9]+", text.lower())[:5])[:40]


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


def _fill(lane: Lane, record: RunRecord) -> None:
    lane.policy = str(record.header.settings.get("policy", "unknown"))
    lane.num_layers, lane.phase = record.header.num_layers, "done"
    lane.prompt, lane.summary = record.prompt, record.summary
    for token in record.tokens:
        append(lane, token)
    lane.updates = list(record.updates)
    if lane.name == "upper":
        lane.trace = [pack_trace(values) for values in record.full_trace or ()]
