"""A model's tensors as blocks need them: fused by rows, norms as they multiply, layer by layer.

Knows the names and the storage of hub checkpoints; knows nothing of kernels or of the river.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .families import Family
from .layer import BlockShape
from .tensor_names import OTHER_PARTS, TensorNames
from .weights import Weights

# fused linear -> its parts by rows, by the names of TensorNames
PARTS = {"qkv": ("q", "k", "v"), "out": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}


@dataclass
class Checkpoint:
    """Reads one model's tensors; each is noted, so that what nobody read is an error at the end.

    `order` is the row order of a head's q and k where RoPE is partial (families.rotary_order).
    """

    weights: Weights
    family: Family
    shape: BlockShape
    vocab: int
    order: Sequence[int] | None = None
    read: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.names: TensorNames = self.family.names.found_in(self.weights.names())

    def _tensor(self, name: str, size: tuple[int, ...]) -> Tensor:
        self.read.add(name)
        return self.weights.get(name, size)

    def embedding(self) -> Tensor:
        """[V, d] as stored."""
        return self._tensor(self.names.embed, (self.vocab, self.shape.hidden))

    def head(self, tied: bool) -> Tensor | None:
        """The LM head's own weights [V, d]; None where it shares the embedding's.

        A head that is stored although the configuration ties it counts where it differs.
        """
        name, size = self.names.head, (self.vocab, self.shape.hidden)
        if tied and name not in self.weights:
            return None
        own = self._tensor(name, size)
        return None if tied and torch.equal(own, self.embedding()) else own

    def final_norm(self) -> Tensor:
        """fp32 [d]."""
        return self._norm(self.names.final_norm, self.shape.hidden)

    def _norm(self, name: str, size: int) -> Tensor:
        norm = self._tensor(name, (size,)).to(torch.float32, copy=True)  # it outlives the file
        return norm + 1 if self.family.one_plus else norm

    def matrices(self, layer: int, fused: str) -> dict[str, Tensor]:
        """The parts of one fused linear of 1-based `layer` as stored, by name, in row order."""
        shape, names = self.shape, self.names
        columns = shape.matrices[fused][1]
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        rows = {"q": wide, "k": narrow, "v": narrow, "gate": shape.ffn, "up": shape.ffn}
        rows |= {"o": shape.hidden, "down": shape.hidden}
        sizes = [rows[part] for part in PARTS[fused]]
        whole = getattr(names, fused, None)
        if whole is None:
            patterns = [getattr(names, part) for part in PARTS[fused]]
            stored = [p.format(layer=layer - 1) for p in patterns]
            found = [self._tensor(n, (r, columns)) for n, r in zip(stored, sizes, strict=True)]
        else:
            name = whole.format(layer=layer - 1)
            found = list(self._tensor(name, (sum(sizes), columns)).split(sizes))
            stored = [f"{part} of {name}" for part in PARTS[fused]]
        if fused == "qkv" and self.order is not None:
            found = [*(self._ordered(side) for side in found[:2]), found[2]]
        return dict(zip(stored, found, strict=True))

    def _ordered(self, rows: Tensor) -> Tensor:
        """q or k with the rows of each head in `order`."""
        return rows.view(-1, self.shape.head_dim, rows.shape[1])[:, self.order].reshape(rows.shape)

    def small(self, layer: int) -> dict[str, Tensor]:
        """Norms and biases of 1-based `layer` by LayerWeights' names, fp32."""
        shape, names, found = self.shape, self.names, dict[str, Tensor]()
        for name, size in shape.vectors.items():
            if name.endswith("_norm") and name != "qk_norm":
                found[name] = self._norm(getattr(names, name).format(layer=layer - 1), size[0])
        heads = (shape.heads, shape.kv_heads)
        if shape.qkv_bias:
            rows = [n * shape.head_dim for n in (*heads, shape.kv_heads)]
            each = zip((names.q_bias, names.k_bias, names.v_bias), rows, strict=True)
            biases = [self._tensor(p.format(layer=layer - 1), (n,)).float() for p, n in each]
            found["qkv_bias"] = torch.cat(biases)
        if shape.qk_norm is not None:
            each = zip((names.q_norm, names.k_norm), heads, strict=True)
            found["qk_norm"] = torch.cat(
                [self._head_norm(p.format(layer=layer - 1), n) for p, n in each]
            )
        return found

    def _head_norm(self, name: str, heads: int) -> Tensor:
        """A row per head, [heads, D]: the same for all, or a part each of one that spans them."""
        dim = self.shape.head_dim
        if self.shape.qk_norm == "all":
            return self._norm(name, heads * dim).view(heads, dim)
        return self._norm(name, dim).expand(heads, -1)

    def refuse_unread(self) -> None:
        """Raise ModelUnavailable for tensors that no part of the model uses.

        A second copy of a tied head is none, nor are the other parts of a vision-language model.
        """
        wrapped = self.names != self.family.names
        self.weights.refuse_unexpected(
            self.read | {self.names.head}, OTHER_PARTS if wrapped else ()
        )
