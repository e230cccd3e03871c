"""A river taken from an AWQ checkpoint of the same model, in AutoAWQ's layout "gemm".

Per linear: qweight int32 [K, N / 8] and qzeros int32 [K / group, N / 8], eight codes of 4 bits in
each number, and scales [K / group, N]. The norms before qkv and gate_up come from there too: scales
are folded into them. Everything is held against the backbone, layer by layer, since another model's
weights would be just as readable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .activation_aware import in_backbone_units, row_ratios
from .checkpoint import PARTS, Checkpoint
from .errors import SettingsError
from .hub_folder import read_json
from .kernels.base import QuantMatrix
from .layer import NORMS
from .settings import QuantSpec
from .weights import Weights

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # column of eight that lies in the lowest 4 bits, the next, ...
SAME = (
    *("model_type", "hidden_size", "num_hidden_layers", "intermediate_size"),
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
)
OTHER_MODEL = 0.5  # relative error from which on weights are taken for another model's
RESCALED = 0.03  # mean deviation of the rows of k or v from the backbone's, beyond rounding


@dataclass(frozen=True)
class AwqCheckpoint:
    """Reads the layers of one checkpoint; `backbone` says what they have to be."""

    name: str
    backbone: Checkpoint
    stored: Checkpoint
    group: int

    @classmethod
    def open(cls, name: str, folder: Path, backbone: Checkpoint, spec: QuantSpec) -> AwqCheckpoint:
        """The checkpoint called `name` in `folder`.

        Raises SettingsError where it is none of AutoAWQ's, in another layout, of other settings
        than `spec` or of another model; ModelUnavailable where its files are damaged.
        """
        config = read_json(folder / "config.json")
        _check_layout(name, config.get("quantization_config"), spec)
        _check_model(name, config, read_json(backbone.weights.folder / "config.json"))
        stored = Checkpoint(
            Weights(folder), backbone.family, backbone.shape, backbone.vocab, backbone.order
        )
        return cls(name, backbone, stored, spec.group_size)

    def layer(
        self, layer: int, own: Mapping[str, Tensor], own_small: Mapping[str, Tensor]
    ) -> tuple[dict[str, QuantMatrix], dict[str, Tensor]]:
        """Fused matrices of 1-based `layer` and the norms before them, fp32.

        `own` are the backbone's fused matrices, `own_small` its norms and biases. Raises
        SettingsError where the two are not the same layer, or their keys or values are in other
        units; ModelUnavailable where tensors are missing.
        """
        matrices = {fused: self._fused(layer, fused) for fused in PARTS}
        small = self.stored.small(layer)
        norms = {name: small[name] for name in NORMS.values() if name in small}
        self._compare(layer, {f: m.float() for f, m in own.items()}, own_small, matrices, norms)
        return matrices, norms

    def _fused(self, layer: int, fused: str) -> QuantMatrix:
        """One fused linear: its parts, or the matrix that the family stores, by rows."""
        names, (rows, columns) = self.stored.names, self.stored.shape.matrices[fused]
        whole = getattr(names, fused, None)
        patterns = [whole] if whole else [getattr(names, part) for part in PARTS[fused]]
        sizes = [rows] if whole else list(self._rows(fused))
        bases = [p.format(layer=layer - 1).removesuffix(".weight") for p in patterns]
        each = zip(bases, sizes, strict=True)
        matrix = QuantMatrix.cat([self._linear(base, n, columns) for base, n in each])
        return self._ordered(matrix) if fused == "qkv" else matrix

    def _rows(self, fused: str) -> tuple[int, ...]:
        """Rows of each part of a fused linear."""
        shape = self.stored.shape
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        parts = {"qkv": (wide, narrow, narrow), "gate_up": (shape.ffn, shape.ffn)}
        return parts.get(fused, (shape.hidden,))

    def _linear(self, base: str, rows: int, columns: int) -> QuantMatrix:
        """One stored linear [rows, columns]."""
        weights, groups = self.stored.weights, columns // self.group
        if f"{base}.qweight" not in weights and f"{base}.weight" in weights:
            raise SettingsError(
                f"{self.name} leaves {base} in 16 bits (modules_to_not_convert); choose an AWQ "
                "checkpoint with all linears of its layers in 4 bits."
            )
        codes = unpacked(weights.integers(f"{base}.qweight", (columns, rows // 8)))
        zeros = unpacked(weights.integers(f"{base}.qzeros", (groups, rows // 8)))
        scales = weights.get(f"{base}.scales", (groups, rows)).float()
        codes, scales, zeros = (t.t().contiguous() for t in (codes, scales, zeros.float()))
        return QuantMatrix(codes, scales, zeros, self.group)

    def _ordered(self, qkv: QuantMatrix) -> QuantMatrix:
        """The rows of q and k in the order of a partial RoPE."""
        shape = self.stored.shape
        if self.stored.order is None:
            return qkv
        at = torch.arange(qkv.shape[0]).view(-1, shape.head_dim)
        turned = at[: -shape.kv_heads, self.stored.order]
        order = torch.cat([turned, at[-shape.kv_heads :]]).flatten()
        return QuantMatrix(qkv.codes[order], qkv.scale[order], qkv.zero[order], qkv.group_size)

    def _compare(
        self,
        layer: int,
        own: Mapping[str, Tensor],
        own_small: Mapping[str, Tensor],
        matrices: Mapping[str, QuantMatrix],
        norms: Mapping[str, Tensor],
    ) -> None:
        """Refuse a layer that is not the backbone's, each matrix times the norm before it."""
        dense = {fused: matrix.dense() for fused, matrix in matrices.items()}
        twin = in_backbone_units(own, own_small, dense, norms)
        shape = self.backbone.shape
        written = 2 * shape.kv_heads * shape.head_dim  # k and v
        for fused in PARTS:
            norm = own_small.get(NORMS.get(fused, ""), torch.ones(own[fused].shape[1]))
            a, b = own[fused] * norm, twin[fused] * norm
            if fused == "qkv" and rescaled(a[-written:], b[-written:]):
                raise SettingsError(
                    f"{self.name} has scales folded into the keys or values of layer {layer}, "
                    "which the backbone would read from the shared cache in wrong units; choose "
                    "another AWQ checkpoint, or let it be made here with 'awq-4bit-g64'."
                )
            error = float((b - a).norm() / a.norm())
            if not error < OTHER_MODEL:
                raise SettingsError(
                    f"{self.name} is a checkpoint of another model: {fused} of layer {layer} is "
                    f"{error:.2f} away from the backbone's, relative to its size."
                )


def rescaled(own: Tensor, twin: Tensor) -> bool:
    """Whether rows of `twin` [N, K] are those of `own` times factors, apart from rounding.

    Rounding moves a row's best factor by about its relative error over the root of K. Rows count
    by their size: one of nearly zeros has any factor.
    """
    ratio = row_ratios(own, twin)
    noise = (twin / ratio.unsqueeze(1) - own).norm() / own.norm()
    if not noise < OTHER_MODEL:  # not rows of the same matrix at all
        return False
    size = own.square().sum(1)
    away = ((ratio - 1).square() * size).sum().div(size.sum()).sqrt()
    return bool(away > RESCALED + 3 * noise / own.shape[1] ** 0.5)


def unpacked(numbers: Tensor) -> Tensor:
    """int32 [R, N / 8] -> uint8 [R, N]: the codes of 4 bits in ORDER."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    codes = (numbers.unsqueeze(-1) >> shifts & 15).to(torch.uint8)
    return codes[..., torch.tensor(ORDER).argsort()].flatten(1)


def _check_layout(name: str, stored: Any, spec: QuantSpec) -> None:
    """Refuse what is not AutoAWQ's "gemm", or has other bits or groups than `spec`."""
    if not isinstance(stored, Mapping) or stored.get("quant_method") != "awq":
        raise SettingsError(
            f"{name} is no AWQ checkpoint (its config.json has no quantization_config with "
            "quant_method 'awq'); give one made by AutoAWQ."
        )
    layout = str(stored.get("version") or stored.get("format") or "gemm").lower()
    if layout != "gemm" or not stored.get("zero_point", True):
        symmetric = "" if layout != "gemm" else " without zero points"
        raise SettingsError(
            f"{name} is stored in the layout {layout!r}{symmetric}; only AutoAWQ's 'gemm' with "
            "zero points is read."
        )
    bits, group = stored.get("bits", 4), stored.get("group_size", 128)
    if bits != spec.bits:
        raise SettingsError(f"{name} has {bits!r} bits; only AWQ checkpoints of 4 bits are read.")
    if group != spec.group_size:
        raise SettingsError(
            f"{name} has group_size {group!r}, not {spec.group_size}; give it as "
            f"'awq-4bit-g{group}:{name}', where groups of 32, 64 or 128 are read."
        )


def _check_model(name: str, config: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse a configuration of other sizes than the backbone's, where both say."""
    there, here = (c.get("text_config") or c for c in (config, own))
    for key in SAME:
        if key in there and key in here and there[key] != here[key]:
            raise SettingsError(
                f"{name} is a checkpoint of another model: its {key} is {there[key]!r}, the "
                f"backbone's {here[key]!r}."
            )
