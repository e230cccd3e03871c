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

from .errors import CacheFull, RiverError

UNWRITTEN = 0
UNREADABLE = frozenset("mnd")


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
    With a device per layer, each layer's part stands on its own.
    """

    def __init__(
        self,
        layers: int,
        capacity: int,
        heads: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device | Sequence[torch.device],
    ) -> None:
        kv_heads, head_dim = heads
        size = (kv_heads, capacity, head_dim)
        self._whole: list[Tensor] = []
        if isinstance(device, torch.device):
            for _ in range(2):
                self._whole.append(torch.zeros((layers, *size), dtype=dtype, device=device))
            self._keys, self._values = (list(side.unbind(0)) for side in self._whole)
        else:
            self._keys = [torch.zeros(size, dtype=dtype, device=own) for own in device]
            self._values = [torch.zeros_like(side) for side in self._keys]
        self.dtype = dtype
        self.layers = layers
        self.capacity = capacity
        self._source = bytearray(capacity * layers)  # a letter per slot, position by position
        # Per layer, the positions whose slot no later token may read, and where there are some:
        # the readable rows, for attention that has to leave the others out.
        self._missing: list[set[int]] = [set() for _ in range(layers)]
        self.readable = torch.zeros(layers, capacity + 1, dtype=torch.int32)
        self.readable_count = torch.full((layers,), -1, dtype=torch.int64)
        self._listed, self._counts = self.readable.numpy(), self.readable_count.numpy()  # the same

    @property
    def k(self) -> Tensor:
        """Keys of all layers, [layers, kv_heads, capacity, head_dim]; RiverError if split."""
        return self._one(0)

    @property
    def v(self) -> Tensor:
        """Values of all layers, as `k`."""
        return self._one(1)

    def _one(self, side: int) -> Tensor:
        if not self._whole:
            raise RiverError("the cache is spread over several devices and has no one tensor.")
        return self._whole[side]

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
        self._missing = [set() for _ in range(self.layers)]
        self.readable_count.fill_(-1)

    def write(self, layer: int, rows: Rows, k: Tensor, v: Tensor) -> None:
        """Store k, v [R, kv_heads, head_dim] of 1-based `layer` at the rows' positions."""
        keys, values = self._keys[layer - 1], self._values[layer - 1]
        k, v = k.transpose(0, 1), v.transpose(0, 1)
        if rows.contiguous:
            first = rows.positions[0]
            keys[:, first : rows.span] = k
            values[:, first : rows.span] = v
        else:
            index = rows.index(keys.device)
            keys[:, index] = k.to(keys.dtype)
            values[:, index] = v.to(values.dtype)

    def mark(self, first: int, rows: Rows, letters: str, stand_in: bool = False) -> None:
        """Note the KV source of the slots of `rows`: a letter per layer from `first` on.

        Slots marked m, n or d are missing; with `stand_in` those marked d hold an entry that will
        be replaced.
        """
        source = letters.encode()
        for position in rows.positions:
            start = position * self.layers + first - 1
            self._source[start : start + len(source)] = source
        lost = UNREADABLE - {"d"} if stand_in else UNREADABLE
        if any(self._missing) or not lost.isdisjoint(letters):
            for layer, letter in enumerate(letters, start=first):
                self._note(layer, rows, letter in lost)

    def _note(self, layer: int, rows: Rows, unreadable: bool) -> None:
        """Keep the readable rows of a layer once one of its slots is missing."""
        missing, listed = self._missing[layer - 1], self._listed[layer - 1]
        if unreadable:
            missing.update(rows.positions)
        else:
            missing.difference_update(rows.positions)
        count = int(self._counts[layer - 1])
        if not missing:
            self._counts[layer - 1] = -1
        elif count < 0 or (count and listed[count - 1] >= rows.positions[0]):
            self._list_readable(layer)
        elif not unreadable:  # behind all that are listed
            listed[count : count + len(rows)] = rows.positions
            self._counts[layer - 1] = count + len(rows)

    def _list_readable(self, layer: int) -> None:
        missing = self._missing[layer - 1]
        letters = torch.frombuffer(self._source, dtype=torch.uint8).view(-1, self.layers)
        held = letters[:, layer - 1] != UNWRITTEN
        held[list(missing)] = False
        found = held.nonzero()[:, 0]
        self.readable[layer - 1, : len(found)] = found
        self.readable_count[layer - 1] = len(found) if missing else -1

    def missing(self, layer: int) -> frozenset[int]:
        """Positions whose slot in 1-based `layer` no later token may read."""
        return frozenset(self._missing[layer - 1])

    @property
    def complete(self) -> bool:
        """Whether later tokens may read every slot that holds an entry."""
        return not any(self._missing)

    def require(self, first: int, last: int, rows: Rows) -> None:
        """Raise RiverError where layers first..last would read a missing slot for `rows`."""
        for layer in range(first, last + 1):
            lost = self._missing[layer - 1]
            if lost and not lost.issubset(rows.positions):
                at = min(lost.difference(rows.positions))
                raise RiverError(
                    f"layer {layer} would read position {at}, which is missing there; this policy "
                    "must not leave such slots."
                )

    def view(self, layer: int, rows: Rows, window: int | None = None) -> tuple[Tensor, Tensor]:
        """K and V of 1-based `layer` that `rows` may read: [kv_heads, n, head_dim] each.

        Slots 0..last position; for a single row without the missing ones, its own being the last,
        and of positions only the last `window`.
        """
        keys, values = self._keys[layer - 1], self._values[layer - 1]
        count = int(self.readable_count[layer - 1])
        first = 0 if window is None or len(rows) > 1 else max(0, rows.span - window)
        if count < 0 or len(rows) > 1:
            return keys[:, first : rows.span], values[:, first : rows.span]
        seen = torch.cat([self.readable[layer - 1, :count], torch.tensor(rows.positions)]).long()
        seen = seen[seen >= first].to(keys.device)
        return keys[:, seen], values[:, seen]

    def valid(self, layer: int) -> list[int]:
        """Positions of 1-based `layer` that hold an entry, ascending."""
        letters, missing = self._source[layer - 1 :: self.layers], self._missing[layer - 1]
        return [p for p, letter in enumerate(letters) if letter != UNWRITTEN and p not in missing]

    def letters(self, position: int) -> str:
        """KV source of every layer at `position`, one letter per layer, '.' where unwritten."""
        row = self._source[position * self.layers : (position + 1) * self.layers]
        return "".join(chr(letter or ord(".")) for letter in row)

    def count(self, letter: str) -> int:
        """Slots whose KV source is `letter`."""
        return self._source.count(letter.encode())

    def crop(self, length: int) -> None:
        """Forget the slots at positions >= length in every layer."""
        start = length * self.layers
        self._source[start:] = bytes(len(self._source) - start)
        for layer, missing in enumerate(self._missing, start=1):
            if missing:
                missing -= {p for p in missing if p >= length}
                self._list_readable(layer)

    def tensors(self) -> Sequence[Tensor]:
        """The buffers, for the memory ledger."""
        return self._whole or [*self._keys, *self._values]

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers."""
        return sum(tensor.nbytes for tensor in self.tensors())
