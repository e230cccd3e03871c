"""What a model takes, by part, at every number of resident layers: tables for the page to look up.

All numbers are `river_core.footprint`'s; the page adds the parts that it shows. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from river_core.footprint import (
    BACKBONE,
    Layout,
    bits_per_weight,
    footprint,
    full_quantization,
    kv_bytes,
    parameters,
)
from river_core.settings import DEFAULT_RIVER
from river_core.shapes import SHAPES, ShapeSpec

from .wording import say

CONTEXTS = (1000, 8000, 32000)  # tokens that the KV cache holds
PARTS = ("backbone", "river", "embedding", "head", "norms", "kv", "buffers")  # as they are stacked
BY_LAYER = ("backbone", "river", "norms")  # parts that a number of resident layers may change
PACKAGED = {"smollm2-135m": "smollm2-135m-packaged"}
HUB = {  # shape -> what `load` takes
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
    "phi-4-mini": "microsoft/Phi-4-mini-instruct",
    "ministral-3-8b": "mistralai/Ministral-3-8B-Instruct-2512",
    "mistral-small-24b": "mistralai/Mistral-Small-24B-Instruct-2501",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B-Instruct",
}


def listed(names: Mapping[str, str] = HUB) -> list[dict[str, Any]]:
    """The tables of the models of `HUB`, none of them loaded, with River's usual settings."""
    layout = Layout(DEFAULT_RIVER)
    return [ledger(SHAPES[shape], layout, name) for shape, name in names.items()]


def ledger(spec: ShapeSpec, layout: Layout, name: str, capacity: int = 0) -> dict[str, Any]:
    """One model's table; `name` is what `load` takes.

    `resident`: the numbers of layers that are possible, and in `rows` for each of them the bytes of
    `BY_LAYER`. `fixed`: bytes that no choice moves. `tokens`: the contexts, `capacity` last where
    it is given, and for each of them the bytes of `kv` and `buffers`, and in `marks` all bytes of
    the backbone alone, of everything resident and of the river alone.
    """
    possible = list(range(max(layout.entry_layer - 1, 0), spec.layers + 1))
    rows = [footprint(spec, _resident(layout, k)).parts for k in possible]
    tokens = [*CONTEXTS, *([capacity] if capacity else [])]
    cached = [footprint(spec, layout, tokens=n).parts for n in tokens]
    marks = {"alone": BACKBONE, "all": layout, "river": full_quantization(layout)}
    return {
        "name": name,
        "shape": spec.name,
        "layers": spec.layers,
        "about": say(
            "ledger.about",
            layers=spec.layers,
            parameters=f"{parameters(spec) / 1e9:.2f}",
            bits=f"{bits_per_weight(layout.river or DEFAULT_RIVER):g}",
            entry=layout.entry_layer,
        ),
        "fixed": {part: rows[0][part] for part in ("embedding", "head")},
        "resident": possible,
        "rows": [[row[part] for part in BY_LAYER] for row in rows],
        "tokens": tokens,
        "kv": [row["kv"] for row in cached],
        "buffers": [row["buffers"] for row in cached],
        "kv_per_thousand": 1000 * kv_bytes(spec),
        "marks": {
            mark: [footprint(spec, one, tokens=n).total for n in tokens]
            for mark, one in marks.items()
        },
    }


def view(loaded: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the page's part "ledger" is sent, once: the loaded model's table, if there is one."""
    return {"loaded": loaded, "models": listed(), "by_layer": BY_LAYER, "parts": PARTS}


def unloaded() -> dict[str, Any]:
    """The same for a page that can load none: the packaged model first, which its runs are of."""
    return view() | {"models": listed(PACKAGED | HUB)}


def _resident(layout: Layout, layers: int) -> Layout:
    return Layout(layout.river, layout.entry_layer, layers, layout.metadata_bits)
