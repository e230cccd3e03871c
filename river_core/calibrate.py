"""Where this model's similarities lie, and what each threshold costs, on a bundled text.

A consumer of the loop: the backbone answers each passage, then every threshold is fed its tokens,
with the prefill rule that policy river has by default. Measures no speed.
"""

from __future__ import annotations

import bisect
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files

import torch
from torch import Tensor

from .calibration_store import Calibration, CalibrationFile, Point
from .errors import RiverError, SettingsError
from .model import Progress, RiverModel
from .policies import POLICIES
from .prompts import Prompt
from .recorder import versions
from .records import RunRecord
from .sweep import fed, numbers, reference_run

LEVELS = (5.0, 25.0, 50.0, 75.0, 95.0)  # percent
TOKENS = 48  # per passage
# Thresholds stand where the full-depth traces say that this share of the layers is skipped: denser
# where little is, because that is where a match near 1 is found.
SHARES = (0.9, 0.6, 0.3, 0.1, 0.05, 0.03, 0.02)
FIXED = (0.5, 1.0)  # the paper's threshold for Llama models, and never leaving


def bundled_passages() -> list[str]:
    """The passages that calibrate uses; none of them is one of the reports' prompts."""
    text = files("river_core").joinpath("data/calibration.json").read_text(encoding="utf-8")
    return [passage["text"] for passage in json.loads(text)]


def calibrate(
    model: RiverModel,
    *,
    prompts: Sequence[Prompt] | None = None,
    tokens: int = TOKENS,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Calibration:
    """Measure the model's thresholds, store them beside its river, and return them.

    `prompts` defaults to the bundled passages; each gets up to `tokens` greedy tokens. `cancelled`
    is asked between runs; a cancelled one raises RiverError and stores nothing. Also raises
    CacheFull, and SettingsError, for one where a backbone layer is not resident.
    """
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 2:
        raise SettingsError(f"tokens is {tokens!r}; calibrate needs 2 or more per passage.")
    chosen = bundled_passages() if prompts is None else list(prompts)
    if not chosen:
        raise SettingsError("prompts is empty; give at least one, or None for the bundled text.")
    model.require_whole("calibrate")
    file = storage(model)
    step = _Steps(progress, cancelled)
    references = []
    for n, prompt in enumerate(chosen):
        step(f"full depth, passage {n + 1} of {len(chosen)}", 0.1 * n / len(chosen))
        references.append(reference_run(model, prompt, tokens))
    traces = full_depth(references)
    found = Calibration(
        levels=LEVELS,
        quantiles=quantiles(traces),
        points=tuple(_points(model, chosen, references, grid(traces, model), step)),
        prefill=POLICIES["river"].prefills[0],
        passes=sum(len(run.tokens) for run in references),
        measured={
            "model": model.info.name,
            "dtype": str(model.embedding.dtype).removeprefix("torch."),
            "device": str(model.device),
            "text": "bundled" if prompts is None else "the caller's",
            **versions(),
        },
    )
    file.save(found)
    step("stored", 1.0)
    return found


def storage(model: RiverModel) -> CalibrationFile:
    """The file of this model's calibration; SettingsError where the model can have none."""
    if model.info.calibration is None:
        raise SettingsError(
            "this model was not loaded from weights on disk, so a calibration of it cannot be "
            "stored; load one by name, folder or file."
        )
    return model.info.calibration


class _Steps:
    """Tells the progress and stops where the caller wants to."""

    def __init__(self, progress: Progress | None, cancelled: Callable[[], bool] | None) -> None:
        self._progress, self._cancelled = progress, cancelled

    def __call__(self, text: str, fraction: float) -> None:
        if self._cancelled is not None and self._cancelled():
            raise RiverError("the calibration was stopped; nothing was stored.")
        if self._progress is not None:
            self._progress(text, fraction)


def full_depth(references: Sequence[RunRecord]) -> Tensor:
    """Similarities fp64 [decode passes, L] of full-depth runs, prompt passes left out.

    Raises RiverError where every answer ended with its first token.
    """
    rows = [token.similarities for run in references for token in run.tokens[1:]]
    if not rows:
        raise RiverError(
            "every answer ended with its first token, so there is nothing to calibrate on; give "
            "other prompts."
        )
    return torch.tensor(rows, dtype=torch.float64)


def quantiles(traces: Tensor) -> tuple[tuple[float, ...], ...]:
    """LEVELS' quantiles of each layer's similarities: [L][levels], from traces [n, L]."""
    levels = torch.tensor(LEVELS, dtype=torch.float64) / 100
    rows: list[list[float]] = torch.quantile(traces, levels, dim=0).T.tolist()
    return tuple(tuple(round(value, 6) for value in row) for row in rows)


def estimated_depth(traces: Tensor, threshold: float, entry_layer: int) -> float:
    """Mean exit layer that full-depth traces [n, L] foretell: the first layer above `threshold`."""
    layers = traces.shape[1]
    above = traces[:, entry_layer - 2 : layers - 1] > threshold  # [n, layers that may be left]
    first = above.int().argmax(dim=1) + entry_layer - 1
    return float(torch.where(above.any(dim=1), first, layers).double().mean())


def grid(traces: Tensor, model: RiverModel) -> list[float]:
    """Ascending thresholds, four decimals, at which `SHARES` of the layers would be skipped."""
    entry, layers = model.info.entry_layer, model.num_layers
    may_leave = traces[:, entry - 2 : layers - 1].flatten()
    candidates = sorted({round(value, 4) for value in may_leave.tolist()} | {1.0})

    def skipped_at_most(share: float) -> float:
        wanted = layers * (1 - share)
        at = bisect.bisect_left(
            candidates, wanted, key=lambda value: estimated_depth(traces, value, entry)
        )
        return candidates[at]

    return sorted({*map(skipped_at_most, SHARES), *FIXED})


def _points(
    model: RiverModel,
    prompts: Sequence[Prompt],
    references: Sequence[RunRecord],
    thresholds: Sequence[float],
    step: _Steps,
) -> Iterator[Point]:
    """Means of every threshold over the prompts, and its exits."""
    prefill, total = POLICIES["river"].prefills[0], len(thresholds) * len(prompts)
    for n, threshold in enumerate(thresholds):
        parts, exits = [], Counter[int]()
        for m, (prompt, reference) in enumerate(zip(prompts, references, strict=True)):
            share = 0.1 + 0.9 * (n * len(prompts) + m) / total
            step(f"threshold {threshold:g}, passage {m + 1} of {len(prompts)}", share)
            run = fed(model, prompt, reference, threshold, prefill)
            parts.append(numbers(reference, run))
            exits.update(t.exit_layer for t in run.tokens[1:])
        passes = [part["tokens"] for part in parts]
        decode = [count - 1 for count in passes]
        yield Point(
            threshold=threshold,
            mean_exit_layer=_mean([part["mean_exit_layer"] for part in parts], decode),
            match=_mean([part["match"] for part in parts], passes),
            kl=_mean([part["kl"] for part in parts], passes),
            exits=tuple(exits[layer] for layer in range(1, model.num_layers + 1)),
        )


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Weighted mean, six decimals."""
    total = sum(value * weight for value, weight in zip(values, weights, strict=True))
    return round(total / sum(weights), 6)
