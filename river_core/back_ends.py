"""What each quantization back end makes of a model: error, agreement, bits, seconds to build.

A consumer of the loop. Every token leaves at the same layer, so that only the river differs; the
backbone's own tokens are fed. Measures no speed: the kernels of equal bits are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from .activation_aware import in_backbone_units
from .cells import Setting, Study, quality_rows
from .errors import SettingsError
from .footprint import bits_per_weight
from .kv_error import CacheReference
from .model import RiverModel
from .resumable import Lines
from .settings import QuantSpec
from .sweep import Say

EXIT_LAYERS = (2, 4, 8)
SPECS = (
    *(QuantSpec(4, 64, method) for method in ("rtn", "hqq", "gptq", "awq")),
    *(QuantSpec(3, 64, method) for method in ("hqq", "gptq")),
    *(QuantSpec(2, 64, method) for method in ("hqq", "gptq")),
)
MADE = "made"


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
    say: Say,
) -> None:
    """Append what the file lacks of one back end: how its river was made, then its agreement.

    Raises SettingsError where the model cannot have such a river, or the file holds another model.
    """
    model = load(spec)
    study = Study(file, spec.label, model, prompts, tokens, say)
    study.begin()
    if not file.of(spec.label, MADE):
        say(f"{spec.label}: the errors of its weights and of its cache", None)
        file.append({"part": spec.label, "type": MADE, **made(model, prompts[0], tokens)})
    study.quality(settings(exit_layers))


@torch.inference_mode()
def made(model: RiverModel, prompt: str, tokens: int) -> dict[str, Any]:
    """Bits per weight as the int4 kernels keep them, seconds to build, errors of the river.

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
        "bits": bits_per_weight(model.info.quant),
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
    """A line per back end that the file has; match and KL at each exit layer."""
    layers = sorted({line["exit_layer"] for s in specs for line in file.of(s.label, "cell")})
    if not layers:
        raise SettingsError("the file holds no back end of these yet.")
    heads = ["back end", "bits", "built in s", "weight error", "key cosine", "value cosine"]
    heads += [f"match at {e}" for e in layers] + [f"KL at {e}" for e in layers]
    yield f"| {' | '.join(heads)} |"
    yield "|---" + "|--:" * (len(heads) - 1) + "|"
    for spec in specs:
        lines = file.of(spec.label, MADE)
        if lines:
            yield f"| {' | '.join(_cells(spec, lines[0], file, layers))} |"


def _cells(
    spec: QuantSpec, built: Mapping[str, Any], file: Lines, layers: Sequence[int]
) -> list[str]:
    rows = {row["setting"].exit_layer: row for row in quality_rows(file.of(spec.label, "cell"))}
    stored = f"{built['bits']:g}" + ("" if spec.bits == 4 else f" ({spec.bits} used)")
    return [
        f"`{spec.label}`",
        stored,
        f"{built['seconds']:.0f}",
        f"{built['weight_error']:.4f}",
        f"{built['key_cosine']:.4f}",
        f"{built['value_cosine']:.4f}",
        *(f"{rows[e]['match']:.3f}" for e in layers),
        *(f"{rows[e]['kl']:.4f}" for e in layers),
    ]
