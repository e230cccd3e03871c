"""What runs pieces of a pass without the host: static buffers, captured graphs and a mailbox.

One protocol, two implementations: cuda_device.py, and fake_device.py, which runs on the CPU and
shows the faults that only a GPU would. Knows nothing of layers or models.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

STEPS = (1 << 31) - 1  # steps are 1..STEPS, then 1 again; 0 is an empty mailbox
_LOW = (1 << 32) - 1


@dataclass(eq=False)
class Graph:
    """A captured piece; `reads` are the ids of the weights whose addresses it holds."""

    key: Hashable
    reads: frozenset[int]
    dropped: bool = False


class Answer(NamedTuple):
    """What a word says: whether the similarity is above the threshold, and the similarity."""

    leaves: bool
    similarity: float


@dataclass(frozen=True, eq=False)
class Mailbox:
    """Host memory that pieces write into: int64 [slots], a word each. Read it by `poll` alone."""

    words: Tensor

    def post(self, slot: int, word: Tensor) -> None:
        """Part of a piece: write `word` int64 [1] into `slot`; aligned, so that it cannot tear."""
        self.words[slot : slot + 1].copy_(word, non_blocking=True)


@dataclass(frozen=True)
class KernelCall:
    """One launch of a kernel that is no torch operation.

    `run` launches it on the GPU; `reference` does the same in plain torch and may read what the
    device holds by then, as a kernel does; `writes` are the tensors that it changes, `reads` the
    weights among those that it reads.
    """

    name: str
    run: Callable[[], None]
    reference: Callable[[], None]
    writes: Sequence[Tensor]
    reads: Sequence[Tensor] = ()


Then = tuple[Graph | None, Graph | None]


class Device(Protocol):
    """Owns all that the CPU has not: graphs, streams and pinned memory. For one thread."""

    name: str
    notes: tuple[str, ...]  # what works less well than it could, a sentence each

    def static(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeros that never move and that pieces may keep the address of."""
        ...

    def mailbox(self, slots: int) -> Mailbox:
        """An empty mailbox of so many words."""
        ...

    def put(self, target: Tensor, values: Sequence[float]) -> None:
        """Write host numbers into a static, behind all that was launched."""
        ...

    def capture(
        self,
        key: Hashable,
        fn: Callable[[], None],
        *,
        reads: Collection[int] = (),
        warm_up: Callable[[], None] | None = None,
    ) -> Graph:
        """Make a graph of the operations of `fn`, which takes and returns everything in statics.

        Nothing that statics hold changes. `warm_up` is `fn` on scratch state, run before; without
        it everything launched is waited for, and kernels have to be warm. Raises KernelUnavailable
        where the device cannot capture it.
        """
        ...

    def launch(self, graph: Graph) -> None:
        """Ask for a graph to run, behind all others; RiverError where it was dropped."""
        ...

    def poll(
        self, mailbox: Mailbox, slot: int, step: int, deadline: float, then: Then = (None, None)
    ) -> Answer:
        """Wait for the word of `step` in `slot`, then launch the first of `then`, or the second
        where the word says that the similarity is above the threshold.

        Raises RiverError where the word has not come `deadline` seconds from now.
        """
        ...

    def follow(self) -> None:
        """Before torch operations on what was launched: they come behind it."""
        ...

    def drain(self) -> None:
        """Wait until everything launched is done."""
        ...

    def drop(self, weights: Collection[int]) -> None:
        """Let go of the graphs that read any of these weights, once what was launched is done."""
        ...

    def kernel(self, call: KernelCall) -> None:
        """Part of a piece: launch a kernel that is no torch operation."""
        ...

    def clock(self) -> float:
        """Seconds, of the same clock as deadlines."""
        ...


def pack(step: Tensor, similarity: Tensor, threshold: Tensor) -> Tensor:
    """The word int64 [1] of a step int64 [1] and a similarity against a threshold, fp32 [1] each.

    From the top: 31 bits of step, the flag "above the threshold", 32 bits of similarity.
    """
    bits = similarity.view(torch.int32).to(torch.int64) & _LOW
    return (step << 33) | ((similarity > threshold).to(torch.int64) << 32) | bits


def unpack(word: int) -> tuple[int, Answer]:
    """Step and answer of a word, as a signed or unsigned 64-bit number."""
    (similarity,) = struct.unpack("<f", struct.pack("<I", word & _LOW))
    return (word >> 33) & STEPS, Answer(bool(word >> 32 & 1), similarity)


def weight_ids(tensors: Collection[Tensor]) -> frozenset[int]:
    """The addresses of the tensors' storages: what a graph holds of weights."""
    return frozenset(
        t.untyped_storage().data_ptr() for t in tensors if t.layout == torch.strided and t.numel()
    )
