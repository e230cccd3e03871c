"""What each quantization back end makes of a model: error, agreement, bits, seconds to build.

A consumer of the loop. Every token leaves at the same layer, so that only the river differs; the
backbone's own tokens are fed. Then the same by similarity, at one threshold. Speed is
back_end_speed.py's, and is shown beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from . import back_end_speed
from .activation_aware import in_backbone_units
from .cell_rows import quality_rows
from .cells import Setting, Study
from .errors import SettingsError
from .footprint import bits_per_weight
from .kv_error import CacheReference
from .model import RiverModel
from .resumable import Lines
from .settings import DecodeSettings, QuantSpec
from .sweep import Say
from .thresholds import resolved

EXIT_LAYERS = (2, 4, 8)
SPECS = (
    *(QuantSpec(4, 64, method) for method in ("rtn", "hqq", "gptq", "awq")),
    QuantSpec(4, 64, "gptq", {"budget": 4.6}),
    *(QuantSpec(bits, 64, method) for bits in (8, 3, 2) for method in ("hqq", "gptq")),
)
MADE, THRESHOLD = "made", "threshold"


@dataclass(frozen=True)
class Asked:
    """The threshold of the runs by similarity: a number, "auto", or None for the model's own."""

    threshold: float | str | None = None
    target_match: float = DecodeSettings.target_match

    def of(self, model: RiverModel) -> tuple[float, str]:
        """The number in force for this model and river, and where it is from.

        Raises SettingsError for "auto" where no calibration is stored.
        """
        given = {"threshold": self.threshold, "target_match": self.target_match}
        found = resolved(model, prefill="full", **given)
        return found.value, found.origin or ("default" if self.threshold is None else "given")


def settings(exit_layers: Sequence[int]) -> list[Setting]:
    """Every token leaves after one of these layers, the prompt after the last."""
    return [Setting("river", exit_layer=e, prefill="full") for e in exit_layers]


def measure(
    file: Lines,
    spec: QuantSpec,
    load: Callable[[QuantSpec], RiverModel],
    prompts: Sequence[str],
    tokens: int,
    exit_layers: Sequence[int],
    *,
    asked: Asked = Asked(),
    say: Say,
) -> None:
    """Append what the file lacks of one back end: how its river was made, then its agreement.

    Raises SettingsError where the model cannot have such a river, the file holds another model, or
    there is no such threshold.
    """
    model = load(spec)
    threshold, origin = asked.of(model)
    study = Study(file, spec.label, model, prompts, tokens, say)
    study.begin()
    if not file.of(spec.label, MADE):
        say(f"{spec.label}: the errors of its weights and of its cache", None)
        file.append({"part": spec.label, "type": MADE, **made(model, prompts[0], tokens)})
    study.quality([*settings(exit_layers), at(threshold)])
    line = {"threshold": threshold, "origin": origin}
    if [{n: old[n] for n in line} for old in file.of(spec.label, THRESHOLD)[-1:]] != [line]:
        file.append({"part": spec.label, "type": THRESHOLD, **line})


def at(threshold: float) -> Setting:
    """Every token leaves by similarity, the prompt after the last layer."""
    return Setting("river", threshold=threshold, prefill="full")


@torch.inference_mode()
def made(model: RiverModel, prompt: str, tokens: int) -> dict[str, Any]:
    """Bits per weight as the kernels keep them, seconds to build, errors of the river.

    `weight_error` is the relative error of a layer's linears, a mean over the layers; the cosines
    are those of the cached keys and values that the river wrote where tokens leave at the first of
    EXIT_LAYERS.
    """
    first = model.info.entry_layer
    errors = [_weight_error(model, n) for n in range(first, model.num_layers + 1)]
    reference = CacheReference.of(model, prompt, max_new_tokens=tokens)
    leave = settings([max(first - 1, min(EXIT_LAYERS))])[0]
    found = reference.against(model, **leave.keywords())[1]
    deeper = [cell for cell in found.layers if cell.layer > max(first - 1, min(EXIT_LAYERS))]
    return {
        "bits": round(model.info.river_bits or bits_per_weight(model.info.quant), 3),
        "seconds": round(model.info.river_seconds, 1),
        "weight_error": round(fmean(errors), 5),
        "key_cosine": round(fmean(cell.key for cell in deeper), 5),
        "value_cosine": round(fmean(cell.value for cell in deeper), 5),
    }


def _weight_error(model: RiverModel, layer: int) -> float:
    """Frobenius norm of the error of all four linears over that of the weights."""
    own, twin = model.layer(layer), model.twin(layer)
    a, b = ({n: f.dense() for n, f in side.linears.items()} for side in (own, twin))
    if model.info.quant.own_norms:
        b = in_backbone_units(a, own.small, b, twin.small)
    lost = sum(float((a[name] - b[name]).square().sum()) for name in a)
    return math.sqrt(lost / sum(float(w.square().sum()) for w in a.values()))


def table(file: Lines, specs: Sequence[QuantSpec]) -> Iterator[str]:
    """A line per back end that the file has, a dash for what it lacks, and what it was measured at.

    Match and KL at each exit layer, then match and mean exit layer at the threshold, and speed.
    """
    cells = [cell for s in specs for cell in file.of(s.label, "cell")]
    layers = sorted({cell["exit_layer"] for cell in cells if "exit_layer" in cell})
    if not layers:
        raise SettingsError("the file holds no back end of these yet.")
    thresholds = {s.label: line for s in specs for line in file.of(s.label, THRESHOLD)}
    default = all(line["origin"] == "default" for line in thresholds.values())
    heads = ["back end", "bits", "built in s", "weight error", "key cosine", "value cosine"]
    heads += [f"match at {e}" for e in layers] + [f"KL at {e}" for e in layers]
    heads += ["match at default" if default else "match at threshold", "mean exit layer", "tok/s"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" + "|--:" * (len(heads) - 1) + "|"
    rates = back_end_speed.rates(file)
    for spec in specs:
        if made := file.of(spec.label, MADE):
            row = [*_cells(spec, made[0], file, layers), *_by_threshold(file, spec.label)]
            yield f"| {' | '.join([*row, rates.get(spec.label, '-')])} |"
    below = [*_threshold_sentence(thresholds), *back_end_speed.sentence(file)]
    yield from (line for sentence in below for line in ("", sentence))


def _cells(
    spec: QuantSpec, built: Mapping[str, Any], file: Lines, layers: Sequence[int]
) -> list[str]:
    rows = {row["setting"].exit_layer: row for row in quality_rows(file.of(spec.label, "cell"))}
    stored = f"{built['bits']:g}" + ("" if spec.bits == spec.code_bits else f" ({spec.bits} used)")
    return [
        f"`{spec.label}`",
        stored,
        f"{built['seconds']:.0f}",
        f"{built['weight_error']:.4f}",
        f"{built['key_cosine']:.4f}",
        f"{built['value_cosine']:.4f}",
        *(f"{rows[e]['match']:.3f}" if e in rows else "-" for e in layers),
        *(f"{rows[e]['kl']:.4f}" if e in rows else "-" for e in layers),
    ]


def _by_threshold(file: Lines, label: str) -> list[str]:
    """Match and mean exit layer at the threshold that was asked for last."""
    lines = file.of(label, THRESHOLD)
    if not lines:
        return ["-", "-"]
    wanted = at(lines[-1]["threshold"])
    (row,) = quality_rows(c for c in file.of(label, "cell") if Setting.of(c) == wanted)
    return [f"{row['match']:.3f}", f"{row['mean_exit_layer']:.2f}"]


def _threshold_sentence(lines: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Which thresholds those are, by back end where they differ."""
    words = {label: f"{line['threshold']:g} ({line['origin']})" for label, line in lines.items()}
    if not words:
        return
    alike = len(set(words.values())) == 1
    shown = [*words.values()][:1] if alike else [f"`{k}` {word}" for k, word in words.items()]
    yield f"Threshold of policy river, the prompt after the last layer: {', '.join(shown)}."
