"""Bytes of a model that is not loaded, by part, from its sizes alone (method.md 2.6).

The same parts as `RiverModel.memory()` and the same rules: 16-bit weights, fp32 norms that both
banks share (twins of "awq" have their own), one KV cache for both. Knows nothing of files and
allocates nothing.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

from .errors import SettingsError
from .layer import NORMS, BlockShape
from .settings import METADATA_BITS, QuantSpec
from .shapes import ShapeSpec, check_group

GIB = 2**30
DENSE_BYTES = 2  # per weight of the backbone, the embedding, the head, and per value of the KV
_FP32_BYTES = 4


@dataclass(frozen=True)
class Footprint:
    """Bytes by part, named as in `RiverModel.memory()`; a tied head counts with the embedding."""

    embedding: int
    head: int
    backbone: int
    river: int
    norms: int
    kv: int
    buffers: int

    @property
    def parts(self) -> dict[str, int]:
        """Part -> bytes, in the order of `RiverModel.memory()`."""
        return asdict(self)

    @property
    def weights(self) -> int:
        """Bytes that do not depend on the number of tokens."""
        return self.total - self.kv - self.buffers

    @property
    def total(self) -> int:
        """All bytes. What a step computes with for a moment is not among them."""
        return sum(self.parts.values())


def bits_per_weight(quant: QuantSpec, metadata_bits: int = METADATA_BITS) -> float:
    """Stored bits of one river weight: its code, and its share of its group's scale and zero.

    4 bits at group 64: 4.5 with 16-bit metadata, which the int4 kernels keep (fp16 in ours, bf16
    in torch's); 5.0 with 32, as in the river's file on disk; 4.0 with 0, the paper's table. Shorter
    codes lie in 4 bits; 8 bits at group 64 are 8.5. Of mixed precision its budget, the most that it
    stores; `ModelInfo.river_bits` has what a loaded one does.
    """
    if metadata_bits not in (0, 16, 32):
        raise SettingsError(f"metadata_bits is {metadata_bits!r}; use 0, 16 or 32.")
    if quant.bits == 16:
        return 16.0
    if quant.budget is not None:
        return quant.budget + 2 * (metadata_bits - METADATA_BITS) / quant.group_size
    return quant.code_bits + 2 * metadata_bits / quant.group_size


@dataclass(frozen=True)
class Layout:
    """What stands in memory, and how.

    `river` None: the backbone alone. `entry_layer` (1-based) is the first with a twin; 1 gives
    every layer one. The first `resident` backbone layers are there (None: all of them);
    `metadata_bits` as in `bits_per_weight`; `quantized_head`: the LM head in the river's bits.
    """

    river: QuantSpec | None = field(default_factory=QuantSpec)
    entry_layer: int = 2
    resident: int | None = None
    metadata_bits: int = METADATA_BITS
    quantized_head: bool = False


BACKBONE = Layout(river=None)


def full_quantization(layout: Layout, *, quantized_head: bool = False) -> Layout:
    """Every layer in the bits of `layout`'s river, and no backbone at all."""
    return Layout(layout.river, 1, 0, layout.metadata_bits, quantized_head)


def footprint(spec: ShapeSpec, layout: Layout = BACKBONE, *, tokens: int = 0) -> Footprint:
    """Bytes of a model of the sizes `spec` with a KV cache of `tokens` positions.

    Raises SettingsError: an entry layer or a number of resident layers that leaves a layer without
    weights, a group that does not divide a matrix's columns, a negative number of tokens.
    """
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
        raise SettingsError(f"tokens is {tokens!r}; use a whole number, 0 or more.")
    resident, twins, bits = _banks(spec, layout)
    block, layer = spec.block, layer_weights(spec.block)
    vocabulary = spec.vocab * block.hidden
    more = (resident + twins - spec.layers) * _own_norms(block, layout.river)  # beside the layer's
    head = 0 if spec.tied else vocabulary * DENSE_BYTES
    return Footprint(
        embedding=vocabulary * DENSE_BYTES,
        head=round(vocabulary * bits / 8) if layout.quantized_head else head,
        backbone=resident * layer * DENSE_BYTES,
        river=round(twins * layer * bits / 8),
        norms=_FP32_BYTES * (spec.layers * _small(block) + block.hidden + more),
        kv=tokens * kv_bytes(spec),
        buffers=tokens * 2 * block.head_dim * _FP32_BYTES,  # RoPE: cosines and sines
    )


def layer_weights(block: BlockShape) -> int:
    """Weights in the linears of one decoder layer."""
    return sum(n * k for n, k in block.matrices.values())


def kv_bytes(spec: ShapeSpec) -> int:
    """Bytes of one token's keys and values in all layers, 16 bits each."""
    return spec.layers * 2 * spec.block.kv_heads * spec.block.head_dim * DENSE_BYTES


def parameters(spec: ShapeSpec) -> int:
    """Number of parameters, norms included; a tied head counts once."""
    small = spec.layers * _small(spec.block) + spec.block.hidden
    matrices = spec.layers * layer_weights(spec.block)
    return matrices + small + spec.vocab * spec.block.hidden * (1 if spec.tied else 2)


def _small(block: BlockShape) -> int:
    """Values in a layer's norms and biases."""
    return sum(math.prod(size) for size in block.vectors.values())


def _own_norms(block: BlockShape, quant: QuantSpec | None) -> int:
    """Values of norms that a twin does not share with its backbone layer."""
    if quant is None or not quant.own_norms:
        return 0
    return sum(math.prod(block.vectors.get(name, (0,))) for name in NORMS.values())


def _banks(spec: ShapeSpec, layout: Layout) -> tuple[int, int, float]:
    """Backbone layers, twins that take bytes of their own, and bits of a twin's weight."""
    layers, first = spec.layers, layout.entry_layer
    resident = layers if layout.resident is None else layout.resident
    if layout.river is None:
        first = layers + 1
    elif not 1 <= first <= layers:
        raise SettingsError(
            f"entry_layer is {first!r}, but {spec.name} has {layers} layers; use 1 to {layers}."
        )
    if not first - 1 <= resident <= layers:
        raise SettingsError(
            f"{resident!r} resident layers cannot run {spec.name}: use {first - 1} to {layers}, so "
            "that every layer is in the backbone or has a twin."
        )
    if layout.river is None:
        return resident, 0, 16.0
    for name, (_, columns) in spec.block.matrices.items():
        check_group(layout.river, name, columns)
    bits = bits_per_weight(layout.river, layout.metadata_bits)
    if layout.river.bits == 16:  # an identical river is the backbone's own memory
        return resident, layers - max(resident, first - 1), bits
    return resident, layers - first + 1, bits
