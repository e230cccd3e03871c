"""The layers of both banks from a checkpoint: read, hashed and quantised one layer at a time.

Also what happens later: twins below the entry layer, backbone layers that come back. A layer that
is read again has to be what it was. Knows nothing of how a model is put together.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .activation_aware import scaled_layer
from .awq_checkpoint import AwqCheckpoint
from .checkpoint import PARTS, Checkpoint
from .errors import ModelUnavailable
from .input_moments import TEXT, InputMoments
from .kernels.base import Linear, QuantMatrix
from .kernels.choose import KernelPlan
from .kernels.native import on_large_pages
from .kernels.torch_dense import TorchDense
from .layer import NORMS, LayerWeights
from .mixed_bits import Matrix
from .model import Bank, Progress
from .quantize import RiverFile, quantize_fused
from .residency import Shelf
from .settings import LoadSettings, QuantSpec

Stored = Mapping[str, Mapping[str, Tensor]]  # fused linear -> name -> matrix as it is stored
Made = tuple[dict[str, QuantMatrix], dict[str, Tensor]]  # codes, what norms are divided by


@dataclass
class Banks:
    """Makes the layers of one model; the river's codes lie in `folder`.

    `devices` has one per layer; `open_text` starts the bundled text before layer 1, for methods
    that look at inputs. `digests` has a layer's own hash, `chain` that of all up to it;
    `raised` are the matrices in 8 bits of a river of mixed precision. `awq` is the checkpoint that
    the river's codes come from, where they are not made here.
    """

    checkpoint: Checkpoint
    layers: int
    settings: LoadSettings
    plan: KernelPlan
    devices: Sequence[torch.device]
    folder: Path
    progress: Progress
    open_text: Callable[[], InputMoments]
    awq: AwqCheckpoint | None = None
    shelf: Shelf = field(default_factory=Shelf)
    digests: dict[int, str] = field(default_factory=dict)
    chain: dict[int, str] = field(default_factory=dict)
    norms: dict[int, str] = field(default_factory=dict)  # hashes, where twins have their own
    raised: Mapping[int, Sequence[str]] = field(default_factory=dict)  # layer -> linears in 8 bits
    _seconds: dict[Path, float] = field(default_factory=dict)  # by the codes' file
    _text: InputMoments | None = None

    def build(self, resident: int) -> tuple[Bank, Bank, str]:
        """Backbone, river and the fingerprint of the weights, each of which is read once.

        Backbone layers after the first `resident` ones never reach the device.
        """
        whole = hashlib.sha256()
        backbone: Bank = []
        river: Bank = []
        for layer in range(1, self.layers + 1):
            self.progress(f"reading layer {layer} of {self.layers}", (layer - 1) / self.layers)
            stored = _stored(self.checkpoint, layer)
            joined = _joined(stored)
            _feed(whole, joined)
            self.digests[layer] = _feed(hashlib.sha256(), joined)
            self.chain[layer] = whole.hexdigest()
            own = twin = None
            small = self._small(layer)
            if layer <= resident or self._identical:
                own = LayerWeights.of(self._dense(layer, joined), small)
            del joined  # before the quantizer asks for room of its own
            if layer >= self.settings.entry_layer:
                twin = own if self._identical else self._twin(layer, stored, small)
            backbone.append(own if layer <= resident else None)
            river.append(twin)
        return backbone, river, whole.hexdigest()

    def twin(self, layer: int, own: LayerWeights) -> LayerWeights:
        """The twin of 1-based `layer`, read again, with the norms and biases of `own`.

        Or with norms of its own, where the method folds scales into them. Raises ModelUnavailable
        where the files are gone or changed.
        """
        if self._identical:
            return own
        return self._twin(layer, self._again(layer)[0], own.small)

    def restore(self, layer: int, twin: LayerWeights) -> LayerWeights:
        """Backbone layer `layer`, off the shelf or read again, with its twin's norms and biases.

        Norms that the twin does not share are read again. Raises ModelUnavailable where the files
        are gone or changed.
        """
        if self._identical:
            return twin
        kept = self.shelf.find(layer)
        matrices = self._again(layer)[1] if kept is None else kept
        small = twin.small
        if self.settings.river.own_norms:
            again = self._small(layer)
            small |= {name: again[name] for name in NORMS.values() if name in again}
        return LayerWeights.of(self._dense(layer, matrices), small)

    def raise_to_8(self, chosen: Collection[Matrix], river: Bank) -> None:
        """Make the layers of `river` that have one of these matrices again, with them in 8 bits.

        Raises ModelUnavailable where the files are gone or changed.
        """
        layers = sorted({layer for layer, _ in chosen})
        self.raised = {n: [f for f in PARTS if (n, f) in chosen] for n in layers}
        for layer in layers:
            twin = river[layer - 1]
            assert twin is not None
            river[layer - 1] = self.twin(layer, twin)

    @property
    def seconds(self) -> float:
        """What making the river's codes took, now or when they were stored."""
        return sum(self._seconds.values())

    @property
    def _identical(self) -> bool:
        return self.settings.river.bits == 16

    def _again(self, layer: int) -> tuple[Stored, dict[str, Tensor]]:
        """A layer's matrices read again, parted and joined; ModelUnavailable if they changed."""
        stored = _stored(self.checkpoint, layer)
        joined = _joined(stored)
        if _feed(hashlib.sha256(), joined) != self.digests[layer]:
            raise self._changed(layer)
        return stored, joined

    def _small(self, layer: int) -> dict[str, Tensor]:
        """A layer's norms and biases on its device; ModelUnavailable if norms changed."""
        small = self.checkpoint.small(layer)
        if self.settings.river.own_norms:
            own = {name: small[name] for name in NORMS.values() if name in small}
            digest = _feed(hashlib.sha256(), own)
            if self.norms.setdefault(layer, digest) != digest:
                raise self._changed(layer)
        return {name: t.to(self.devices[layer - 1]) for name, t in small.items()}

    def _changed(self, layer: int) -> ModelUnavailable:
        return ModelUnavailable(
            f"layer {layer} in {self.checkpoint.weights.folder} is not what was loaded from there, "
            "so it cannot be read again; load the model anew."
        )

    def _dense(self, layer: int, matrices: Mapping[str, Tensor]) -> dict[str, Linear]:
        """A backbone layer's linears on its device from its fused matrices."""
        linears: dict[str, Linear] = {
            fused: self.plan.make_dense(matrix.to(self.devices[layer - 1]))
            for fused, matrix in matrices.items()
        }
        on_large_pages(list(linears.values()))
        return linears

    def _twin(self, layer: int, stored: Stored, small: Mapping[str, Tensor]) -> LayerWeights:
        """A layer's twin; `small` are the backbone's norms and biases, most of which it shares."""
        device = self.devices[layer - 1]
        if self.awq is None:
            matrices, divisors = self._codes(layer, stored, small)
            matrices = matrices | self._finer(layer, stored)
            norms = {name: small[name] / by.to(device) for name, by in divisors.items()}
        else:
            here = {name: t.cpu() for name, t in small.items()}
            matrices, read = self.awq.layer(layer, _joined(stored), here)
            norms = {name: t.to(device) for name, t in read.items()}
        linears = {f: self.plan.make_coded(matrices[f].to(device)) for f in PARTS}
        on_large_pages(list(linears.values()))
        return LayerWeights.of(linears, {**small, **norms})

    def _codes(self, layer: int, stored: Stored, norms: Collection[str]) -> Made:
        """The codes of a layer's twin, and what its norms are divided by, of those it has.

        They lie in a file per layer, named by the layer's weights, or by those of all layers
        up to it and the text where the method looks at its inputs; without one they are made.
        """
        spec = self.settings.river.forms[0]

        def make() -> Made:
            if spec.method != "awq":
                return self._quantised(layer, stored, spec), {}
            sizes = (spec.group_size, spec.top)
            inputs = {name: seen.cpu() for name, seen in self._moments(layer).items()}
            made = scaled_layer(_joined(stored), inputs, norms, *sizes)
            return made.matrices, made.divisors

        return self._kept(layer, RiverFile.of(self.folder, self._key(layer), spec), make)

    def _finer(self, layer: int, stored: Stored) -> dict[str, QuantMatrix]:
        """A layer's matrices in 8 bits where some are raised; their file is named by which."""
        names = self.raised.get(layer, ())
        if not names:
            return {}
        spec, parts = self.settings.river.forms[-1], {name: stored[name] for name in names}
        key = hashlib.sha256(f"{self._key(layer)} {' '.join(names)}".encode()).hexdigest()
        file = RiverFile.of(self.folder, key, spec)
        return self._kept(layer, file, lambda: (self._quantised(layer, parts, spec), {}))[0]

    def _key(self, layer: int) -> str:
        """A hash of what a layer's codes depend on, settings apart."""
        if not self.settings.river.needs_inputs:
            return self.digests[layer]
        return hashlib.sha256(f"{self.chain[layer]} {TEXT}".encode()).hexdigest()

    def _kept(self, layer: int, file: RiverFile, make: Callable[[], Made]) -> Made:
        """What `file` holds; made and stored where it is not there."""
        if file.exists():
            matrices = file.load()
        else:
            text = f"building the river: layer {layer} of {self.layers}"
            self.progress(text, (layer - 1) / self.layers)
            start = time.perf_counter()
            matrices, vectors = make()
            file.save(matrices, time.perf_counter() - start, vectors)
        self._seconds[file.path] = file.seconds
        return matrices, file.vectors

    def _quantised(self, layer: int, stored: Stored, spec: QuantSpec) -> dict[str, QuantMatrix]:
        """These matrices of a layer by the method of `spec`, "awq" apart."""
        moments = self._moments(layer) if spec.needs_inputs else {}
        return {f: quantize_fused(parts, spec, moments.get(f)) for f, parts in stored.items()}

    def _moments(self, layer: int) -> dict[str, Tensor]:
        """Second moments of the inputs of 1-based `layer`; the text catches up, layer by layer."""
        if self._text is None or self._text.done >= layer:
            self._text = self.open_text()
        found: dict[str, Tensor] = {}
        while self._text.done < layer:
            found = self._text.through(self._plain(self._text.done + 1))
        return found

    def _plain(self, layer: int) -> LayerWeights:
        """A backbone layer in fp32, read for a look at its inputs."""
        device = self.devices[0]
        linears: dict[str, Linear] = {
            fused: TorchDense(matrix.to(device).float())
            for fused, matrix in _joined(_stored(self.checkpoint, layer)).items()
        }
        small = {name: t.to(device) for name, t in self.checkpoint.small(layer).items()}
        return LayerWeights.of(linears, small)


def fingerprint(checkpoint: Checkpoint, layers: int) -> str:
    """What `build` says of the weights, without building: all of them are read and hashed."""
    whole = hashlib.sha256()
    for layer in range(1, layers + 1):
        _feed(whole, _joined(_stored(checkpoint, layer)))
    return whole.hexdigest()


def _stored(checkpoint: Checkpoint, layer: int) -> dict[str, dict[str, Tensor]]:
    return {fused: checkpoint.matrices(layer, fused) for fused in PARTS}


def _joined(stored: Stored) -> dict[str, Tensor]:
    """The fused matrices of a layer: its parts by rows, copied."""
    return {fused: torch.cat(list(parts.values())) for fused, parts in stored.items()}


def _feed(digest: Any, matrices: Mapping[str, Tensor]) -> str:
    """Feed the matrices' bytes to a hash object; what it says by then."""
    for matrix in matrices.values():
        digest.update(matrix.contiguous().view(torch.uint8).numpy().data)
    return str(digest.hexdigest())
