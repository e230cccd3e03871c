"""A device on the CPU that fails where a GPU would: for tests of what runs on graphs.

A capture records the operations that torch's dispatcher sees and replays them into the storages
of then, so a number of Python's is burned in. What is launched waits in a queue, of which each
look at a mailbox runs none, one or two; a read without looking finds what was there before.
Intermediates are NaN after a replay, and weights that were dropped are NaN in the copies that the
fake keeps. Reading a value back in a capture, launching a dropped graph and waiting for a word
that nothing will write raise RiverError. `.tolist()` and `.numpy()` in a capture are not seen:
what they give is burned in.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from ..errors import RiverError
from .device import Answer, Graph, KernelCall, Mailbox, Then, unpack

READS_BACK = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2")
FROM_HOST = ("lift_fresh",)
_POISON = float("nan")


@dataclass(eq=False)
class FakeGraph(Graph):
    """What a capture recorded: calls in order, and the tensors that they made."""

    nodes: list[Callable[[], None]] = field(default_factory=list)
    made: list[Tensor] = field(default_factory=list)  # whole storages, flat
    touched: set[int] = field(default_factory=set)  # addresses that it reads or writes
    kernels: list[str] = field(default_factory=list)  # names of those that are no operations

    def replay(self) -> None:
        """Run the calls again, on the same storages; what they made is then lost."""
        for node in self.nodes:
            node()
        for tensor in self.made:
            tensor.fill_(_POISON)


class FakeDevice:
    """`seed` decides how much of the queue runs at each look; see the protocol for the rest.

    With `interpreted` kernels run themselves, as Triton's interpreter does on a CPU, and not their
    references.
    """

    name = "fake"
    notes: tuple[str, ...] = ()

    def __init__(self, seed: int = 0, *, interpreted: bool = False) -> None:
        self._interpreted = interpreted
        self._random = random.Random(seed)
        self._queue: deque[tuple[str, Callable[[], None]]] = deque()
        self._graphs: list[FakeGraph] = []
        self._copies: dict[int, Tensor] = {}  # of weights, by address
        self._recorder: _Recorder | None = None
        self._looks = 0
        self.captures = 0

    def static(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeros that never move."""
        with torch.inference_mode(False):
            return torch.zeros(tuple(shape), dtype=dtype)

    def mailbox(self, slots: int) -> Mailbox:
        """An empty mailbox of so many words."""
        return Mailbox(self.static((slots,), torch.int64))

    def put(self, target: Tensor, values: Sequence[float]) -> None:
        """Write host numbers into a static, behind all that was launched."""
        fresh = torch.tensor(values, dtype=target.dtype)
        self._queue.append(("put", lambda: void(target.copy_(fresh))))

    def capture(
        self,
        key: Hashable,
        fn: Callable[[], None],
        *,
        reads: Collection[int] = (),
        warm_up: Callable[[], None] | None = None,
    ) -> FakeGraph:
        """Run `fn`, record its operations, and put back what statics held before."""
        self.drain()
        if warm_up is not None:
            warm_up()
        graph = FakeGraph(key, frozenset(reads))
        self._recorder = recorder = _Recorder(graph, self._copies)
        try:
            with recorder:
                fn()
        finally:
            self._recorder = None
            recorder.put_back()
        self._graphs.append(graph)
        self.captures += 1
        return graph

    def launch(self, graph: Graph) -> None:
        """Queue a graph; RiverError where it was dropped."""
        assert isinstance(graph, FakeGraph)
        if graph.dropped:
            raise RiverError(f"the graph {graph.key} was dropped with the weights that it reads.")
        self._queue.append((str(graph.key), graph.replay))

    def poll(
        self, mailbox: Mailbox, slot: int, step: int, deadline: float, then: Then = (None, None)
    ) -> Answer:
        """Run some of the queue until the word is there, then queue what follows.

        Raises RiverError where the queue is empty before: nothing would ever write the word.
        """
        while True:
            self._looks += 1
            found, answer = unpack(int(mailbox.words[slot]))
            if found == step:
                break
            if not self._queue:
                raise RiverError(
                    f"deadlock: slot {slot} holds step {found}, not {step}, and nothing is launched"
                    " that would write it."
                )
            for _ in range(min(self._random.randrange(3), len(self._queue))):
                self._queue.popleft()[1]()
        follower = then[answer.leaves]
        if follower is not None:
            self.launch(follower)
        return answer

    def follow(self) -> None:
        """Before torch operations on what was launched: run the queue."""
        self.drain()

    def drain(self) -> None:
        """Run the whole queue."""
        while self._queue:
            self._queue.popleft()[1]()

    @torch.inference_mode()
    def drop(self, weights: Collection[int]) -> None:
        """Let go of the graphs that read any of these weights, and make the copies NaN.

        What is still in the queue runs later, and sees NaN: who drops weights has to drain first.
        """
        for graph in self._graphs:
            if not graph.touched.isdisjoint(set(weights) - graph.reads):
                raise RiverError(f"the graph {graph.key} reads weights that it did not name.")
            graph.dropped = graph.dropped or not graph.reads.isdisjoint(weights)
        self._graphs = [graph for graph in self._graphs if not graph.dropped]
        for address in weights:
            if address in self._copies:
                _poison(self._copies.pop(address))

    def kernel(self, call: KernelCall) -> None:
        """Run it or its reference, now and whenever the graph of this capture is replayed."""
        run = call.run if self._interpreted else call.reference
        if self._recorder is None:
            run()
        else:
            self._recorder.call(call, run)

    def clock(self) -> float:
        """How often a mailbox was looked at."""
        return float(self._looks)


class _Recorder(TorchDispatchMode):
    """Records into `graph`; weights that it reads are replaced by copies, kept by address."""

    def __init__(self, graph: FakeGraph, copies: dict[int, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph, self._copies = graph, copies
        self._made: set[int] = set()
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        if name in READS_BACK or (name == "index" and _masks(args)):
            raise RiverError(f"the capture of {self._graph.key} reads a value back ({name}).")
        if name in FROM_HOST:
            raise RiverError(
                f"the capture of {self._graph.key} takes a value of the host ({name})."
            )
        written = list(_written(func, args, kwargs))
        for tensor in written:
            self._keep(tensor)
        result = func(*args, **kwargs)
        known = {_address(t) for t in _tensors((args, kwargs))}
        fresh = [t for t in _tensors(result) if _address(t) not in known]
        if fresh or written:
            self._note(func, args, kwargs, result, fresh)
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any, fresh: list[Tensor]) -> None:
        """Keep one call; views are none, as they are no work on a GPU."""
        self._graph.touched |= {_address(t) for t in _tensors((args, kwargs))}
        args, kwargs = tree_map(self._copied, args), tree_map(self._copied, kwargs)
        self._graph.made += [_whole(t) for t in fresh if t.is_floating_point()]
        self._made |= {_address(t) for t in fresh}

        def node() -> None:
            again = func(*args, **kwargs)
            if isinstance(again, Tensor):
                fresh[0].copy_(again)
                return
            for old, new in zip(_tensors(result), _tensors(again), strict=True):
                if any(old is t for t in fresh):
                    old.copy_(new)

        self._graph.nodes.append(node if fresh else lambda: void(func(*args, **kwargs)))

    def call(self, call: KernelCall, run: Callable[[], None]) -> None:
        """Run and record a kernel, of which the dispatcher is to see nothing."""
        self._graph.touched |= {_address(t) for t in call.reads}
        self._graph.kernels.append(call.name)
        with _disable_current_modes():
            for tensor in call.writes:
                self._keep(tensor)
            run()
        self._graph.nodes.append(run)

    def _keep(self, tensor: Tensor) -> None:
        """Remember what a storage that was there before the capture held."""
        address = _address(tensor)
        if address not in self._made and address not in self._before:
            whole = _whole(tensor)
            self._before[address] = whole, whole.clone()

    def put_back(self) -> None:
        """What was written during the capture is as it was: a GPU would only have noted it."""
        for whole, before in self._before.values():
            whole.copy_(before)
        for tensor in self._graph.made:
            tensor.fill_(_POISON)

    def _copied(self, value: Any) -> Any:
        """A tensor of a weight, as one of the fake's copy of it."""
        if not isinstance(value, Tensor) or _address(value) not in self._graph.reads:
            return value
        address = _address(value)
        if address not in self._copies:
            self._copies[address] = _whole(value).clone()
        copy = torch.empty(0, dtype=value.dtype)
        storage = self._copies[address].untyped_storage()
        return copy.set_(storage, value.storage_offset(), value.shape, value.stride())


def void(_: object) -> None:
    """What a call gives, thrown away."""


def _masks(args: Any) -> bool:
    """Whether an index is a mask: how many it chooses only the host could know."""
    return any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1:]))


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors that an operation's schema says it changes."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from _tensors(value)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _address(tensor: Tensor) -> int:
    """Where a tensor's storage is; of one without a storage to look into, its id."""
    if tensor.layout != torch.strided:
        return id(tensor)
    return tensor.untyped_storage().data_ptr()


def _whole(tensor: Tensor) -> Tensor:
    """All of a tensor's storage, flat."""
    storage = tensor.untyped_storage()
    size = storage.nbytes() // tensor.element_size()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (size,), (1,))


def _poison(tensor: Tensor) -> None:
    tensor.fill_(_POISON if tensor.is_floating_point() else 113)
