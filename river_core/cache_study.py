"""What early exit does to the cache and how early it could be: the paper's Fig. 2, 5 and 6.

A consumer of the loop. Measures lines, one per prompt and subject, and pools them into tables; the
paper's figures stand beside ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from .bandwidth import ReadBytes
from .cell_rows import by_setting
from .cells import Setting
from .errors import SettingsError
from .kv_error import CacheReference, check_policy
from .metrics import pearson, spearman
from .model import RiverModel
from .safe_exits import earliest_safe_exits
from .sweep import Say
from .sweep import header as sweep_header
from .trace import full_trace

Line = Mapping[str, Any]
FIXED_EXITS = (2, 16)
WEIGHT_BITS = {"backbone": 16.0, "river": 4.5}  # 4 bits with a 16-bit scale and zero per 64
PAPER_LAYERS = 16  # Llama3.2-1B
PAPER_VALUE_COSINE, PAPER_R = "> 0.97", "0.5536"
PAPER_MEAN, PAPER_MAXIMUM = 4.81, 15.07


def settings(
    model: RiverModel, thresholds: Sequence[float], exit_layers: Sequence[int] | None, prefill: str
) -> list[Setting]:
    """Fixed exits (None: 2 and 16 where the model has them), then thresholds (none: its own).

    Raises SettingsError for what the model cannot do.
    """
    first, layers = model.info.entry_layer - 1, model.num_layers
    if exit_layers is None:
        exit_layers = [e for e in FIXED_EXITS if first <= e < layers]
    own = list(thresholds) or [model.info.default_threshold]
    found = [Setting("river", exit_layer=e, prefill=prefill) for e in dict.fromkeys(exit_layers)]
    found += [Setting("river", threshold=t, prefill=prefill) for t in dict.fromkeys(own)]
    for setting in found:
        check_policy(model, setting.keywords())
    return found


def header(model: RiverModel, prompts: Sequence[str], tokens: int) -> dict[str, Any]:
    """First line of the report's JSON Lines."""
    reads = ReadBytes.of_shape(
        model.shape,
        model.num_layers,
        model.embedding.shape[0],
        dense=WEIGHT_BITS["backbone"],
        int4=WEIGHT_BITS["river"],
    )
    own = {"type": "cache-study", "weight_bits": WEIGHT_BITS, "bytes": vars(reads)}
    return sweep_header(model, prompts, tokens) | own


def study(
    model: RiverModel, prompts: Sequence[str], tokens: int, chosen: Sequence[Setting], say: Say
) -> Iterator[dict[str, Any]]:
    """A line per prompt for the backbone's trace, each setting's cache and the safe exits.

    The backbone decodes `tokens` greedy tokens, which every setting is fed.
    """
    if tokens < 2:
        raise SettingsError("a cache study needs 2 tokens or more.")
    steps = len(chosen) + 2

    def at(prompt: int, step: int, what: str) -> None:
        share = (prompt + step / steps) / len(prompts)
        say(f"prompt {prompt + 1} of {len(prompts)}, {what}", share)

    for n, prompt in enumerate(prompts):
        at(n, 0, "backbone")
        reference = CacheReference.of(model, prompt, max_new_tokens=tokens)
        yield {"type": "trace", "prompt": n, **trace_line(model, reference)}
        for step, setting in enumerate(chosen, 1):
            at(n, step, setting.point)
            found = cache_line(model, reference, setting)
            yield {"type": "cache", "prompt": n, **setting.named(), **found}
        at(n, steps - 1, "safe exits")
        safe = earliest_safe_exits(model, reference.run)
        yield {"type": "safe", "prompt": n, "exits": safe.exits[1:], "stable": safe.stable[1:]}


def trace_line(model: RiverModel, reference: CacheReference) -> dict[str, Any]:
    """Mean similarity of each layer over the decode passes at full depth, and their number."""
    ids = [t.token_id for t in reference.run.tokens]
    fed = (*reference.run.prompt.token_ids, *ids[:-1])
    rows = full_trace(model, fed, len(ids))[1:]
    means = [round(fmean(layer), 6) for layer in zip(*rows, strict=True)]
    return {"count": len(rows), "similarity": means}


def cache_line(model: RiverModel, reference: CacheReference, setting: Setting) -> dict[str, Any]:
    """A setting's cache against the backbone's; every pass's exit layer and entropy."""
    run, found = reference.against(model, **setting.keywords())
    passes = run.tokens[1:]
    return {
        "prompt_depth": run.prompt.exit_layer,
        "cells": [
            [c.exit_layer, c.layer, round(c.key, 6), round(c.value, 6), c.count]
            for c in found.cells
        ],
        "pairs": [[round(number, 6) for number in pair] for pair in found.pairs],
        "exits": [t.exit_layer for t in passes],
        "entropies": [round(t.entropy, 6) for t in passes],
    }


@dataclass(frozen=True)
class Pooled:
    """A setting over all prompts.

    `layers`: layer -> mean (key, value) cosine of all rows. `skipped`: the same three numbers over
    the slots that the river wrote alone: mean key, mean value, lowest value of any (exit, layer).
    `r` with its number of pairs; `rho` None where every pass left alike.
    """

    layers: Mapping[int, tuple[float, float]]
    skipped: tuple[float, float, float] | None
    depth: float
    r: float | None
    pairs: int
    rho: float | None

    @classmethod
    def of(cls, lines: Sequence[Line]) -> Pooled:
        """From the `cache` lines of one setting; means weighted by rows."""
        cells = [cell for line in lines for cell in line["cells"]]
        pairs = [pair for line in lines for pair in line["pairs"]]
        exits, entropies = ([x for line in lines for x in line[n]] for n in ("exits", "entropies"))
        river = [cell for cell in cells if cell[1] > cell[0]]
        cosines: dict[tuple[int, int], list[Sequence[float]]] = {}
        for cell in river:
            cosines.setdefault((cell[0], cell[1]), []).append(cell)
        lowest = min((_mean(same)[1] for same in cosines.values()), default=0.0)
        at = sorted({cell[1] for cell in cells})
        return cls(
            layers={layer: _mean([c for c in cells if c[1] == layer]) for layer in at},
            skipped=(*_mean(river), lowest) if river else None,
            depth=fmean(exits),
            r=pearson([s for s, _ in pairs], [c for _, c in pairs]),
            pairs=len(pairs),
            rho=spearman(entropies, exits),
        )


def _mean(cells: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Mean key and value cosine of cells, weighted by their rows."""
    weights = [cell[4] for cell in cells]
    return fmean((c[2] for c in cells), weights), fmean((c[3] for c in cells), weights)


def pooled(lines: Sequence[Line]) -> dict[Setting, Pooled]:
    """Every setting of a study's lines over all prompts, in their order."""
    groups = by_setting([line for line in lines if line["type"] == "cache"])
    return {setting: Pooled.of(same) for setting, same in groups.items()}


@dataclass(frozen=True)
class Safe:
    """The earliest safe exits of all prompts; `byte_bound` is bytes(backbone) / bytes(River)."""

    mean: float
    stable_mean: float
    maximum: float
    stable_maximum: float
    byte_bound: float
    counts: Mapping[int, int]
    stable_counts: Mapping[int, int]

    @classmethod
    def of(cls, head: Line, lines: Sequence[Line]) -> Safe:
        """From a study's header and lines: means over passes, maxima averaged over prompts."""
        safe = [line for line in lines if line["type"] == "safe"]
        exits, stable = ([e for line in safe for e in line[n]] for n in ("exits", "stable"))
        reads = ReadBytes(**head["bytes"])
        return cls(
            mean=fmean(exits),
            stable_mean=fmean(stable),
            maximum=fmean(max(line["exits"]) for line in safe),
            stable_maximum=fmean(max(line["stable"]) for line in safe),
            byte_bound=reads.at(reads.layers) / reads.at(fmean(exits)),
            counts=Counter(exits),
            stable_counts=Counter(stable),
        )


def mean_similarity(lines: Sequence[Line]) -> list[float]:
    """Mean similarity of each layer over all prompts' decode passes at full depth."""
    traces = [line for line in lines if line["type"] == "trace"]
    weights = [line["count"] for line in traces]
    rows = zip(*(line["similarity"] for line in traces), strict=True)
    return [fmean(row, weights) for row in rows]


def report(head: Line, lines: Sequence[Line]) -> Iterator[str]:
    """All tables, as lines of Markdown."""
    found = pooled(lines)
    yield from _summary(found)
    yield ""
    yield from _safe_table(Safe.of(head, lines), head)
    yield ""
    yield from _layer_table(found, mean_similarity(lines))
    yield ""
    yield from _histogram(Safe.of(head, lines))


def _summary(found: Mapping[Setting, Pooled]) -> Iterator[str]:
    yield (
        "| setting | mean exit layer | keys, river's slots | values, river's slots "
        "| lowest values | r (Fig. 6a) | pairs | entropy and depth, rho |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for setting, p in found.items():
        cosines = [f"{x:.4f}" for x in p.skipped] if p.skipped else ["-"] * 3
        yield (
            f"| {setting.point} | {p.depth:.2f} | {' | '.join(cosines)} | {_shown(p.r, '.3f')} "
            f"| {p.pairs} | {_shown(p.rho, '.3f')} |"
        )
    yield f"| paper | | | {PAPER_VALUE_COSINE} | | {PAPER_R} | | |"


def _safe_table(safe: Safe, head: Line) -> Iterator[str]:
    layers, bits = head["num_layers"], head["weight_bits"]
    yield (
        "| earliest safe exit (Fig. 2) | ours | of all layers "
        f"| paper, of {PAPER_LAYERS} | of all layers |"
    )
    yield "|---|--:|--:|--:|--:|"
    rows = [
        ("mean over tokens", safe.mean, PAPER_MEAN),
        ("mean over tokens, all deeper exits safe too", safe.stable_mean, None),
        ("deepest of a sequence, mean", safe.maximum, PAPER_MAXIMUM),
        ("deepest of a sequence, all deeper exits safe too", safe.stable_maximum, None),
    ]
    for name, ours, paper in rows:
        theirs = "- | -" if paper is None else f"{paper} | {paper / PAPER_LAYERS:.0%}"
        yield f"| {name} | {ours:.2f} | {ours / layers:.0%} | {theirs} |"
    name = f"byte bound, weights in {bits['backbone']:g} and {bits['river']:g} bits"
    yield f"| {name} | {safe.byte_bound:.2f} x | | | |"


def _layer_table(found: Mapping[Setting, Pooled], similarity: Sequence[float]) -> Iterator[str]:
    heads = [f"{side}, {setting.point}" for setting in found for side in ("keys", "values")]
    yield f"| layer | mean similarity (Fig. 6b) | {' | '.join(heads)} |"
    yield "|--:|--:|" + "--:|" * len(heads)
    for layer, mean in enumerate(similarity, 1):
        cosines = [f"{x:.4f}" for p in found.values() for x in p.layers[layer]]
        yield f"| {layer} | {mean:.4f} | {' | '.join(cosines)} |"


def _histogram(safe: Safe) -> Iterator[str]:
    yield "| exit layer | tokens first safe here | and safe from here on |"
    yield "|--:|--:|--:|"
    for layer in sorted({*safe.counts, *safe.stable_counts}):
        first, stable = (counts.get(layer, 0) for counts in (safe.counts, safe.stable_counts))
        yield f"| {layer} | {first} | {stable} |"


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
