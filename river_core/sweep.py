"""Thresholds against depth and agreement, teacher-forced, as JSON Lines and a table.

A consumer of the loop: the backbone writes each prompt's tokens, then every threshold and prefill
rule is fed the same tokens. Measures no speed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

from .compare import compare
from .decode import generate, teacher_forced
from .errors import RecordError, SettingsError
from .metrics import mean_exit_layer
from .model import RiverModel
from .prompts import Prompt
from .recorder import versions
from .records import RunRecord

THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.985, 0.99, 0.995, 1.0)
PREFILLS = ("full", "exit")
Say = Callable[[str, float | None], None]


@dataclass(frozen=True)
class Row:
    """One threshold and prefill rule: means over the prompts, and each prompt's own numbers."""

    threshold: float
    prefill: str
    mean_exit_layer: float
    prompt_depth: float
    match: float
    kl: float
    top5_overlap: float
    per_prompt: tuple[dict[str, float], ...]


def bundled_prompts() -> list[str]:
    """The eight prompts that reports use."""
    text = files("river_core").joinpath("data/prompts.json").read_text(encoding="utf-8")
    prompts: list[str] = json.loads(text)
    return prompts


def reference_run(model: RiverModel, prompt: Prompt, tokens: int) -> RunRecord:
    """The backbone's own `tokens` greedy tokens for `prompt`, fed back to it with logits kept."""
    free = generate(model, prompt, policy="backbone", max_new_tokens=tokens, full_trace=False)
    ids = [t.token_id for t in free.tokens]
    return teacher_forced(model, prompt, ids, policy="backbone", full_trace=False)


def measure(
    model: RiverModel, prompt: Prompt, reference: RunRecord, threshold: float, prefill: str
) -> dict[str, float]:
    """River on one prompt, fed the reference's tokens: depth, match, KL and overlap."""
    return numbers(reference, fed(model, prompt, reference, threshold, prefill))


def fed(
    model: RiverModel, prompt: Prompt, reference: RunRecord, threshold: float, prefill: str
) -> RunRecord:
    """River on one prompt, fed the reference's tokens."""
    ids = [t.token_id for t in reference.tokens]
    return teacher_forced(
        model, prompt, ids, threshold=threshold, prefill=prefill, full_trace=False
    )


def numbers(reference: RunRecord, run: RunRecord) -> dict[str, float]:
    """Depth, match, KL and overlap of a run that was fed the reference's tokens."""
    found = compare(reference, run)
    depth = mean_exit_layer([run])
    assert found.kl is not None
    return {
        "mean_exit_layer": float(run.prompt.exit_layer if depth is None else depth),
        "prompt_depth": float(run.prompt.exit_layer),
        "match": found.match,
        "kl": found.kl,
        "top5_overlap": found.top5_overlap,
        "tokens": float(len(run.tokens)),
    }


def sweep(
    model: RiverModel,
    prompts: Sequence[str],
    thresholds: Sequence[float],
    tokens: int,
    say: Say,
) -> list[Row]:
    """Every threshold with both prefill rules over all prompts, `tokens` tokens each.

    Raises SettingsError where a backbone layer is not resident, and whatever `generate` raises.
    """
    model.require_whole("sweep")
    grid = [(prefill, threshold) for prefill in PREFILLS for threshold in thresholds]
    found: dict[tuple[str, float], list[dict[str, float]]] = {key: [] for key in grid}
    for n, prompt in enumerate(prompts):
        reference = reference_run(model, prompt, tokens)
        for at, (prefill, threshold) in enumerate(grid):
            share = (n + at / len(grid)) / len(prompts)
            say(f"prompt {n + 1} of {len(prompts)}, threshold {threshold}, {prefill}", share)
            found[prefill, threshold].append(measure(model, prompt, reference, threshold, prefill))
    return [_row(threshold, prefill, found[prefill, threshold]) for prefill, threshold in grid]


def _row(threshold: float, prefill: str, parts: list[dict[str, float]]) -> Row:
    weights = [part["tokens"] for part in parts]

    def mean(name: str) -> float:
        return sum(p[name] * w for p, w in zip(parts, weights, strict=True)) / sum(weights)

    return Row(
        threshold=threshold,
        prefill=prefill,
        mean_exit_layer=mean("mean_exit_layer"),
        prompt_depth=fmean(part["prompt_depth"] for part in parts),
        match=mean("match"),
        kl=mean("kl"),
        top5_overlap=mean("top5_overlap"),
        per_prompt=tuple({k: round(v, 6) for k, v in part.items()} for part in parts),
    )


def header(model: RiverModel, prompts: Sequence[str], tokens: int) -> dict[str, Any]:
    """First line of a report's JSON Lines."""
    info = model.info
    return {
        "type": "sweep",
        "model": info.name,
        "origin": info.origin,
        "quantisation": info.quant.shown,
        "entry_layer": info.entry_layer,
        "num_layers": model.num_layers,
        "default_threshold": info.default_threshold,
        "dtype": str(model.embedding.dtype).removeprefix("torch."),
        "kernels": dict(info.kernels),
        "versions": dict(versions()),
        "tokens_per_prompt": tokens,
        "prompts": list(prompts),
    }


def save_lines(path: Path, head: dict[str, Any], rows: Sequence[Row]) -> None:
    """Write the header and one line per row."""
    lines = [head] + [{"type": "row", **asdict(_rounded(row))} for row in rows]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8", newline="\n")


def load_lines(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Read what `save_lines` wrote; RecordError for anything else."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        head, *rows = [json.loads(line) for line in lines if line]
        made = [Row(**{k: v for k, v in row.items() if k != "type"}) for row in rows]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} is not a sweep report ({error}).") from error
    return head, [replace(row, per_prompt=tuple(row.per_prompt)) for row in made]


def save_csv(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write JSON lines as a table with a column per key, empty where a line lacks it.

    Raises SettingsError where the file cannot be written.
    """
    import pandas

    frame = pandas.DataFrame.from_records([dict(line) for line in lines]).convert_dtypes()
    try:
        frame.to_csv(path, index=False, lineterminator="\n")
    except OSError as error:
        raise SettingsError(f"{path} cannot be written ({error}).") from error


def _rounded(row: Row) -> Row:
    numbers: dict[str, Any] = {
        name: round(value, 6) for name, value in vars(row).items() if isinstance(value, float)
    }
    return replace(row, **numbers)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of a Markdown table, both prefill rules."""
    yield "| prefill | threshold | prompt depth | mean exit layer | match | KL (nats) | top-5 |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for r in rows:
        yield (
            f"| {r.prefill} | {r.threshold:g} | {r.prompt_depth:.1f} | {r.mean_exit_layer:.2f} "
            f"| {r.match:.3f} | {r.kl:.4f} | {r.top5_overlap:.3f} |"
        )
