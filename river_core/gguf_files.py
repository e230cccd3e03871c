"""A GGUF file -> a folder in hub layout with 16-bit safetensors.

Tensors are read and dequantised with gguf's own code; transformers (through families.py) gives the
configuration's class and the tokenizer. Knows nothing of where files come from or of our engine.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .cache_paths import cache_root
from .errors import UnsupportedModel
from .gguf_metadata import RopeFactors, apply_llama3_rope, model_settings
from .gguf_reader import GgufFile, check_magic, open_gguf
from .gguf_tokenizers import build_backend, complete_tokenizer, end_ids
from .hub_folder import gguf_config_and_tokenizer
from .model_store import Progress, publish

if TYPE_CHECKING:
    from gguf import ReaderTensor
    from transformers import PretrainedConfig

    Array = npt.NDArray[Any]

FORMAT = "1"  # of the folders made here; a change makes older ones be built again
_SHARD_BYTES = 2 * 2**30
_FP16_MAX = 65504.0
_EMBED, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class _Plan:
    """Hub name -> tensor of the file and the letters of its shape; and its RoPE divisors."""

    tensors: dict[str, ReaderTensor]
    shapes: dict[str, str]
    factors: RopeFactors


def convert_cached(path: Path, progress: Progress | None = None) -> tuple[Path, dict[str, object]]:
    """Convert a user's GGUF file once and return (folder in hub layout, facts about it).

    The folder lies in the cache under the file's path; another size or modification time of the
    file makes it be built again. Raises what `open_gguf` and `convert` raise.
    """
    check_magic(path)
    path = path.resolve()
    stat = path.stat()
    place = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    folder = cache_root().absolute() / "models" / f"gguf-{path.stem[:60]}-{place}"
    key = f"gguf {FORMAT} {stat.st_size} {stat.st_mtime_ns}"
    return folder, publish(folder, key, lambda out: convert(path, out, progress), progress)


def convert(path: Path, out: Path, progress: Progress | None = None) -> dict[str, object]:
    """Write config, tokenizer, generation settings and safetensors of `path` into folder `out`.

    Linear weights, embedding and head become fp16; norms become fp16 only where that loses
    nothing, else fp32. Returns facts to keep: `stored`, the file's main tensor type. Raises
    ModelUnavailable for a damaged file, UnsupportedModel for tensors or values that have no place.
    """
    report = progress or (lambda text, fraction: None)
    report(f"reading {path.name}", None)
    source = open_gguf(path)
    plan = _plan(source)
    settings = model_settings(
        source, int(plan.tensors[_EMBED].shape[1]), _HEAD not in plan.tensors, plan.factors
    )
    report("rebuilding the tokenizer", None)  # half a minute for the quarter million of Gemma
    config, tokenizer = gguf_config_and_tokenizer(
        path, source.architecture.model_type, settings, build_backend(source)
    )
    if plan.factors.freqs is not None:
        apply_llama3_rope(config, plan.factors.freqs)
    complete_tokenizer(tokenizer, source.metadata, config.max_position_embeddings)
    _check_shapes(plan, config, path)
    if len(tokenizer) > config.vocab_size:
        raise UnsupportedModel(
            f"the GGUF file {path.name} is not complete: its tokenizer has {len(tokenizer)} tokens "
            f"for {config.vocab_size} rows of the embedding; choose another file of this model."
        )
    config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    _write_generation_config(out, config, end_ids(tokenizer, source.metadata))
    _write_tensors(plan.tensors, _Layout(source, config), out, report)
    stored = Counter[str]()
    for tensor in plan.tensors.values():
        stored[tensor.tensor_type.name] += tensor.n_elements if "blk." in tensor.name else 0
    return {"stored": stored.most_common(1)[0][0]}


def _plan(source: GgufFile) -> _Plan:
    """The place of every tensor of the file, none unknown and none missing."""
    architecture = source.architecture
    places = architecture.places(source.number("block_count"))
    tensors = {tensor.name: tensor for tensor in source.reader.tensors}
    divisors = {name: tensors.pop(name, None) for name in architecture.rope}
    for name in places:
        if name not in tensors:
            raise UnsupportedModel(
                f"the GGUF file {source.path.name} lacks the tensor {name!r} of a "
                f"{architecture.name} model; choose another file of this model."
            )
    places |= architecture.optional
    for name in tensors:
        if name not in places:
            raise UnsupportedModel(
                f"the GGUF file {source.path.name} holds a tensor {name!r} that a "
                f"{architecture.name} model does not have here; choose the Hugging Face version of "
                "this model."
            )
    found = {name: place for name, place in places.items() if name in tensors}
    return _Plan(
        {hub: tensors[name] for name, (hub, _) in found.items()},
        dict(found.values()),
        RopeFactors(*(_list(divisors.get(f"rope_{name}.weight")) for name in _DIVISORS)),
    )


_DIVISORS = ("freqs", "factors_long", "factors_short")


def _list(tensor: ReaderTensor | None) -> list[float] | None:
    return None if tensor is None else tensor.data.astype(float).tolist()


def _check_shapes(plan: _Plan, config: PretrainedConfig, path: Path) -> None:
    d, f, h = config.hidden_size, config.intermediate_size, config.head_dim
    q, k = h * config.num_attention_heads, h * config.num_key_value_heads
    sizes = {"d": d, "f": f, "h": h, "q": q, "k": k, "a": q + 2 * k, "g": 2 * f}
    sizes["v"] = config.vocab_size
    for name, tensor in plan.tensors.items():
        found = tuple(reversed(tensor.shape.tolist()))
        if found != tuple(sizes[letter] for letter in plan.shapes[name]):
            raise UnsupportedModel(
                f"the GGUF file {path.name} holds {tensor.name!r} with the shape {found}, which "
                "its own settings contradict; choose another file of this model."
            )


def _write_generation_config(out: Path, config: PretrainedConfig, ends: list[int]) -> None:
    content = {
        "bos_token_id": config.bos_token_id,
        "eos_token_id": ends if len(ends) > 1 else config.eos_token_id,
        "pad_token_id": config.pad_token_id,
    }
    content = {name: value for name, value in content.items() if value is not None}
    (out / "generation_config.json").write_text(json.dumps(content, indent=2), encoding="utf-8")


def unpermute(rows: Array, heads: int) -> Array:
    """Undo llama.cpp's order of q and k rows, [heads * head_dim, columns] in and out.

    There each head's rows alternate between the two halves that RoPE pairs: row 2i + j of a head
    is row j * head_dim / 2 + i of the hub checkpoint (transformers' LlamaTensorProcessor).
    """
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(rows.shape)


@dataclass(frozen=True)
class _Layout:
    """How the file stores what the hub stores otherwise."""

    source: GgufFile
    config: PretrainedConfig

    def undo(self, name: str, values: Array) -> Array:
        """The fp32 values under a hub name as the hub has them."""
        architecture = self.source.architecture
        if architecture.permuted and "q_proj" in name:
            return unpermute(values, self.config.num_attention_heads)
        if architecture.permuted and "k_proj" in name:
            return unpermute(values, self.config.num_key_value_heads)
        if architecture.norm_offset and name.endswith("norm.weight"):
            return values - np.float32(architecture.norm_offset)
        return values


def _values(name: str, tensor: ReaderTensor, layout: _Layout) -> Array:
    """The tensor in hub layout: fp16, or fp32 for a vector (norm, bias) that fp16 would change."""
    from gguf import dequantize

    try:
        full = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise UnsupportedModel(
            f"the GGUF file stores {tensor.name!r} as {tensor.tensor_type.name}, which cannot be "
            "read; choose a Q4, Q8 or F16 file of this model."
        ) from error
    full = layout.undo(name, full)
    with np.errstate(over="ignore"):
        half = full.astype(np.float16)
    if full.ndim == 1 and not np.array_equal(half.astype(np.float32), full):
        return np.ascontiguousarray(full, dtype=np.float32)
    if not np.isfinite(half).all():
        raise UnsupportedModel(
            f"the GGUF file holds values in {tensor.name!r} that are not finite in 16 bits "
            f"(above {_FP16_MAX:.0f}); choose another file of this model."
        )
    return np.ascontiguousarray(half)


def _shards(plan: dict[str, ReaderTensor]) -> Iterator[list[str]]:
    """Names in file order, in groups of at most about 2 GiB of fp16."""
    group: list[str] = []
    size = 0
    for name, tensor in plan.items():
        if group and size + 2 * tensor.n_elements > _SHARD_BYTES:
            yield group
            group, size = [], 0
        group.append(name)
        size += 2 * int(tensor.n_elements)
    yield group


def _write_tensors(
    plan: dict[str, ReaderTensor], layout: _Layout, out: Path, report: Progress
) -> None:
    from safetensors.numpy import save_file

    groups = list(_shards(plan))
    index: dict[str, str] = {}
    total = 0
    for number, group in enumerate(groups, 1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        file = "model.safetensors" if len(groups) == 1 else file
        values: dict[str, Array] = {}
        for name in group:
            report("converting the weights to 16 bits", len(index) / len(plan))
            values[name] = _values(name, plan[name], layout)
            index[name] = file
        total += sum(value.nbytes for value in values.values())
        save_file(values, out / file, metadata={"format": "pt"})
        (out / file).chmod(0o644)  # it is written for its owner alone, a cache may be shared
    if len(groups) > 1:
        content = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2)
        (out / "model.safetensors.index.json").write_text(content, encoding="utf-8")
    report("converting the weights to 16 bits", 1.0)
