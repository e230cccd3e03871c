"""A GGUF file of architecture llama -> a folder in hub layout with 16-bit safetensors.

Tensors are read and dequantised with gguf's own code; transformers (through families.py) gives
configuration and tokenizer. Knows nothing of where files come from or of our engine.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .cache_paths import cache_root
from .errors import ModelUnavailable, UnsupportedModel
from .gguf_metadata import complete_config, complete_tokenizer
from .hub_folder import gguf_config_and_tokenizer
from .model_store import Progress, publish
from .tensor_names import TENSOR_NAMES

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor
    from transformers import PretrainedConfig

    Array = npt.NDArray[Any]

FORMAT = "1"  # of the folders made here; a change makes older ones be built again
_SHARD_BYTES = 2 * 2**30
_FP16_MAX = 65504.0
_LAYER_TENSORS = {
    "attn_norm": TENSOR_NAMES.attn_norm,
    "attn_q": TENSOR_NAMES.q,
    "attn_k": TENSOR_NAMES.k,
    "attn_v": TENSOR_NAMES.v,
    "attn_output": TENSOR_NAMES.o,
    "ffn_norm": TENSOR_NAMES.ffn_norm,
    "ffn_gate": TENSOR_NAMES.gate,
    "ffn_up": TENSOR_NAMES.up,
    "ffn_down": TENSOR_NAMES.down,
}


@dataclass(frozen=True)
class GgufFile:
    """An opened GGUF file: its path, its scalar metadata, and gguf's reader over its tensors."""

    path: Path
    metadata: dict[str, Any]
    reader: GGUFReader

    def number(self, key: str) -> int:
        """The whole number stored under ``llama.<key>``; UnsupportedModel where there is none."""
        value = self.metadata.get(f"llama.{key}")
        if not isinstance(value, int) or isinstance(value, bool):
            raise UnsupportedModel(
                f"the GGUF file {self.path.name} does not state llama.{key} as one number for all "
                "layers; choose another file of this model."
            )
        return value


def open_gguf(path: Path) -> GgufFile:
    """Open a GGUF file of architecture llama and read its header.

    Raises ModelUnavailable (missing, not a GGUF file, truncated) and UnsupportedModel (version,
    byte order, architecture).
    """
    _check_magic(path)
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        metadata = {
            name: field.contents()
            for name, field in reader.fields.items()
            if field.types and field.types[0].name != "ARRAY"
        }
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError, TypeError) as error:
        raise ModelUnavailable(
            f"the GGUF file {path} is cut off or damaged; download it again."
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UnsupportedModel(
            f"the GGUF file {path.name} holds a model of architecture {architecture!r}, but only "
            "'llama' is supported; choose another file."
        )
    return GgufFile(path, metadata, reader)


def _unreadable(path: Path, error: OSError) -> ModelUnavailable:
    return ModelUnavailable(
        f"the GGUF file {path} cannot be read ({error.strerror or type(error).__name__}); check "
        "the path and its permissions."
    )


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except FileNotFoundError:
        raise ModelUnavailable(f"the GGUF file {path} does not exist; check the path.") from None
    except OSError as error:
        raise _unreadable(path, error) from error
    if head[:4] != b"GGUF"[: len(head[:4])] or not head:
        raise ModelUnavailable(
            f"{path} is not a GGUF file (it does not begin with 'GGUF'); give another file."
        )
    if len(head) < 8:
        raise ModelUnavailable(f"the GGUF file {path} is cut off or damaged; download it again.")
    version = struct.unpack("<I", head[4:])[0]
    if version not in (2, 3):
        raise UnsupportedModel(
            f"the GGUF file {path.name} is of a version or byte order that is not supported; use "
            "a little-endian file of version 2 or 3."
        )


def convert_cached(path: Path, progress: Progress | None = None) -> tuple[Path, dict[str, object]]:
    """Convert a user's GGUF file once and return (folder in hub layout, facts about it).

    The folder lies in the cache under the file's path; another size or modification time of the
    file makes it be built again. Raises what `open_gguf` and `convert` raise.
    """
    _check_magic(path)
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
    plan, rope_factors = _plan(source)
    config, tokenizer = gguf_config_and_tokenizer(path)
    complete_config(config, source.metadata, rope_factors)
    complete_tokenizer(tokenizer, source.metadata, config.max_position_embeddings)
    config.vocab_size = int(plan[TENSOR_NAMES.embed].shape[1])
    config.tie_word_embeddings = TENSOR_NAMES.head not in plan
    _check_shapes(plan, config, path)
    config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    _write_generation_config(out, config)
    _write_tensors(plan, config, out, report)
    stored = Counter[str]()
    for tensor in plan.values():
        stored[tensor.tensor_type.name] += tensor.n_elements if "blk." in tensor.name else 0
    return {"stored": stored.most_common(1)[0][0]}


def _plan(source: GgufFile) -> tuple[dict[str, ReaderTensor], list[float] | None]:
    """Hub name -> tensor of the file, none unknown and none missing; and its RoPE factors."""
    names = {"token_embd.weight": TENSOR_NAMES.embed, "output_norm.weight": TENSOR_NAMES.final_norm}
    for layer in range(source.number("block_count")):
        for short, pattern in _LAYER_TENSORS.items():
            names[f"blk.{layer}.{short}.weight"] = pattern.format(layer=layer)
    tensors = {tensor.name: tensor for tensor in source.reader.tensors}
    factors = tensors.pop("rope_freqs.weight", None)
    for name in names:
        if name not in tensors:
            raise UnsupportedModel(
                f"the GGUF file {source.path.name} lacks the tensor {name!r} of a Llama model; "
                "choose another file of this model."
            )
    names["output.weight"] = TENSOR_NAMES.head
    for name in tensors:
        if name not in names:
            raise UnsupportedModel(
                f"the GGUF file {source.path.name} holds a tensor {name!r} that a Llama model does "
                "not have; choose the Hugging Face version of this model."
            )
    plan = {hub: tensors[name] for name, hub in names.items() if name in tensors}
    return plan, None if factors is None else factors.data.astype(float).tolist()


def _check_shapes(plan: dict[str, ReaderTensor], config: PretrainedConfig, path: Path) -> None:
    d, f = config.hidden_size, config.intermediate_size
    q, kv = (
        config.head_dim * heads
        for heads in (config.num_attention_heads, config.num_key_value_heads)
    )
    wanted = {"q_proj": (q, d), "k_proj": (kv, d), "v_proj": (kv, d), "o_proj": (d, q)}
    wanted |= {"gate_proj": (f, d), "up_proj": (f, d), "down_proj": (d, f)}
    wanted |= {"embed_tokens": (config.vocab_size, d), "lm_head": (config.vocab_size, d)}
    for name, tensor in plan.items():
        found = tuple(reversed(tensor.shape.tolist()))
        if found != wanted.get(name.split(".")[-2], (d,)):
            raise UnsupportedModel(
                f"the GGUF file {path.name} holds {tensor.name!r} with the shape {found}, which "
                "its own settings contradict; choose another file of this model."
            )


def _write_generation_config(out: Path, config: PretrainedConfig) -> None:
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    content = {name: getattr(config, name, None) for name in names}
    content = {name: value for name, value in content.items() if value is not None}
    (out / "generation_config.json").write_text(json.dumps(content, indent=2), encoding="utf-8")


def unpermute(rows: Array, heads: int) -> Array:
    """Undo llama.cpp's order of q and k rows, [heads * head_dim, columns] in and out.

    There each head's rows alternate between the two halves that RoPE pairs: row 2i + j of a head
    is row j * head_dim / 2 + i of the hub checkpoint (transformers' LlamaTensorProcessor).
    """
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def _values(name: str, tensor: ReaderTensor, config: PretrainedConfig) -> Array:
    """The tensor in hub layout: fp16, or fp32 for a norm that fp16 would change."""
    from gguf import dequantize

    try:
        full = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise UnsupportedModel(
            f"the GGUF file stores {tensor.name!r} as {tensor.tensor_type.name}, which cannot be "
            "read; choose a Q4, Q8 or F16 file of this model."
        ) from error
    if "q_proj" in name:
        full = unpermute(full, config.num_attention_heads)
    elif "k_proj" in name:
        full = unpermute(full, config.num_key_value_heads)
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
    plan: dict[str, ReaderTensor], config: PretrainedConfig, out: Path, report: Progress
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
            values[name] = _values(name, plan[name], config)
            index[name] = file
        total += sum(value.nbytes for value in values.values())
        save_file(values, out / file, metadata={"format": "pt"})
        (out / file).chmod(0o644)  # it is written for its owner alone, a cache may be shared
    if len(groups) > 1:
        content = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2)
        (out / "model.safetensors.index.json").write_text(content, encoding="utf-8")
    report("converting the weights to 16 bits", 1.0)
