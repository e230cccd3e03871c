"""One row at a time through captured graphs; many rows, and what no graph knows, in eager torch.

The residual stream, its place and the threshold live in static buffers on the device; similarities
come back through a mailbox. What a graph does not know (halves of layers, rows that join, a
propagated state, missing slots) the eager verbs do, from where the graphs stand: both write the
same cache, so passes of both kinds follow each other freely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..cache import Rows
from ..errors import KernelUnavailable
from ..model import RiverModel
from ..settings import LAYER_GRAPHS
from .device import STEPS, Device, Then
from .eager import EagerExecution, check_finite
from .graph_store import BACKBONE, RIVER, GraphStore, Key
from .kernel_attention import attention_on
from .pieces import Attention

KEPT = "graphs"  # the store's place among what a model keeps for its engines
DEADLINE = 60.0  # seconds for a piece of a few layers


class GraphExecution(EagerExecution):
    """Eager for many rows; for a single row, graphs that `store` keeps from run to run.

    With a threshold to foresee by, a decision launches what it leads to before Python hears of it;
    where the loop decides otherwise, that is undone.
    """

    name = "CUDA graphs"

    def __init__(self, model: RiverModel, store: GraphStore) -> None:
        super().__init__(model)
        self._by_layer = model.info.execution == LAYER_GRAPHS
        if self._by_layer:
            self.name = f"{self.name}, one per layer"
        self._store, self._device, self._static = store, store.device, store.state
        self.notes = store.device.notes
        self._single = self._embedded = False
        self._threshold: float | None = None
        self._on_device: float | None = None
        self._ahead: tuple[str, int] | None = None  # a layer that was launched unasked

    def start(self, rows: Rows) -> None:
        """Embed the rows' token ids: the residual stream becomes fp32 [R, d]."""
        self._device.follow()
        self._ahead = self._threshold = None
        store = self._store
        self._single = len(rows) == 1 and self._model.cache.complete
        if self._single:
            self._reach = store.reach(rows.positions[0])
            self._single = store.ready(self._reach)
        if not self._single:
            super().start(rows)
            return
        self._rows, self._host, self._embedded, self._done = rows, [], False, 0
        store.step = store.step % STEPS + 1
        self._device.put(self._static.inputs, [rows.token_ids[0], rows.positions[0], store.step])

    def foresee(self, threshold: float | None) -> None:
        """Of this pass: decisions go by this threshold alone, and who leaves runs the river."""
        self._threshold = threshold
        if self._single and threshold is not None and threshold != self._on_device:
            self._device.put(self._static.threshold, [_rounded_down(threshold)])
            self._on_device = threshold

    def _launch(self, kind: str, first: int, last: int) -> bool:
        """Launch layers first..last; False, and nothing is done, where there are no graphs."""
        graphs = self._store.spans(kind, first, last, self._reach, whole=not self._by_layer)
        for graph in graphs or []:
            self._device.launch(graph)
        return graphs is not None

    def _take(self, kind: str, first: int) -> int:
        """The first layer that is not launched yet, of a kind asked for from `first` on."""
        if self._ahead == (kind, first):
            self._ahead = None
            return first + 1
        self._undo()
        return first

    def _undo(self) -> None:
        """Take back what was launched unasked; its slots of the cache are written again later."""
        if self._ahead is not None:
            self._device.launch(self._store.find(Key("undo")))
            self._ahead = None

    def _embed(self) -> None:
        if not self._embedded:
            self._device.launch(self._store.find(Key("embed")))
            self._embedded = True

    def backbone(self, first: int, last: int) -> None:
        """Run backbone layers first..last on the rows, in place, and note their similarities."""
        if not self._single:
            super().backbone(first, last)
            return
        own, self._done = self._store.guaranteed, last
        if not self._embedded and first == 1 and last >= own:
            self._device.launch(self._store.find(Key("start", 1, own, self._reach)))
            self._embedded, first = True, own + 1
        self._embed()
        first = self._take(BACKBONE, first)
        if not self._launch(BACKBONE, first, last):
            self._done = first - 1
            self._leave()
            super().backbone(first, last)

    def river(self, first: int, last: int) -> None:
        """Run river layers first..last on the rows, in place."""
        if not self._single:
            super().river(first, last)
            return
        self._embed()
        first = self._take(RIVER, first)
        if not self._launch(RIVER, first, last):
            self._leave()
            super().river(first, last)

    def _followers(self, layer: int) -> tuple[Then, int]:
        """What stands after a decision after `layer`: the next layer of either bank."""
        seek, model, reach = self._store.seek, self._model, self._reach
        if self._threshold is None or layer == model.num_layers:
            return (None, None), 0
        following = layer + 1
        leave = stay = seek(Key(RIVER, following, following, reach))
        if following <= model.resident:
            stay = seek(Key(BACKBONE, following, following, reach))
        known = leave is not None and stay is not None
        return ((stay, leave), following) if known else ((None, None), 0)

    def read(self, layer: int) -> Sequence[float]:
        """Similarities of the rows after backbone `layer` of this pass, as host floats [R].

        Raises RiverError, naming the layer, where one is not finite.
        """
        if not self._single or self._ahead is not None or layer <= len(self._host):
            return super().read(layer)
        self.trace(layer - 1)
        then, following = self._followers(layer)
        leaves = self._poll(layer, then)
        if following:
            stays = not leaves and following <= self._model.resident
            self._ahead = (BACKBONE if stays else RIVER, following)
        return self._host[layer - 1]

    def _poll(self, layer: int, then: Then = (None, None)) -> bool:
        """Note the similarity of the next `layer`, and launch what follows from it."""
        answer = self._device.poll(
            self._static.mailbox, layer - 1, self._store.step, DEADLINE, then
        )
        check_finite((answer.similarity,), layer)
        self._host.append((answer.similarity,))
        return answer.leaves

    def trace(self, layers: int) -> list[Sequence[float]]:
        """Similarities of backbone layers 1..layers of this pass, [layer][row]."""
        if not self._single:
            return super().trace(layers)
        for layer in range(len(self._host) + 1, layers + 1):
            self._poll(layer)
        return self._host[:layers]

    def _leave(self) -> None:
        """From here on in eager torch: the hidden state and the similarities come along."""
        if not self._single:
            return
        self._undo()
        self._embed()
        self.trace(self._done)
        self._device.follow()
        self._single, self._x, self._pairs = False, self._static.hidden.clone(), []
        self._stand(self._rows)

    def half(self, layer: int, which: str) -> Sequence[float]:
        """Run "attention" or "feed_forward" of a backbone layer; the rows' similarities over it."""
        self._leave()
        return super().half(layer, which)

    def norms(self) -> float:
        """Mean norm of the rows' hidden states."""
        self._leave()
        return super().norms()

    def scale(self, factor: float) -> None:
        """Multiply the rows' hidden states: what stands in for a half that is left out."""
        self._leave()
        super().scale(factor)

    def open_layer(self) -> None:
        """A backbone layer begins that runs in halves."""
        self._leave()
        super().open_layer()

    def propagate(self, state: Tensor, first: int, last: int) -> None:
        """Write keys and values of backbone layers first..last as `state` [1, d] gives them."""
        self._leave()
        super().propagate(state, first, last)

    def join(self, rows: Rows, states: Tensor) -> None:
        """Take further rows [n, d] fp32 into the pass, before its own, in order of position."""
        self._leave()
        super().join(rows, states)

    def state(self) -> Tensor:
        """A copy of the rows' hidden states, fp32 [R, d]."""
        if not self._single:
            return super().state()
        self._undo()
        self._embed()
        self._device.follow()
        return self._static.hidden.clone()

    def logits(self) -> Tensor:
        """Scores of the last row, fp32 [V]; valid until the next call."""
        if not self._single:
            return super().logits()
        self._undo()
        self._embed()
        self._device.launch(self._store.find(Key("tail")))
        self._device.follow()
        return self._static.logits[0]

    def every_logits(self) -> Tensor:
        """Scores of all rows, fp32 [R, V]."""
        return self.logits().clone().unsqueeze(0) if self._single else super().every_logits()

    def settle(self) -> None:
        """Wait until everything asked for is done (for clocks)."""
        self._device.drain()


def open_graphs(
    model: RiverModel,
    make: Callable[[], Device],
    attention: Callable[[RiverModel, Device], Attention] = attention_on,
) -> GraphExecution:
    """An engine on graphs that `model` keeps, captured before the first run on a device of `make`.

    Raises KernelUnavailable where that does not work, or did not before.
    """
    kept = model.kept.get(KEPT)
    if isinstance(kept, str):
        raise KernelUnavailable(kept)
    if not isinstance(kept, GraphStore) or not kept.serves(model):
        try:
            device = make()
            kept = GraphStore(model, device, attention(model, device))
            kept.prepare(kept.reach(0))
        except (KernelUnavailable, torch.OutOfMemoryError) as reason:
            model.kept[KEPT] = str(reason)
            raise KernelUnavailable(str(reason)) from reason
        model.kept[KEPT] = kept
        model.engines.add(kept)
    return GraphExecution(model, kept)


def _rounded_down(threshold: float) -> float:
    """The largest fp32 number that is not above it: an fp32 similarity is above both or none."""
    near = torch.tensor(threshold, dtype=torch.float32)
    if float(near) > threshold:
        near = torch.nextafter(near, torch.tensor(-torch.inf))
    return float(near)
