"""A loaded model's 16-bit weights -> a GGUF file that llama.cpp runs, as F16, Q8_0 or Q4_0.

The way back from gguf_files.py, for models of plain layers; written once, then found again in the
cache. The file has no vocabulary: whoever runs it gives token ids. Knows nothing of llama.cpp.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .cache_paths import cache_root
from .errors import SettingsError, UnsupportedModel
from .kernels.base import Linear
from .layer import BlockShape, LayerWeights
from .model import Progress, RiverModel

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.generic]

FORMAT = 1  # of the files written here; a change makes older ones be written again
# Stored bits per weight of a matrix: blocks of 32 share an fp16 scale. Every matrix is in the type
# that is asked for, the embedding and the head too.
BITS = {"F16": 16.0, "Q8_0": 8.5, "Q4_0": 4.5}
BLOCK = 32
ARCHITECTURES = {  # options beyond the plain layer -> what llama.cpp calls a model of such layers
    (): "llama",
    ("biases on q, k and v",): "qwen2",
    ("norms on q and k",): "qwen3",
}
ALIKE = 1e-5  # RoPE frequencies that differ by less, relatively, are the plain ones in fp32


def exported(model: RiverModel, kind: str, progress: Progress | None = None) -> Path:
    """The GGUF file of `model`'s backbone in `kind` (a key of BITS), from the cache or new.

    Raises UnsupportedModel for layers that no GGUF architecture here has, SettingsError where the
    file cannot be written or `kind` is unknown.
    """
    if kind not in BITS:
        raise SettingsError(f"a GGUF file of kind {kind!r} is not written; use {', '.join(BITS)}.")
    architecture_for(model)
    folder = cache_root() / "gguf"
    path = folder / f"{fingerprint(model)}-{kind}.gguf"
    if path.is_file():
        return path
    part = path.with_suffix(f".{os.getpid()}.part")
    if progress is not None:
        progress(f"writing the weights as {kind} for llama.cpp", None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write(model, kind, part)
        part.replace(path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written ({error}); free some space.") from error
    finally:
        part.unlink(missing_ok=True)
    return path


def architecture_for(model: RiverModel) -> str:
    """llama.cpp's name for a model of such layers; UnsupportedModel where there is none here."""
    shape = model.shape
    name = ARCHITECTURES.get(shape.options)
    alike = all(other == shape for other in model.shapes)
    odd = model.embedding_scale != 1.0 or model.ropes[0].queries is not None
    if name is None or not alike or odd or shape.qk_norm == "all":
        what = " and ".join(shape.options) or "layers that differ from each other"
        raise UnsupportedModel(
            f"no GGUF file is written for this model ({what}); leave llama.cpp out."
        )
    for matrix, (_, columns) in shape.matrices.items():
        if columns % BLOCK:
            raise UnsupportedModel(
                f"no GGUF file is written for this model: the {columns} columns of {matrix} are no "
                f"multiple of {BLOCK}; leave llama.cpp out."
            )
    return name


def fingerprint(model: RiverModel) -> str:
    """Sixteen hex digits that other weights would not have: of the sizes, and rows of each matrix.

    Sixteen rows of every matrix, evenly spread, and all norms; reading all would take long.
    """
    digest = hashlib.blake2b(f"{FORMAT} {model.shape} {model.vocab}".encode(), digest_size=8)
    for _, tensor in _sources(model):
        whole = tensor()
        step = max(1, whole.shape[0] // 16) if whole.dim() > 1 else 1
        digest.update(whole[::step].contiguous().float().cpu().numpy().tobytes())
    return digest.hexdigest()


def write(model: RiverModel, kind: str, path: Path) -> None:
    """Write the file, one tensor at a time; raises what `exported` raises."""
    import gguf

    architecture = architecture_for(model)
    writer = gguf.GGUFWriter(path, architecture)
    _settings(writer, model)
    wanted = gguf.GGMLQuantizationType[kind]
    made = list(_stored(model, architecture, wanted))
    for tensor in made:
        writer.add_tensor_info(
            tensor.name, tensor.shape, tensor.dtype, tensor.nbytes, raw_dtype=tensor.kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in made:
        writer.write_tensor_data(tensor.values())
    writer.close()


@dataclass(frozen=True)
class _Stored:
    """A tensor of the file; `shape` in bytes where its type packs values."""

    name: str
    kind: Any
    dtype: Any
    shape: tuple[int, ...]
    nbytes: int
    values: Callable[[], Array]


def _stored(model: RiverModel, architecture: str, wanted: Any) -> Iterator[_Stored]:
    import gguf
    import numpy as np

    types = gguf.GGMLQuantizationType
    numbers = {types.F32: np.float32, types.F16: np.float16}
    for name, source in _sources(model):
        size = tuple(source().shape)
        kind = wanted if len(size) == 2 else types.F32
        packed = size if kind in numbers else gguf.quant_shape_to_byte_shape(size, kind)
        dtype = np.dtype(numbers.get(kind, np.uint8))
        place = partial(_placed, name, architecture=architecture, shape=model.shape)
        values = partial(_quantized, source, place, kind)
        yield _Stored(name, kind, dtype, packed, math.prod(packed) * dtype.itemsize, values)


def _quantized(source: Callable[[], Tensor], place: Callable[[Tensor], Tensor], kind: Any) -> Array:
    """The tensor's bytes as the file holds them."""
    import gguf

    found: Array = gguf.quantize(place(source().float().cpu()).numpy(), kind)
    return found


def _placed(name: str, rows: Tensor, architecture: str, shape: BlockShape) -> Tensor:
    """Rows in llama.cpp's order: there RoPE pairs neighbours in q and k of a "llama" model."""
    heads = {"attn_q.weight": shape.heads, "attn_k.weight": shape.kv_heads}
    count = next((n for end, n in heads.items() if name.endswith(end)), None)
    if architecture != "llama" or count is None:
        return rows.contiguous()
    half = rows.shape[0] // count // 2
    return rows.view(count, 2, half, -1).transpose(1, 2).reshape(rows.shape)


def _sources(model: RiverModel) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Name in the file and the weights as our kernels compute with them, matrices [N, K]."""
    yield "token_embd.weight", lambda: model.embedding
    yield "output_norm.weight", lambda: model.final_norm
    if model.memory()["head"]:  # a tied head is the embedding's own memory
        yield "output.weight", model.head.dense
    divisors = rope_divisors(model)
    if divisors is not None:
        yield "rope_freqs.weight", lambda: divisors
    for layer in range(1, model.num_layers + 1):
        for name, source in _layer(model.layer(layer), model.shape):
            yield f"blk.{layer - 1}.{name}", source


def _layer(weights: LayerWeights, shape: BlockShape) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """One layer's tensors, the fused ones taken apart by rows."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = {"q": slice(0, q), "k": slice(q, q + kv), "v": slice(q + kv, q + 2 * kv)}
    for letter, rows in sizes.items():
        yield f"attn_{letter}.weight", partial(_rows, weights.qkv, rows)
        if weights.qkv_bias is not None:
            yield f"attn_{letter}.bias", partial(weights.qkv_bias.__getitem__, rows)
    yield "attn_output.weight", weights.out.dense
    gates = {"ffn_gate": slice(0, shape.ffn), "ffn_up": slice(shape.ffn, 2 * shape.ffn)}
    for name, rows in gates.items():
        yield f"{name}.weight", partial(_rows, weights.gate_up, rows)
    yield "ffn_down.weight", weights.down.dense
    small = weights.small
    yield "attn_norm.weight", lambda: small["attn_norm"]
    yield "ffn_norm.weight", lambda: small["ffn_norm"]
    if shape.qk_norm == "head":
        yield "attn_q_norm.weight", lambda: small["qk_norm"][0]
        yield "attn_k_norm.weight", lambda: small["qk_norm"][-1]


def _rows(linear: Linear, rows: slice) -> Tensor:
    return linear.dense()[rows]


def _frequencies(model: RiverModel) -> Tensor:
    """What position 1 turns each pair by, fp64 [head_dim / 2]."""
    rope, half = model.ropes[0], model.shape.head_dim // 2
    return torch.atan2(rope.sin[1].double(), rope.cos[1].double())[:half].cpu()


def rope_base(model: RiverModel) -> float:
    """The base of plain RoPE, from the second of its frequencies, which no scaling changes."""
    found = float(_frequencies(model)[1]) ** (-model.shape.head_dim / 2)
    return float(f"{found:.4g}")


def rope_divisors(model: RiverModel) -> Tensor | None:
    """What the plain frequencies are divided by, fp32 [head_dim / 2]; None where nothing is."""
    half, found = model.shape.head_dim // 2, _frequencies(model)
    plain = rope_base(model) ** (-torch.arange(half, dtype=torch.float64) / half)
    divisors = plain / found
    return None if bool(((divisors - 1).abs() < ALIKE).all()) else divisors.float()


def _settings(writer: Any, model: RiverModel) -> None:
    shape = model.shape
    writer.add_name(model.info.name)
    writer.add_block_count(model.num_layers)
    writer.add_context_length(model.capacity)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(rope_base(model))
    writer.add_vocab_size(model.vocab)
    writer.add_tokenizer_model("none")
