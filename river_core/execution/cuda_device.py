"""The device protocol on a CUDA GPU: captured graphs, pinned memory, and a wait without a lock.

Not yet run on a GPU: written from torch's sources and CUDA's documentation. Graphs are captured on
a stream of their own and replayed on the current one, so that they and torch's operations keep the
order in which they were asked for.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import KernelUnavailable, RiverError
from .device import Answer, Graph, KernelCall, Mailbox, Then, pack
from .host_poll import Launcher, find_poll, python_poll

RING = 64  # numbers on their way to the device at once


@dataclass(eq=False)
class CudaGraph(Graph):
    """A captured graph; `handle` is CUDA's own of what is launched, 0 where torch keeps it."""

    graph: torch.cuda.CUDAGraph | None = None
    handle: int = 0


@dataclass(eq=False)
class _Ring:
    """Pinned rows that are filled in turn, so that one is not changed while it is copied."""

    rows: Tensor
    turn: int = 0


class CudaDevice:
    """One GPU, used by one thread. Raises KernelUnavailable where a first graph does not work."""

    name = "CUDA"

    def __init__(self, device: torch.device) -> None:
        self._device, self._lock = device, threading.Lock()
        self._rings: dict[tuple[torch.dtype, int], _Ring] = {}
        self._graphs: list[CudaGraph] = []
        self._poll, self.notes = find_poll()
        self._launch = _graph_launch()
        try:
            self._stream = torch.cuda.Stream(device)
            self._pool = torch.cuda.graph_pool_handle()
            self._try()
        except (RuntimeError, RiverError) as error:
            raise _unusable(error) from error

    def _try(self) -> None:
        """Capture, launch and wait for one word; RiverError where it is not the right one."""
        mailbox, step = self.mailbox(1), self.static((1,), torch.int64)
        value, threshold = (self.static((1,), torch.float32) for _ in range(2))

        def post() -> None:
            mailbox.post(0, pack(step, value, threshold))

        graph = self.capture("trial", post, warm_up=post)
        self.put(value, [0.75])
        self.put(threshold, [0.5])
        self.put(step, [1])
        self.launch(graph)
        answer = self.poll(mailbox, 0, 1, 10.0)
        if answer != Answer(True, 0.75):
            raise RiverError(f"a trial brought {answer}")

    def static(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeros that never move."""
        with torch.inference_mode(False):
            return torch.zeros(tuple(shape), dtype=dtype, device=self._device)

    def mailbox(self, slots: int) -> Mailbox:
        """An empty mailbox of so many words, in pinned memory."""
        with torch.inference_mode(False):
            return Mailbox(torch.zeros(slots, dtype=torch.int64, pin_memory=True))

    def put(self, target: Tensor, values: Sequence[float]) -> None:
        """Write host numbers into a static, behind all that was launched."""
        key = target.dtype, len(values)
        if key not in self._rings:
            with torch.inference_mode(False):
                rows = torch.zeros((RING, len(values)), dtype=target.dtype, pin_memory=True)
            self._rings[key] = _Ring(rows)
        ring = self._rings[key]
        if ring.turn == RING:
            self.drain()
            ring.turn = 0
        row = ring.rows[ring.turn]
        row.copy_(torch.tensor(values, dtype=target.dtype))
        target.copy_(row, non_blocking=True)
        ring.turn += 1

    def capture(
        self,
        key: Hashable,
        fn: Callable[[], None],
        *,
        reads: Collection[int] = (),
        warm_up: Callable[[], None] | None = None,
    ) -> CudaGraph:
        """Make a graph of the operations of `fn`; KernelUnavailable where CUDA refuses one."""
        graph = torch.cuda.CUDAGraph()
        with self._lock, torch.cuda.device(self._device):
            try:
                self.drain()
                with torch.cuda.stream(self._stream):
                    if warm_up is not None:
                        warm_up()
                        self._stream.synchronize()
                    graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                    try:
                        fn()
                    finally:
                        graph.capture_end()
            except RuntimeError as error:
                raise _unusable(error) from error
        made = CudaGraph(key, frozenset(reads), graph=graph, handle=self._handle(graph))
        self._graphs.append(made)
        return made

    def _handle(self, graph: torch.cuda.CUDAGraph) -> int:
        """CUDA's handle of an executable graph, where this torch gives it and it is of use."""
        raw = getattr(graph, "raw_cuda_graph_exec", None)
        return 0 if raw is None or self._launch is None or self._poll is None else int(raw())

    def launch(self, graph: Graph) -> None:
        """Ask for a graph to run, behind all others; RiverError where it was dropped."""
        assert isinstance(graph, CudaGraph)
        _living(graph).replay()

    def poll(
        self, mailbox: Mailbox, slot: int, step: int, deadline: float, then: Then = (None, None)
    ) -> Answer:
        """Wait for the word of `step` in `slot`, then launch what follows by its flag."""
        for graph in then:
            if graph is not None:
                _living(graph)
        if self._poll is None:
            answer = python_poll(mailbox, slot, step, deadline)
            launched = False
        else:
            handles = _handles(then)
            launched = self._launch is not None and handles is not None
            by = self._launcher() if launched else None
            answer = self._poll(mailbox, slot, step, deadline, by, handles or (0, 0))
        follower = then[answer.leaves]
        if follower is not None and not launched:
            self.launch(follower)
        return answer

    def _launcher(self) -> Launcher:
        assert self._launch is not None
        return Launcher(self._launch, torch.cuda.current_stream(self._device).cuda_stream)

    def follow(self) -> None:
        """Nothing to do: graphs and torch's operations are on one stream."""

    def drain(self) -> None:
        """Wait until everything launched is done."""
        torch.cuda.synchronize(self._device)

    def drop(self, weights: Collection[int]) -> None:
        """Let go of the graphs that read any of these weights, once what was launched is done."""
        self.drain()
        for graph in self._graphs:
            if not graph.reads.isdisjoint(weights):
                graph.dropped, graph.graph, graph.handle = True, None, 0
        self._graphs = [graph for graph in self._graphs if not graph.dropped]

    def kernel(self, call: KernelCall) -> None:
        """Launch a kernel that is no torch operation."""
        call.run()

    def clock(self) -> float:
        """Seconds of the host's clock."""
        return time.perf_counter()


def _living(graph: Graph) -> torch.cuda.CUDAGraph:
    """Torch's graph; RiverError where it was dropped."""
    if graph.dropped or not isinstance(graph, CudaGraph) or graph.graph is None:
        raise RiverError(f"the graph {graph.key} was dropped with the weights that it reads.")
    return graph.graph


def _handles(then: Then) -> tuple[int, int] | None:
    """CUDA's handles of both graphs, 0 for none; None where torch alone can launch them."""
    found = [0 if g is None else g.handle for g in then if g is None or isinstance(g, CudaGraph)]
    missing = any(h == 0 and g is not None for h, g in zip(found, then, strict=True))
    return None if missing else (found[0], found[1])


def _graph_launch() -> int | None:
    """The address of the driver's cuGraphLaunch; None where it is not found."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        return ctypes.cast(driver.cuGraphLaunch, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def _unusable(error: Exception) -> KernelUnavailable:
    said = str(error).strip().partition("\n")[0].rstrip(".")
    return KernelUnavailable(
        f"CUDA graphs cannot be used here ({said}); steps run operation by operation."
    )
