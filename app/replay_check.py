"""Whether run records that came from anywhere can be shown: every value's type, size and range.

A record's reader (river_core.records) knows its fields; this knows what the views do with them.
Each check raises RecordError with one clause, such as "token 3 has no kv_source of 30 letters".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from river_core.errors import RecordError
from river_core.records import (
    KV_LETTERS,
    PATH_LETTERS,
    PromptRecord,
    RunHeader,
    RunRecord,
    RunSummary,
    TokenRecord,
)

MOST_LAYERS, MOST_TOKENS, MOST_ALTERNATIVES = 512, 8192, 16
LARGEST_WHOLE = 2**53  # of the whole numbers that a browser keeps exactly
LARGEST_NUMBER, SMALLEST_RATE = 1e12, 1e-6
EDGE = 1.0001  # similarities are saved with four decimals
DEEPEST = 3  # lists and objects within the settings
REASONS = ("eos", "stop", "length", "cancelled")
SURROGATE = re.compile("[\ud800-\udfff]")


def check_records(records: Sequence[RunRecord], lines: Sequence[int]) -> None:
    """Raise RecordError for the first value that cannot be shown; `lines`: of each record."""
    for record, count in zip(records, lines, strict=True):
        _header(record.header)
        _prompt(record.prompt, record.header.num_layers)
        _tokens(record)
        _updates(record)
        _trace(record)
        _summary(record.summary)
        known = 3 + len(record.tokens) + len(record.updates) + (record.full_trace is not None)
        _need(count == known, "there is more than one full_trace line")
    layers = [record.header.num_layers for record in records]
    _need(len(set(layers)) == 1, f"its records have {' and '.join(map(str, layers))} layers")


def _need(fine: bool, problem: str) -> None:
    if not fine:
        raise RecordError(problem)


def _header(header: RunHeader) -> None:
    _need(_whole(header.num_layers, MOST_LAYERS) and header.num_layers > 0, "num_layers is wrong")
    _need(
        _whole(header.entry_layer, header.num_layers) and header.entry_layer > 0,
        "entry_layer is not one of its layers",
    )
    named = (header.model, header.origin, header.quantisation, header.device, *header.notes)
    _need(all(map(_text, named)), "a text of the header is none")
    _need(header.revision is None or _text(header.revision), "the header's revision is no text")
    _need(isinstance(header.forced_tokens, bool), "forced_tokens is neither true nor false")
    _need(_whole(header.seed, 2**63 - 1), "the header's seed is no whole number")
    _need(_mapping(header.kernels, _text), "the header's kernels are no texts by name")
    settings = header.settings
    _need(isinstance(settings, dict) and _plain(settings), "the header's settings are none")
    _need(_text(settings.get("policy", "")), "the header's policy is no name")


def _prompt(prompt: PromptRecord, layers: int) -> None:
    count = len(prompt.token_ids)
    _need(0 < count <= MOST_TOKENS, f"the prompt has {count} tokens")
    _need(all(map(_whole, prompt.token_ids)), "a token id of the prompt is no whole number")
    _need(
        len(prompt.texts) == count and all(map(_text, prompt.texts)),
        "the prompt has not one text for each token",
    )
    _need(
        len(prompt.kv_source) == count
        and all(_letters(row, KV_LETTERS, layers) for row in prompt.kv_source),
        f"the prompt has not one kv_source of {layers} letters for each token",
    )
    _need(_whole(prompt.exit_layer, layers), "the prompt's exit_layer is not one of the layers")
    _similarities(prompt.similarities, (prompt.exit_layer, layers, 0), "the prompt")
    for row in prompt.matrix or ():
        _similarities(row, (count,), "the prompt's matrix")
    _need(len(prompt.matrix or ()) in (0, prompt.exit_layer, layers), "the matrix is too long")
    _need(_number(prompt.seconds, low=0), "the prompt's seconds are no number")
    _need(isinstance(prompt.chat, bool), "the prompt's chat is neither true nor false")
    _need(
        all(index in range(count) and _hex(raw) for index, raw in prompt.raw.items()),
        "the prompt's raw bytes are not hexadecimal",
    )


def _tokens(record: RunRecord) -> None:
    layers, start = record.header.num_layers, len(record.prompt.token_ids)
    _need(len(record.tokens) <= MOST_TOKENS, f"it has more than {MOST_TOKENS} tokens")
    for index, token in enumerate(record.tokens):
        name = f"token {index}"
        _need(
            (token.index, token.position) == (index, start + index)
            and type(token.index) is type(token.position) is int,
            f"{name} is missing, doubled or has the wrong position",
        )
        _token(token, name, layers)
        _alternatives(token, name)


def _token(token: TokenRecord, name: str, layers: int) -> None:
    _need(_whole(token.token_id), f"{name} has no token_id")
    _need(_text(token.text), f"{name} has no text")
    _need(_hex(token.raw), f"{name} has raw bytes that are not hexadecimal")
    _need(_whole(token.exit_layer, layers), f"{name} has an exit_layer that is not in the model")
    _need(isinstance(token.forced, bool), f"{name} has a forced that is neither true nor false")
    _similarities(token.similarities, (token.exit_layer, layers, 0), name)
    _need(_letters(token.path, PATH_LETTERS, layers), f"{name} has no path of {layers} letters")
    _need(
        _letters(token.kv_source, KV_LETTERS, layers),
        f"{name} has no kv_source of {layers} letters",
    )
    numbers = (token.threshold, token.logprob)
    _need(all(map(_number, numbers)), f"{name} has a threshold or logprob that is no number")
    _need(
        _number(token.entropy, low=-EDGE) and _number(token.seconds, low=0),
        f"{name} has an entropy or seconds that are no number",
    )
    _need(token.parts is None or _mapping(token.parts, _number), f"{name} has parts that are none")


def _alternatives(token: TokenRecord, name: str) -> None:
    _need(
        len(token.alternatives) <= MOST_ALTERNATIVES
        and all(_whole(i) and _text(t) and _number(p) for i, t, p in token.alternatives),
        f"{name} has alternatives that are none",
    )


def _updates(record: RunRecord) -> None:
    layers, tokens = record.header.num_layers, len(record.tokens)
    rows = len(record.prompt.token_ids) + max(tokens - 1, 0)
    for number, update in enumerate(record.updates, start=1):
        name = f"update {number}"
        _need(_whole(update.position, rows - 1), f"{name} has a position that is not in the cache")
        _need(
            0 < len(update.layers) <= layers
            and all(_whole(layer, layers) and layer > 0 for layer in update.layers)
            and len(set(update.layers)) == len(update.layers),
            f"{name} has layers that are not in the model",
        )
        _need(_letters(update.source, KV_LETTERS, 1), f"{name} has no source letter")
        _need(
            _whole(update.pass_index, tokens),  # that of all tokens: the flush after the last
            f"{name} has a pass_index that is not in the run",
        )


def _trace(record: RunRecord) -> None:
    if record.full_trace is None:
        return
    _need(len(record.full_trace) == len(record.tokens), "full_trace has not one row for each token")
    for row in record.full_trace:
        _similarities(row, (record.header.num_layers,), "full_trace")


def _summary(summary: RunSummary) -> None:
    _need(summary.stop_reason in REASONS, "the summary's stop_reason is none")
    rates = (summary.tokens_per_second, summary.mean_exit_layer, summary.decision_microseconds)
    _need(all(rate is None or _rate(rate) for rate in rates), "a rate of the summary is no number")
    saved = summary.layers_saved
    _need(saved is None or _number(saved), "the summary's layers_saved is no number")
    spent = (summary.prefill_seconds, summary.decode_seconds)
    _need(all(_number(s, low=0) for s in spent), "the summary's seconds are no number")
    _need(_text(summary.device), "the summary's device is no text")
    _need(_mapping(summary.memory, _whole), "the summary's memory is no bytes by part")
    _need(_mapping(summary.counters, _whole), "the summary's counters are no whole numbers")
    _need(
        _mapping(summary.kernels, _text) and _mapping(summary.versions, _text),
        "the summary's kernels or versions are no texts by name",
    )


def _similarities(values: Sequence[Any], counts: Iterable[int], name: str) -> None:
    _need(len(values) in counts, f"{name} has {len(values)} similarities, which is not its layers")
    fine = all(_number(value, low=-EDGE, high=EDGE) for value in values)
    _need(fine, f"{name} has a similarity that is not from -1 to 1")


def _text(value: object) -> bool:
    """Whether it is text that can be written as UTF-8."""
    return isinstance(value, str) and not SURROGATE.search(value)


def _letters(value: object, allowed: frozenset[str], count: int) -> bool:
    return isinstance(value, str) and len(value) == count and allowed.issuperset(value)


def _hex(value: object) -> bool:
    return isinstance(value, str) and bool(re.fullmatch("([0-9a-fA-F]{2})*", value))


def _whole(value: object, largest: int = LARGEST_WHOLE) -> bool:
    return type(value) is int and 0 <= value <= largest


def _number(value: object, low: float = -LARGEST_NUMBER, high: float = LARGEST_NUMBER) -> bool:
    """Whether it is finite and within; of an int too, which may be too large for a float."""
    if type(value) is not int and type(value) is not float:
        return False
    return low <= value <= high and math.isfinite(value)


def _rate(value: object) -> bool:
    return _number(value, low=0) and (value == 0 or value >= SMALLEST_RATE)  # type: ignore[operator]


def _mapping(found: object, kind: Any) -> bool:
    if not isinstance(found, Mapping):
        return False
    return all(_text(name) and kind(value) for name, value in found.items())


def _plain(value: object, depth: int = DEEPEST) -> bool:
    """Whether a setting is text, a number, true, false, nothing, or a shallow list of these."""
    if value is None or isinstance(value, bool) or _text(value):
        return True
    if isinstance(value, int | float):
        return _number(value, low=-(2.0**63), high=2.0**63)
    if depth and isinstance(value, list):
        return all(_plain(item, depth - 1) for item in value)
    named = depth and isinstance(value, dict)
    return bool(named) and all(_text(k) and _plain(v, depth - 1) for k, v in value.items())  # type: ignore[attr-defined]
