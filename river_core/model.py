"""A loaded model: embedding, backbone, river, norm, head, the shared cache, and what each weighs.

Backbone layers may be evicted and restored while it is in use. Holds tensors and facts; knows
nothing of loading (loading.py) or of policies. Layers are 1-based wherever a number is named; the
lists are in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from weakref import WeakSet

import torch
from torch import Tensor

from .block import Rope
from .cache import SharedCache
from .calibration_store import CalibrationFile
from .errors import RiverError, SettingsError
from .giving_up import go_on
from .kernels.base import Linear
from .layer import BlockShape, LayerWeights
from .residency import Shelf, resident_layers, return_memory
from .settings import QuantSpec

Progress = Callable[[str, float | None], None]
Bank = list[LayerWeights | None]  # in order of the layers; None: not there


@runtime_checkable
class Buffered(Protocol):
    """What an engine keeps with a model and has tensors of its own."""

    def buffers(self) -> list[Tensor]:
        """Tensors on the device beside the model's own."""
        ...


@dataclass(frozen=True)
class ModelInfo:
    """Where a model came from and how it was prepared, for headers and the page."""

    name: str
    origin: str
    revision: str | None
    path: Path | None
    quant: QuantSpec
    entry_layer: int
    default_threshold: float
    kernels: Mapping[str, str]
    notes: tuple[str, ...] = ()
    calibration: CalibrationFile | None = None  # None: weights that no file holds
    river_seconds: float = 0.0  # what making the river's codes took, when they were made
    execution: str = "auto"  # as LoadSettings says
    river_bits: float | None = None  # stored per weight, metadata in 16 bits; None: as `quant` says


@dataclass
class RiverModel:
    """The backbone, its river and one cache. Made by `river_core.load`; used by one run at a time.

    `shapes` has one per layer, alike in size; embedding [V, d] in the dense dtype, its rows times
    `embedding_scale` (Gemma); final_norm fp32 [d]; `ropes` are the tables [capacity, D] that the
    shapes name; `placement` has a device per layer, or is empty; `river[l - 1]` is None below the
    entry layer until `ensure_full_river` builds it.

    The first `resident` layers of `backbone` are there, the others None: evicted. The norms and
    biases of an evicted layer live on in its twin; `restore_layer` (layer, twin) gives the layer
    back, and `shelf` may keep what it is made from. `engines` are told to let go of what went.
    """

    info: ModelInfo
    shapes: tuple[BlockShape, ...]
    embedding: Tensor
    backbone: Bank
    river: Bank
    final_norm: Tensor
    head: Linear
    ropes: tuple[Rope, ...]
    cache: SharedCache
    tokenizer: Any
    eos_ids: tuple[int, ...]
    build_twin: Callable[[int, LayerWeights], LayerWeights]
    restore_layer: Callable[[int, LayerWeights], LayerWeights]
    embedding_scale: float = 1.0
    placement: tuple[torch.device, ...] = ()
    shelf: Shelf = field(default_factory=Shelf, compare=False)
    engines: WeakSet[Any] = field(default_factory=WeakSet, compare=False)
    kept: dict[str, Any] = field(default_factory=dict, compare=False)  # what engines keep: graphs
    run: int = field(default=0, compare=False)  # which run the cache belongs to
    texts: dict[int, str] = field(default_factory=dict, compare=False)

    @property
    def num_layers(self) -> int:
        """L, the number of backbone layers."""
        return len(self.backbone)

    @property
    def shape(self) -> BlockShape:
        """The first layer's shape: its sizes are every layer's, its options may not be."""
        return self.shapes[0]

    def embed(self, ids: Tensor) -> Tensor:
        """The rows of token ids [R] int64 as they enter the first layer, fp32 [R, d]."""
        rows = self.embedding[ids].float()
        return rows if self.embedding_scale == 1.0 else rows * self.embedding_scale

    @property
    def vocab(self) -> int:
        """V, rows of the embedding."""
        return self.embedding.shape[0]

    @property
    def device(self) -> torch.device:
        """Where everything stands; under a placement, where a token begins and ends."""
        return self.embedding.device

    @property
    def origin(self) -> str:
        """Where the weights came from, a sentence for users."""
        return self.info.origin

    @property
    def path(self) -> Path | None:
        """Folder in hub layout with the 16-bit weights; None for random weights."""
        return self.info.path

    @property
    def capacity(self) -> int:
        """Tokens that the cache holds."""
        return self.cache.capacity

    @property
    def resident(self) -> int:
        """k, the leading backbone layers that are on the device; the last one forces the exit."""
        return sum(weights is not None for weights in self.backbone)

    def endless(self) -> RiverModel:
        """The same model, sharing everything, for which no token ends the text."""
        return replace(self, eos_ids=())

    def eagerly(self) -> RiverModel:
        """The same model, sharing everything, whose steps run in plain torch: the reference."""
        return self.running("eager")

    def running(self, execution: str) -> RiverModel:
        """The same model, sharing everything, whose steps run as LoadSettings' `execution` says."""
        return replace(self, info=replace(self.info, execution=execution))

    def set_resident(self, layers: int | str) -> None:
        """Keep the first `layers` backbone layers (entry layer - 1 to L), evict or restore others.

        "auto" is the smallest number that covers 95 % of the calibrated exits. Runs that have begun
        or were made before cannot go on. Raises SettingsError for other numbers and for "auto"
        without a calibration, ModelUnavailable where a layer cannot be had back; the model then is
        as it was.
        """
        info, before = self.info, self.resident
        bounds = self.num_layers, info.entry_layer
        wanted = resident_layers(layers, *bounds, info.calibration, info.default_threshold)
        if wanted == before:
            return
        restored = [self.restore_layer(n, self.twin(n)) for n in range(before + 1, wanted + 1)]
        for n in range(wanted + 1, before + 1):
            if self.layer(n) is not self.river[n - 1]:  # an identical river keeps the layer itself
                self.shelf.keep(n, self.layer(n).linears)
        kept, away = self.backbone[: min(before, wanted)], [None] * (self.num_layers - wanted)
        self.backbone[:] = [*kept, *restored, *away]
        for n in range(before + 1, wanted + 1):
            self.shelf.drop(n)
        self.run += 1
        for engine in self.engines:
            engine.drop()
        return_memory(self.device)

    def require_whole(self, what: str) -> None:
        """Raise SettingsError, naming `what` needs it, unless every backbone layer is resident."""
        if self.resident < self.num_layers:
            raise SettingsError(
                f"{what} needs all {self.num_layers} backbone layers, but {self.resident} are "
                f"resident; restore them with model.set_resident({self.num_layers})."
            )

    def require_one_device(self, what: str) -> None:
        """Raise SettingsError, naming `what`, where the layers stand on several devices."""
        if self.placement:
            raise SettingsError(f"{what} needs the model on one device; load it on one.")

    def layer(self, layer: int) -> LayerWeights:
        """The backbone's 1-based `layer`; RiverError where it is evicted."""
        weights = self.backbone[layer - 1]
        if weights is None:
            raise RiverError(
                f"backbone layer {layer} is not resident; restore it with "
                f"model.set_resident({self.num_layers})."
            )
        return weights

    def twin(self, layer: int) -> LayerWeights:
        """The river's 1-based `layer`; built on first use below the entry layer."""
        weights = self.river[layer - 1]
        if weights is None:
            weights = self.river[layer - 1] = self.build_twin(layer, self.layer(layer))
        return weights

    def ensure_full_river(self, pause: Callable[[], None] = go_on) -> None:
        """Build the twins below the entry layer, which only full quantization needs.

        `pause` is called before each; what it raises ends the building, and what was built stays.
        """
        for layer in range(1, self.num_layers + 1):
            if self.river[layer - 1] is None:
                pause()
                self.twin(layer)

    def token_text(self, token_id: int) -> str:
        """Text of one id by itself, remembered; a partial character shows as U+FFFD."""
        from .text import decode

        if token_id not in self.texts:
            self.texts[token_id] = decode(self.tokenizer, [token_id])
        return self.texts[token_id]

    @property
    def banks(self) -> tuple[Bank, Bank]:
        """Backbone and river."""
        return self.backbone, self.river

    def memory(self) -> dict[str, int]:
        """Bytes of unique storages by part; storage shared between parts counts once, first."""
        rope = [t for table in self.ropes for t in table.tensors]
        backbone, river = ([w for w in bank if w is not None] for bank in self.banks)
        parts: list[tuple[str, Iterable[Tensor]]] = [
            ("embedding", [self.embedding]),
            ("head", self.head.tensors()),
            ("backbone", _linear_tensors(backbone)),
            ("river", _linear_tensors(river)),
            ("norms", [*_norm_tensors(backbone + river), self.final_norm]),
            ("kv", self.cache.tensors()),
            ("buffers", [*rope, *self._engines_buffers()]),
        ]
        seen: set[int] = set()
        return {name: sum(_fresh_bytes(t, seen) for t in tensors) for name, tensors in parts}

    def _engines_buffers(self) -> list[Tensor]:
        """Tensors that what engines keep, such as graphs, work on."""
        stores = (kept for kept in self.kept.values() if isinstance(kept, Buffered))
        return [t for store in stores for t in store.buffers()]


def _linear_tensors(layers: list[LayerWeights]) -> list[Tensor]:
    return [t for w in layers for linear in w.linears.values() for t in linear.tensors()]


def _norm_tensors(layers: list[LayerWeights]) -> list[Tensor]:
    return [t for w in layers for t in w.small.values()]


def _fresh_bytes(tensor: Tensor, seen: set[int]) -> int:
    """Bytes of the tensor's storage unless it was counted before."""
    if tensor.layout == torch._mkldnn:  # type: ignore[attr-defined]
        key, size = id(tensor), tensor.nbytes  # packed by oneDNN: no storage to look into
    else:
        storage = tensor.untyped_storage()
        key, size = storage.data_ptr(), storage.nbytes()
    if key in seen:
        return 0
    seen.add(key)
    return size
