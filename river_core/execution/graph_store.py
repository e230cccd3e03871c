"""The graphs of one model, kept from run to run: captured once, dropped with weights they read.

Says which graphs there are; which of them runs when is graphs.py's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor

from ..errors import KernelUnavailable
from ..layer import LayerWeights
from ..model import RiverModel
from .device import Device, Graph, weight_ids
from .kernel_pieces import pieces_on
from .pieces import Attention, Pieces, State

OFTEN = 3  # times that a span of layers is asked for before it has a graph of its own
BACKBONE, RIVER = "b", "r"  # kinds of graphs, by the letters of a path


class Key(NamedTuple):
    """Which graph: a kind, its layers, and the slots that its attention reads."""

    kind: str
    first: int = 0
    last: int = 0
    reach: int = 0


class GraphStore:
    """Graphs of `model` on `device`: at most two of a layer, as many spans, and three others, for
    each reach. `captures` counts them."""

    def __init__(self, model: RiverModel, device: Device, attention: Attention) -> None:
        # a copy that shares everything, but not this store: neither keeps the other alive
        self.model = replace(model, kept={}, engines=WeakSet())
        self.device = device
        self.attention = attention
        self.captures = self.step = 0
        self._graphs: dict[Key, Graph] = {}
        self._asked: Counter[Key] = Counter()
        self._warm: set[tuple[str, int, tuple[str, ...]]] = set()
        self._ready: set[int] = set()  # reaches
        self._refused: set[int | Key] = set()  # reaches and graphs that could not be captured
        keys, values = (side.unbind(0) for side in (model.cache.k, model.cache.v))
        self.state = State.on(device, model, keys, values)
        self._pieces = pieces_on(self.model, device, self.state, attention)

    def serves(self, model: RiverModel) -> bool:
        """Whether the graphs are of this model's own tensors."""
        pairs = zip(_parts(model), _parts(self.model), strict=True)
        return all(mine is own for mine, own in pairs)

    def buffers(self) -> list[Tensor]:
        """Tensors on the device beside the model's own, for its memory ledger."""
        return self._pieces.buffers()

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def guaranteed(self) -> int:
        """Backbone layers that every token runs before it can leave."""
        return self.model.info.entry_layer - 1

    def reach(self, position: int) -> int:
        """Slots that graphs for a row at `position` read."""
        return self.attention.reach(position, self.model.capacity)

    def prepare(self, reach: int) -> None:
        """Capture every piece of one layer for this reach, before a pass that needs them."""
        if reach in self._ready:
            return
        model, own = self.model, self.guaranteed
        keys = [Key("start", 1, own, reach), Key("embed"), Key("tail"), Key("undo")]
        keys += [Key(BACKBONE, n, n, reach) for n in range(own + 1, model.resident + 1)]
        twins = (n for n, twin in enumerate(model.river, start=1) if twin is not None)
        keys += [Key(RIVER, n, n, reach) for n in twins]
        missing = [key for key in keys if key not in self._graphs]
        if missing:
            scratch = self._scratch()
            for key in missing:
                self._capture(key, scratch)
        self._ready.add(reach)

    def ready(self, reach: int) -> bool:
        """Whether every piece for this reach is there by now; a note of the device says why not."""
        return self._granted(reach, partial(self.prepare, reach), f"with {reach} slots")

    def find(self, key: Key) -> Graph:
        """The graph of a key, captured where there is none yet; may raise KernelUnavailable."""
        if key not in self._graphs:
            self._capture(key, None)
        return self._graphs[key]

    def seek(self, key: Key) -> Graph | None:
        """As `find`, but None where there can be none; a note of the device says why."""
        what = f"of {key.last - key.first + 1} layers"
        return self._graphs[key] if self._granted(key, partial(self.find, key), what) else None

    def _granted(self, what: int | Key, make: Callable[[], object], said: str) -> bool:
        """Whether `make` works; what failed once is not tried again until layers are evicted."""
        if what not in self._refused:
            try:
                make()
            except (KernelUnavailable, torch.OutOfMemoryError) as reason:
                self._refused.add(what)
                note = f"Some steps {said} run without the graphs that they would need: {reason}"
                self.device.notes = tuple(dict.fromkeys((*self.device.notes, note)))
        return what not in self._refused

    def spans(
        self, kind: str, first: int, last: int, reach: int, *, whole: bool = True
    ) -> list[Graph] | None:
        """Graphs that together run layers first..last: one for all where that is asked often.

        With `whole` False always one for each layer. None where there can be none.
        """
        if first > last:
            return []
        key = Key(kind, first, last, reach)
        if whole and first < last and self._worth(key):
            graph = self.seek(key)
            if graph is not None:
                return [graph]
        found = [self.seek(Key(kind, n, n, reach)) for n in range(first, last + 1)]
        there = [graph for graph in found if graph is not None]
        return there if len(there) == len(found) else None

    def _worth(self, whole: Key) -> bool:
        """Whether a span of layers has a graph of its own, or is asked for often enough."""
        if whole in self._graphs:
            return True
        self._asked[whole] += 1
        often = self._asked[whole] >= OFTEN
        return often and self._spans(whole.reach) < 2 * self.model.num_layers

    def _spans(self, reach: int) -> int:
        return sum(key.first < key.last and key.reach == reach for key in self._graphs)

    def drop(self) -> None:
        """Let go of the graphs that read weights which the model has no more."""
        self.device.drain()
        held = frozenset[int]().union(*(graph.reads for graph in self._graphs.values()))
        gone = held - self._ids(self.model.banks[0] + self.model.banks[1])
        if gone:
            self.device.drop(gone)
            self._graphs = {key: g for key, g in self._graphs.items() if not g.dropped}
        self._ready.clear()  # layers may have come back, or left room
        self._refused.clear()

    def _scratch(self) -> Pieces:
        """The same pieces on a state that nobody reads, one layer's cache for all of them."""
        count = self.model.num_layers
        keys, values = ([torch.zeros_like(side[0])] * count for side in self._cached())
        state = State.on(self.device, self.model, keys, values)
        return replace(self._pieces, state=state)

    def _cached(self) -> tuple[list[Tensor], list[Tensor]]:
        return list(self.state.keys), list(self.state.values)

    @torch.inference_mode()
    def _capture(self, key: Key, scratch: Pieces | None) -> None:
        """Make the graph; with `scratch` the first of its kind is warmed up on that."""
        kind = key.kind, key.reach, self._kernels(key)
        warm_up = None
        if scratch is not None and kind not in self._warm:
            warm_up = _piece(scratch, key)
        fn = _piece(self._pieces, key)
        self._graphs[key] = self.device.capture(key, fn, reads=self._reads(key), warm_up=warm_up)
        self._warm.add(kind)
        self.captures += 1

    def _kernels(self, key: Key) -> tuple[str, ...]:
        """The kernels of a key's first layer, each of which has to be warm before a capture."""
        bank = self.model.river if key.kind == RIVER else self.model.backbone
        weights = bank[key.first - 1] if key.last else None
        return () if weights is None else tuple(x.name for x in weights.linears.values())

    def _reads(self, key: Key) -> frozenset[int]:
        """The weights whose addresses the graph of a key holds."""
        bank = self.model.river if key.kind == RIVER else self.model.backbone
        return self._ids(bank[key.first - 1 : key.last] if key.last else [])

    def _ids(self, layers: list[LayerWeights | None]) -> frozenset[int]:
        """The weights of these layers, and those of no layer."""
        model = self.model
        tensors = [model.embedding, model.final_norm, *model.head.tensors()]
        for weights in layers:
            if weights is not None:
                tensors += weights.small.values()
                tensors += [t for linear in weights.linears.values() for t in linear.tensors()]
        return weight_ids(tensors)


def _parts(model: RiverModel) -> tuple[object, ...]:
    """What graphs hold addresses of, or find layers in."""
    small = model.embedding, model.final_norm, model.ropes
    return (model.backbone, model.river, model.cache, model.head, *small)


def _piece(pieces: Pieces, key: Key) -> Callable[[], None]:
    """What the graph of a key runs."""
    kind, first, last, reach = key
    if kind == "start":
        return partial(_start, pieces, last, reach)
    if kind in (BACKBONE, RIVER):
        layers = pieces.backbone if kind == BACKBONE else pieces.river
        return partial(layers, first, last, reach)
    run: Callable[[], None] = getattr(pieces, kind)
    return run


def _start(pieces: Pieces, last: int, reach: int) -> None:
    pieces.embed()
    pieces.backbone(1, last, reach)
