"""One row at a time through the C++ steps of native.py; many rows go through eager torch.

For models on the CPU whose linears are all native kernels. Both ways write the same cache, so a
prompt pass in torch and decode passes in C++ follow each other freely.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..block import LayerWeights
from ..cache import Rows
from ..kernels.native import NativeDense, NativeInt4
from ..model import RiverModel
from .eager import EagerExecution, check_finite
from .native import NativeLayer, NativeStep


def can_fuse(model: RiverModel) -> bool:
    """Whether every linear is a native kernel and every size one that the C++ step takes."""
    shape = model.shape
    layers = [*model.backbone, *(w for w in model.river if w is not None)]
    linears = [model.head, *(linear for w in layers for linear in w.linears.values())]
    sizes = (shape.hidden, shape.ffn, shape.head_dim)
    return all(isinstance(linear, NativeDense | NativeInt4) for linear in linears) and not any(
        size % 8 for size in sizes
    )


class FusedExecution(EagerExecution):
    """Eager for many rows, one C++ call per layer for a single row."""

    name = "fused C++ steps"

    def __init__(self, model: RiverModel) -> None:
        super().__init__(model)
        self._step = NativeStep(*model.rope)
        self._single = False
        self._h = torch.empty(model.shape.hidden)
        self._scores = torch.empty(model.vocab)
        self._k, self._v = model.cache.k.unbind(0), model.cache.v.unbind(0)
        self._native: dict[int, tuple[LayerWeights, NativeLayer]] = {}  # by id; the key stays alive

    def start(self, rows: Rows) -> None:
        """Embed the rows' token ids: the residual stream becomes fp32 [R, d]."""
        self._single = len(rows) == 1
        if not self._single:
            super().start(rows)
            return
        self._h.copy_(self._model.embedding[rows.token_ids[0]])
        self._position = rows.positions[0]
        self._host = []

    def _run_row(self, weights: LayerWeights, layer: int) -> float:
        if id(weights) not in self._native:
            shape = self._model.shape
            made = NativeLayer(
                **{"o" if name == "out" else name: w for name, w in weights.linears.items()},
                attn_norm=weights.attn_norm,
                ffn_norm=weights.ffn_norm,
                eps=shape.eps,
                heads=shape.heads,
                kv_heads=shape.kv_heads,
                head_dim=shape.head_dim,
            )
            self._native[id(weights)] = weights, made
        native = self._native[id(weights)][1]
        k, v = self._k[layer - 1], self._v[layer - 1]
        return self._step.layer(native, self._h, k, v, self._position)

    def backbone(self, layer: int) -> None:
        """Run a backbone layer on the rows, in place, and note their similarities."""
        if not self._single:
            super().backbone(layer)
            return
        value = self._run_row(self._model.backbone[layer - 1], layer)
        check_finite((value,), layer)
        self._host.append((value,))

    def river(self, layer: int) -> None:
        """Run a river layer on the rows, in place."""
        if not self._single:
            super().river(layer)
            return
        self._run_row(self._model.twin(layer), layer)

    def trace(self, layers: int) -> list[Sequence[float]]:
        """Similarities of backbone layers 1..layers of this pass, [layer][row]."""
        return self._host[:layers] if self._single else super().trace(layers)

    def logits(self) -> Tensor:
        """Scores of the last row, fp32 [V]."""
        if not self._single:
            return super().logits()
        model = self._model
        self._step.head(model.final_norm, model.shape.eps, model.head, self._h, self._scores)
        return self._scores
