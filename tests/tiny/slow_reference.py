"""The slow reference of mixed exits: transformers' own layers, full recompute, no cache.

Every linear of a decoder layer becomes a pair, backbone and dequantised twin, and each row takes
the one that its exit layer says. It shares no code with the engine but the quantizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from river_core.settings import QuantSpec
from tests.tiny.slow_layers import FUSED, LINEARS, twin_of


class MixedLinear(nn.Module):
    """Two linears; row r of the sequence uses the twin where `layer` > exits[r]."""

    def __init__(self, own: nn.Linear, twin: Tensor, layer: int, exits: list[int]) -> None:
        super().__init__()
        self.own, self.twin, self.layer, self.exits = own, twin, layer, exits

    def forward(self, x: Tensor) -> Tensor:
        river = torch.tensor([self.layer > e for e in self.exits[: x.shape[1]]])[None, :, None]
        return torch.where(river, F.linear(x, self.twin, self.own.bias), self.own(x))


class MixedReference:
    """A transformers model whose rows leave where `exits` says."""

    def __init__(self, model: Any, spec: QuantSpec) -> None:
        self.exits: list[int] = []
        self.model = deepcopy(model)
        for n, layer in enumerate(self.model.model.layers, start=1):
            for owner in (layer.self_attn, layer.mlp):
                for name in (*LINEARS, *FUSED):
                    if hasattr(owner, name):
                        own = getattr(owner, name)
                        twin = twin_of(self.model.config, name, own.weight, spec)
                        setattr(owner, name, MixedLinear(own, twin, n, self.exits))

    def greedy(self, prompt: list[int], schedule: Sequence[int]) -> tuple[list[int], Tensor]:
        """Tokens and logits [n, V]; schedule[i] is the exit layer of the pass choosing token i."""
        ids, rows = list(prompt), []
        self.exits[:] = [schedule[0]] * len(prompt)
        for n in range(len(schedule)):
            with torch.no_grad():
                rows.append(self.model(torch.tensor([ids]), use_cache=False).logits[0, -1])
            ids.append(int(rows[-1].argmax()))
            self.exits += list(schedule[n + 1 : n + 2])
        return ids[len(prompt) :], torch.stack(rows)
