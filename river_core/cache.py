"""The one KV cache that backbone and river share, and the rows of a pass that address it.

One preallocated K and V per layer for both banks (paper 4.1: identical KV-cache addressing), one
position for all layers, and a letter per slot for where its entry came from. Knows nothing of
models, policies or why a layer is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .errors import CacheFull

UNWRITTEN = 0


@dataclass(frozen=True)
class Rows:
    """The rows of one pass: R token ids and the R positions they stand at, in ascending order."""

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def contiguous(self) -> bool:
        """Whether the positions follow each other without a gap."""
        return self.positions[-1] - self.positions[0] == len(self.positions) - 1

    @cached_property
    def span(self) -> int:
        """Number of slots 0..last position that these rows may read."""
        return self.positions[-1] + 1

    def index(self, device: torch.device) -> Tensor:
        """The positions as int64 [R] on `device`."""
        return torch.tensor(self.positions, dtype=torch.int64, device=device)


class SharedCache:
    """K and V of every layer: [layers, kv_heads, capacity, head_dim] each, plus a source letter.

    `k`, `v` are ordinary tensors that never move, so kernels and graphs may keep their addresses.
    """

    def __init__(
        self,
        layers: int,
        capacity: int,
        heads: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        kv_heads, head_dim = heads
        size = (layers, kv_heads, capacity, head_dim)
        self.k = torch.zeros(size, dtype=dtype, device=device)
        self.v = torch.zeros(size, dtype=dtype, device=device)
        self.layers = layers
        self.capacity = capacity
        self._source = bytearray(capacity * layers)  # a letter per slot, position by position

    def check(self, prompt_tokens: int, new_tokens: int) -> None:
        """Raise CacheFull, with both numbers, when a run would not fit; call before any work."""
        if prompt_tokens + new_tokens > self.capacity:
            raise CacheFull(
                f"the prompt has {prompt_tokens} tokens and {new_tokens} new ones were asked "
                f"for, but the cache holds {self.capacity}; shorten the prompt, ask for fewer "
                "tokens, or load with a larger capacity."
            )

    def reset(self) -> None:
        """Forget every slot. K and V are left as they are: unwritten slots are never read."""
        self._source[:] = bytes(len(self._source))

    def write(self, layer: int, rows: Rows, k: Tensor, v: Tensor) -> None:
        """Store k, v [R, kv_heads, head_dim] of 1-based `layer` at the rows' positions."""
        keys, values = self.k[layer - 1], self.v[layer - 1]
        k, v = k.transpose(0, 1), v.transpose(0, 1)
        if rows.contiguous:
            first = rows.positions[0]
            keys[:, first : rows.span] = k
            values[:, first : rows.span] = v
        else:
            index = rows.index(keys.device)
            keys[:, index] = k.to(keys.dtype)
            values[:, index] = v.to(values.dtype)

    def mark(self, first: int, rows: Rows, letters: str) -> None:
        """Note the KV source of the slots of `rows`: a letter per layer from `first` on."""
        source = letters.encode()
        for position in rows.positions:
            start = position * self.layers + first - 1
            self._source[start : start + len(source)] = source

    def view(self, layer: int, span: int) -> tuple[Tensor, Tensor]:
        """K and V of 1-based `layer`, slots 0..span-1: [kv_heads, span, head_dim] each."""
        return self.k[layer - 1, :, :span], self.v[layer - 1, :, :span]

    def valid(self, layer: int) -> list[int]:
        """Positions of 1-based `layer` that hold an entry, ascending."""
        letters = self._source[layer - 1 :: self.layers]
        return [p for p, letter in enumerate(letters) if letter != UNWRITTEN]

    def letters(self, position: int) -> str:
        """KV source of every layer at `position`, one letter per layer, '.' where unwritten."""
        row = self._source[position * self.layers : (position + 1) * self.layers]
        return "".join(chr(letter or ord(".")) for letter in row)

    def crop(self, length: int) -> None:
        """Forget the slots at positions >= length in every layer."""
        start = length * self.layers
        self._source[start:] = bytes(len(self._source) - start)

    def tensors(self) -> Sequence[Tensor]:
        """The buffers, for the memory ledger."""
        return (self.k, self.v)

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers."""
        return self.k.nbytes + self.v.nbytes
