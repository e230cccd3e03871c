"""What a run leaves behind: immutable records, and their JSON Lines form. No torch here.

records.md defines every field. A file is: a header line, the prompt, one line per token, one per
cache update, the full trace where there is one, and the summary. Later changes to the cache are
events (`CacheUpdate`); `RunRecord.kv_final` is the end state.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import RecordError

if TYPE_CHECKING:
    import pandas

SCHEMA = 1
PATH_LETTERS = frozenset("brpafs")
KV_LETTERS = frozenset("brpmnd")


@dataclass(frozen=True)
class PromptRecord:
    """The prompt pass: P rows together at one unified depth (paper 3.1, sequence-level exit)."""

    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    exit_layer: int
    similarities: tuple[float, ...]  # per layer run: the minimum over the prompt's tokens
    kv_source: tuple[str, ...]  # one string of L letters per row
    seconds: float
    chat: bool
    matrix: tuple[tuple[float, ...], ...] | None = None  # [layer run][token], on request
    raw: Mapping[int, str] = field(default_factory=dict)  # index -> hex of a partial character


@dataclass(frozen=True)
class TokenRecord:
    """The pass that chose token `index`; `position` is where that token will stand."""

    index: int
    position: int
    token_id: int
    text: str
    exit_layer: int
    forced: bool
    threshold: float
    similarities: tuple[float, ...]
    path: str
    kv_source: str
    logprob: float
    entropy: float
    alternatives: tuple[tuple[int, str, float], ...]
    seconds: float
    parts: Mapping[str, float] | None = None
    raw: str = ""  # hex of the token's bytes where they are not whole characters


@dataclass(frozen=True)
class CacheUpdate:
    """Slots that a later pass wrote: `layers` (1-based) at `position`, now from `source`."""

    position: int
    layers: tuple[int, ...]
    source: str
    pass_index: int


@dataclass(frozen=True)
class RunSummary:
    """Rates, memory and counters of a finished run."""

    stop_reason: str
    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float | None
    mean_exit_layer: float | None
    layers_saved: float | None
    decision_microseconds: float | None
    memory: Mapping[str, int]
    counters: Mapping[str, int]
    kernels: Mapping[str, str]
    device: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class RunHeader:
    """Which model, settings and machine a run came from: the first line of a file."""

    model: str
    origin: str
    revision: str | None
    num_layers: int
    entry_layer: int
    quantisation: str
    device: str
    settings: Mapping[str, Any]
    seed: int
    kernels: Mapping[str, str] = field(default_factory=dict)
    forced_tokens: bool = False  # teacher-forced: token ids were given
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA


Record = PromptRecord | TokenRecord | CacheUpdate | RunSummary


@dataclass(frozen=True)
class RunRecord:
    """One whole run. `logits` ([n, vocabulary] fp32) exist only in memory, only when forced."""

    header: RunHeader
    prompt: PromptRecord
    tokens: tuple[TokenRecord, ...]
    updates: tuple[CacheUpdate, ...]
    summary: RunSummary
    full_trace: tuple[tuple[float, ...], ...] | None = None
    logits: Any = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> str:
        """The answer: the tokens' texts joined, without any end-of-sequence text."""
        return "".join(t.text for t in self.tokens)

    @property
    def kv_final(self) -> tuple[str, ...]:
        """End state of the cache: L letters per position, in order of position."""
        rows = [list(source) for source in self.prompt.kv_source]
        rows += [list(t.kv_source) for t in self.tokens if t.index >= 1]
        for update in self.updates:
            for layer in update.layers:
                rows[update.position][layer - 1] = update.source
        return tuple("".join(row) for row in rows)

    def to_frame(self) -> pandas.DataFrame:
        """One row per token, columns named as the fields of TokenRecord."""
        import pandas

        rows = [_token_json(t) | {"similarities": t.similarities} for t in self.tokens]
        frame = pandas.DataFrame(rows)
        return frame.drop(columns=["type"], errors="ignore")

    def lines(self) -> Iterable[str]:
        """The JSON Lines of this run, without line ends."""
        for obj in self._objects():
            yield json.dumps(obj, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    def _objects(self) -> Iterable[dict[str, Any]]:
        yield {"type": "header", **vars(self.header)}
        yield _prompt_json(self.prompt)
        yield from (_token_json(t) for t in self.tokens)
        yield from ({"type": "update", **vars(u)} for u in self.updates)
        if self.full_trace is not None:
            yield {"type": "full_trace", "similarities": [_round(r) for r in self.full_trace]}
        yield {"type": "summary", **vars(self.summary)}

    def save(self, path: str | Path) -> None:
        """Write JSON Lines to `path`; similarities are rounded to 4 decimals."""
        Path(path).write_text("\n".join(self.lines()) + "\n", encoding="utf-8", newline="\n")

    @classmethod
    def load(cls, path: str | Path) -> RunRecord:
        """Read a file that `save` wrote; anything else raises RecordError."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecordError(f"{path} cannot be read as a run record: {error}.") from error
        return cls.from_lines(text.split("\n"), name=str(path))

    @classmethod
    def from_lines(cls, lines: Iterable[str], name: str = "the record") -> RunRecord:
        """Build a run from JSON Lines; `name` appears in the RecordError of a bad line."""
        found: dict[str, list[Any]] = {kind: [] for kind in _READERS}
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            kind, value = _read_line(line, number, name)
            found[kind].append(value)
        for kind in ("header", "prompt", "summary"):
            if len(found[kind]) != 1:
                raise RecordError(
                    f"{name} has {len(found[kind])} {kind} lines instead of one; it is not a "
                    "whole run record."
                )
        traces = found["full_trace"]
        return cls(
            header=found["header"][0],
            prompt=found["prompt"][0],
            tokens=tuple(found["token"]),
            updates=tuple(found["update"]),
            summary=found["summary"][0],
            full_trace=traces[0] if traces else None,
        )


def _round(values: Iterable[float]) -> list[float]:
    return [round(v, 4) for v in values]


def _prompt_json(prompt: PromptRecord) -> dict[str, Any]:
    obj = {"type": "prompt", **vars(prompt), "similarities": _round(prompt.similarities)}
    if prompt.matrix is None:
        del obj["matrix"]
    else:
        obj["matrix"] = [_round(row) for row in prompt.matrix]
    obj["raw"] = {str(k): v for k, v in prompt.raw.items()}
    if not prompt.raw:
        del obj["raw"]
    return obj


def _token_json(token: TokenRecord) -> dict[str, Any]:
    obj = {"type": "token", **vars(token), "similarities": _round(token.similarities)}
    if token.parts is None:
        del obj["parts"]
    if not token.raw:
        del obj["raw"]
    return obj


def _read_prompt(obj: dict[str, Any]) -> PromptRecord:
    matrix = obj.pop("matrix", None)
    return PromptRecord(
        token_ids=tuple(obj.pop("token_ids")),
        texts=tuple(obj.pop("texts")),
        similarities=tuple(obj.pop("similarities")),
        kv_source=tuple(obj.pop("kv_source")),
        matrix=None if matrix is None else tuple(tuple(row) for row in matrix),
        raw={int(k): v for k, v in obj.pop("raw", {}).items()},
        **obj,
    )


def _read_token(obj: dict[str, Any]) -> TokenRecord:
    if set(obj["path"]) - PATH_LETTERS or set(obj["kv_source"]) - KV_LETTERS:
        raise ValueError("an unknown path or kv_source letter")
    if not math.isfinite(obj["logprob"]):
        raise ValueError("a logprob that is not finite")
    similarities = tuple(obj.pop("similarities"))
    alternatives = tuple((int(i), str(t), float(p)) for i, t, p in obj.pop("alternatives"))
    return TokenRecord(similarities=similarities, alternatives=alternatives, **obj)


def _read_update(obj: dict[str, Any]) -> CacheUpdate:
    return CacheUpdate(layers=tuple(obj.pop("layers")), **obj)


def _read_header(obj: dict[str, Any]) -> RunHeader:
    if obj.get("schema") != SCHEMA:
        raise RecordError(
            f"the record's schema is {obj.get('schema')!r}, but this version reads {SCHEMA}."
        )
    return RunHeader(notes=tuple(obj.pop("notes")), **obj)


def _read_trace(obj: dict[str, Any]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in obj["similarities"])


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "header": _read_header,
    "prompt": _read_prompt,
    "token": _read_token,
    "update": _read_update,
    "full_trace": _read_trace,
    "summary": lambda obj: RunSummary(**obj),
}


def _read_line(line: str, number: int, name: str) -> tuple[str, Any]:
    try:
        obj = json.loads(line)
        kind = obj.pop("type")
        return kind, _READERS[kind](obj)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"line {number} of {name} is not a run record's: {error}.") from error
