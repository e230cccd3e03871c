"""What a model folder in Hugging Face layout must hold. Reads names and indexes, never weights."""

from __future__ import annotations

import json
from pathlib import Path


def folder_problem(folder: Path) -> str | None:
    """What `folder` lacks to be a model ("config.json is missing"), or None when it is complete.

    Complete means config.json and model.safetensors, or every shard that the index names.
    """
    if not (folder / "config.json").is_file():
        return "config.json is missing"
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _shard_problem(index)
    if (folder / "model.safetensors").is_file():
        return None
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        return "its weights are pickle files, which are never loaded; safetensors are needed"
    return "model.safetensors is missing"


def _shard_problem(index: Path) -> str | None:
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return f"{index.name} cannot be read"
    for shard in sorted(shards):
        if Path(shard).name != shard or not (index.parent / shard).is_file():
            return f"{shard} is missing"
    return None if shards else f"{index.name} names no weights"
