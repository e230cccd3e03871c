"""What could be loaded here, and whether it would fit, before anything is loaded.

Reads configurations, never weights, and asks no network. The folders are sources.py's business,
the arithmetic footprint.py's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import ModelUnavailable, RiverError
from .families import block_shapes, positions, supported
from .footprint import Layout, footprint
from .hub_folder import read_config
from .loading import DEFAULT_CAPACITY
from .machine import FreeMemory
from .packaged import GEMMA3, SMOLLM2
from .shapes import SHAPES, ShapeSpec
from .sources import (
    DEFAULT,
    cached_snapshots,
    converted_models,
    folder_bytes,
    known_models,
    local_folder,
)

# names that are known before they are fetched -> their sizes
NAMED = {
    DEFAULT: "smollm2-135m",
    SMOLLM2.name: "smollm2-135m",
    GEMMA3.name: "gemma-3-270m",
}


@dataclass(frozen=True)
class Listed:
    """A model that `load` takes by `name`.

    Bytes: `size` on disk or to be downloaded, `needed` when loaded as `load` does it by default in
    16 bits (backbone, river, KV cache), None with the reason in `problem`. `fits` the memory that
    is free now; None where one of the two is unknown.
    """

    name: str
    description: str
    cached: bool
    size: int
    needed: int | None
    fits: bool | None
    problem: str = ""


def inventory(free: FreeMemory) -> list[Listed]:
    """The known names, then River's converted models, then the Hugging Face cache."""
    return [*_known(free), *_converted(free), *_snapshots(free)]


def sizes_of(folder: Path, name: str) -> tuple[ShapeSpec, int]:
    """Sizes of the model in `folder`, called `name`, and the positions it has, by its config.json.

    Raises ModelUnavailable (no usable configuration) or UnsupportedModel.
    """
    config = read_config(folder)
    spec = ShapeSpec(
        name=name,
        block=block_shapes(config)[0],
        layers=config.num_hidden_layers,
        vocab=config.vocab_size,
        tied=bool(config.tie_word_embeddings),
        rope_theta=float((config.rope_parameters or {}).get("rope_theta", 10_000.0)),
    )
    return spec, positions(config)[1]


def find_sizes(name: str) -> tuple[ShapeSpec, int | None]:
    """Sizes and positions of the model called `name`, from what is on this machine.

    The known names need not be fetched yet; their positions are None then. Raises ModelUnavailable
    (not here) or what `sizes_of` raises.
    """
    folder = local_folder(name)
    if folder is not None:
        return sizes_of(folder, name)
    if name in NAMED:
        return SHAPES[NAMED[name]], None
    raise ModelUnavailable(
        f"{name} is not on this machine; fetch it with 'python -m river_core fetch {name}', or "
        f"give a folder, or --shape with one of {', '.join(SHAPES)}."
    )


def _listed(
    folder: Path | None, free: FreeMemory, name: str, description: str, size: int
) -> Listed:
    try:
        spec, longest = find_sizes(name) if folder is None else sizes_of(folder, name)
        tokens = DEFAULT_CAPACITY if longest is None else min(DEFAULT_CAPACITY, longest)
        needed = footprint(spec, Layout(), tokens=tokens).total
    except RiverError as error:
        return Listed(name, description, folder is not None, size, None, None, str(error))
    return Listed(name, description, folder is not None, size, needed, free.holds(needed))


def _known(free: FreeMemory) -> Iterator[Listed]:
    for known in known_models():
        yield _listed(known.folder, free, known.name, known.description, known.size)


def _converted(free: FreeMemory) -> Iterator[Listed]:
    for folder, stored in converted_models():
        text = f"converted from a GGUF file, stored as {stored}"
        yield _listed(folder, free, str(folder), text, folder_bytes(folder))


def _snapshots(free: FreeMemory) -> Iterator[Listed]:
    """Families that River does not run are left out: other programs fill that cache, too."""
    for name, folder in cached_snapshots():
        if _family(folder) in supported():
            text = "in the Hugging Face cache"
            yield _listed(folder, free, name, text, folder_bytes(folder))


def _family(folder: Path) -> object:
    """The `model_type` that config.json names; None where it cannot be read."""
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):
        return None
