"""Sizes of models that are known by name, and which groups of a river fit them.

Numbers only: knows no weights, and needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .errors import SettingsError
from .layer import BlockShape
from .settings import QuantSpec


@dataclass(frozen=True)
class ShapeSpec:
    """A model's sizes: `block` as in block.py, L layers, V rows of the vocabulary."""

    name: str
    block: BlockShape
    layers: int
    vocab: int
    tied: bool
    rope_theta: float


def _block(hidden: int, heads: int, kv_heads: int, head_dim: int, ffn: int) -> BlockShape:
    return BlockShape(hidden, heads, kv_heads, head_dim, ffn, eps=1e-5)


_GEMMA3 = replace(
    _block(640, 4, 1, 256, 2048), qk_norm="head", norms="both", activation="gelu_tanh"
)
# Sizes, and options of every layer. What the real models have besides and a random one leaves out:
# Llama 3 scales its RoPE; Phi-4-mini turns 3/4 of each head, by tables that change with the length;
# Ministral-3 has YaRN's RoPE, scales its queries by position, and sees images; Gemma-3 has windows
# on most layers with a RoPE of their own, and a scaled embedding.
SHAPES: dict[str, ShapeSpec] = {
    spec.name: spec
    for spec in (
        ShapeSpec("smollm2-135m", _block(576, 9, 3, 64, 1536), 30, 49152, True, 100_000.0),
        ShapeSpec("gemma-3-270m", _GEMMA3, 18, 262144, True, 1_000_000.0),
        ShapeSpec("llama-3.2-1b", _block(2048, 32, 8, 64, 8192), 16, 128256, True, 500_000.0),
        ShapeSpec("smollm2-1.7b", _block(2048, 32, 32, 64, 8192), 24, 49152, True, 130_000.0),
        ShapeSpec("phi-4-mini", _block(3072, 24, 8, 128, 8192), 32, 200064, True, 10_000.0),
        ShapeSpec("llama-3.1-8b", _block(4096, 32, 8, 128, 14336), 32, 128256, False, 500_000.0),
        ShapeSpec(
            "ministral-3-8b", _block(4096, 32, 8, 128, 14336), 34, 131072, False, 1_000_000.0
        ),
        ShapeSpec(
            "mistral-small-24b", _block(5120, 32, 8, 128, 32768), 40, 131072, False, 100_000_000.0
        ),
        ShapeSpec("llama-3.1-70b", _block(8192, 64, 8, 128, 28672), 80, 128256, False, 500_000.0),
        ShapeSpec("tiny", _block(128, 4, 2, 32, 256), 8, 512, True, 10_000.0),
    )
}


def find_shape(name: str) -> ShapeSpec:
    """The shape called `name`; raises SettingsError with the known names."""
    if name not in SHAPES:
        raise SettingsError(f"unknown shape {name!r}; known are {', '.join(SHAPES)}.")
    return SHAPES[name]


def check_group(spec: QuantSpec, name: str, columns: int) -> None:
    """Refuse, by the matrix's name, a group that does not divide its columns.

    hqq would let such groups straddle rows without a word.
    """
    if spec.bits != 16 and columns % spec.group_size:
        raise SettingsError(
            f"group_size {spec.group_size} does not divide the {columns} columns of {name}; use "
            "one that does, such as 64 or 32."
        )
