"""From a model's name to a RiverModel: weights read, kernels chosen, the river built or reloaded.

The only place that puts the parts together. Where a name leads is sources.py's, what a
configuration means families.py's; nothing here knows of policies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .cache import SharedCache
from .cache_paths import cache_root
from .calibration_store import CalibrationFile
from .checkpoint import PARTS, Checkpoint
from .devices import find_device
from .errors import SettingsError
from .families import block_shapes, family_of, positions, rope_tables, rotary_order
from .hub_folder import eos_ids, read_config, read_tokenizer
from .kernels.base import Linear, QuantMatrix
from .kernels.choose import KernelPlan
from .kernels.native import on_large_pages
from .kernels.pages import together
from .layer import LayerWeights
from .model import ModelInfo, Progress, RiverModel
from .plan import plan_kernels
from .quantize import RiverFile, check_group, quantize_fused
from .settings import LoadSettings
from .sources import Source, resolve
from .weights import Weights

DEFAULT_CAPACITY = 4096
# (hidden, layers, vocabulary) -> default threshold; others take the paper's 0.5 for Llama models.
# SmolLM2-135M: docs/thresholds.md
THRESHOLDS = {(576, 30, 49152): 0.98}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def load(name: str | Path, *, progress: Progress | None = None, **settings: Any) -> RiverModel:
    """Load a model by name, hub id, folder or .gguf file (design.md, Public API).

    Settings are those of LoadSettings. The river is quantised once and kept on disk. Raises
    SettingsError, UnsupportedModel or KernelUnavailable (all RiverError).
    """
    try:
        checked = LoadSettings(**settings)
    except TypeError as error:
        raise SettingsError(f"load got a setting it does not know ({error}).") from error
    source = resolve(str(name), progress=progress)
    return _Loader(source, checked, progress or _silent).model()


def _silent(text: str, fraction: float | None) -> None:
    """Progress that nobody reads."""


class _Loader:
    """One load: keeps what its steps share."""

    def __init__(self, source: Source, settings: LoadSettings, progress: Progress) -> None:
        self.source, self.settings, self.progress = source, settings, progress
        self.config = read_config(source.folder)
        self.family, shapes = family_of(self.config), block_shapes(self.config)
        self.layers = len(shapes)
        self.vocab: int = self.config.vocab_size
        self.notes: list[str] = []
        self.capacity = self._capacity()
        self.shapes = tuple(shape.within(self.capacity) for shape in shapes)
        self.shape = self.shapes[0]
        if settings.entry_layer > self.layers:
            raise SettingsError(
                f"entry_layer is {settings.entry_layer}, but the model has {self.layers} layers."
            )
        for name, (_, columns) in self.shape.matrices.items():
            check_group(settings.river, name, columns)
        self.device = find_device(settings.device)
        tables = rope_tables(self.config, self.capacity)
        self.ropes = tuple(table.to(self.device) for table in tables)
        self.rivers = cache_root() / "rivers"
        order = rotary_order(self.config)
        weights = Weights(source.folder)
        self.checkpoint = Checkpoint(weights, self.family, self.shape, self.vocab, order)
        self._note_options()

    def _note_options(self) -> None:
        """Say what runs slower, and what of the model is not used."""
        options = dict.fromkeys(option for shape in self.shapes for option in shape.options)
        if any(rope.queries is not None for rope in self.ropes):
            options["queries scaled by position"] = None
        if options:
            has = " and ".join(options)
            self.notes.append(f"no fused step for {has}: layers run operation by operation.")
        if getattr(self.config, "auto_map", None):
            kind = self.config.model_type
            self.notes.append(f"the model's own code is not run: {kind} is known without it.")

    def model(self) -> RiverModel:
        """Read everything and put it together, layer by layer."""
        self.progress("choosing kernels", None)
        sizes = (self.shape, self.layers, self.vocab)
        store = cache_root() / "kernels.json"
        wide = self.family.wide
        plan = plan_kernels(*sizes, self.device, self.settings, store=store, wide=wide)
        self.plan: KernelPlan = plan
        tokenizer = self._tokenizer()
        embedding = self._dense(self.checkpoint.embedding())
        own_head = self.checkpoint.head(bool(self.config.tie_word_embeddings))
        head = plan.make_dense(embedding if own_head is None else self._dense(own_head))
        backbone, river = self._banks()
        final_norm = self.checkpoint.final_norm().to(self.device)
        self.checkpoint.refuse_unread()
        heads = (self.shape.kv_heads, self.shape.head_dim)
        model = RiverModel(
            info=self._info(),
            shapes=self.shapes,
            embedding=embedding,
            backbone=backbone,
            river=river,
            final_norm=final_norm,
            head=head,
            ropes=self.ropes,
            cache=SharedCache(self.layers, self.capacity, heads, plan.dtype, self.device),
            tokenizer=tokenizer,
            eos_ids=eos_ids(self.source.folder, self.config, tokenizer),
            build_twin=self._twin,
            embedding_scale=self.shape.hidden**0.5 if self.family.scaled_embedding else 1.0,
        )
        self.progress("ready", 1.0)
        return model

    def _dense(self, weight: Tensor) -> Tensor:
        """A large matrix on the device, in the dense dtype, on large pages."""
        (moved,) = together([weight.to(self.device).to(self.plan.dtype)])
        return moved

    def _tokenizer(self) -> Any:
        if any((self.source.folder / name).is_file() for name in TOKENIZER_FILES):
            return read_tokenizer(self.source.folder)
        self.notes.append("no tokenizer: prompts must be token ids, texts show as <id>.")
        return None

    def _info(self) -> ModelInfo:
        s = self.settings
        return ModelInfo(
            name=self.source.name,
            origin=self.source.origin,
            revision=self.source.revision,
            path=self.source.folder,
            quant=s.river,
            entry_layer=s.entry_layer,
            default_threshold=THRESHOLDS.get((self.shape.hidden, self.layers, self.vocab), 0.5),
            kernels=self.plan.shown(),
            notes=(*self.plan.notes, *self.notes),
            calibration=CalibrationFile(self.rivers, self.fingerprint, s.river, s.entry_layer),
        )

    def _capacity(self) -> int:
        """Tokens of the cache; by default no more than one set of RoPE factors serves."""
        longest, alike = positions(self.config)
        wanted = self.settings.capacity
        if wanted is not None and wanted > longest:
            raise SettingsError(
                f"capacity is {wanted}, but the model's positions end at {longest}; use at most "
                f"{longest}."
            )
        if wanted is not None and wanted > alike:
            self.notes.append(
                f"RoPE's long factors at all positions, since capacity {wanted} is above {alike}."
            )
        return min(DEFAULT_CAPACITY, alike) if wanted is None else wanted

    def _banks(self) -> tuple[list[LayerWeights], list[LayerWeights | None]]:
        """Backbone and river; the layers' weights are read once, one layer at a time."""
        entry, digest = self.settings.entry_layer, hashlib.sha256()
        backbone: list[LayerWeights] = []
        river: list[LayerWeights | None] = []
        for layer in range(1, self.layers + 1):
            self.progress(f"reading layer {layer} of {self.layers}", (layer - 1) / self.layers)
            stored = {fused: self.checkpoint.matrices(layer, fused) for fused in PARTS}
            joined = {fused: torch.cat(list(parts.values())) for fused, parts in stored.items()}
            for matrix in joined.values():
                digest.update(_bytes(matrix))
            own = self._layer(layer, joined)
            backbone.append(own)
            river.append(self._coded(layer, own, stored, joined) if layer >= entry else None)
        self.fingerprint = digest.hexdigest()
        return backbone, river

    def _layer(self, layer: int, joined: Mapping[str, Tensor]) -> LayerWeights:
        """A backbone layer from its fused matrices as stored."""
        linears: dict[str, Linear] = {
            fused: self.plan.make_dense(matrix.to(self.device)) for fused, matrix in joined.items()
        }
        on_large_pages(list(linears.values()))
        small = {name: t.to(self.device) for name, t in self.checkpoint.small(layer).items()}
        return LayerWeights.of(linears, small)

    def _coded(
        self,
        layer: int,
        own: LayerWeights,
        stored: Mapping[str, Mapping[str, Tensor]],
        joined: Mapping[str, Tensor],
    ) -> LayerWeights:
        """The twin of a layer: its own linears, the norms and biases of `own` (HQQ changes none).

        Its codes lie in a file per layer, named by the layer's weights; without one they are made.
        """
        spec = self.settings.river
        if spec.bits == 16:
            return own
        digest = hashlib.sha256()
        for matrix in joined.values():
            digest.update(_bytes(matrix))
        name = f"{digest.hexdigest()[:20]}-{spec.label}.safetensors"
        file = RiverFile(self.rivers / name, digest.hexdigest(), spec)
        if file.exists():
            matrices = file.load()
        else:
            text = f"building the river: layer {layer} of {self.layers}"
            self.progress(text, (layer - 1) / self.layers)
            matrices = {fused: quantize_fused(parts, spec) for fused, parts in stored.items()}
            file.save(matrices)
        linears = {f: self.plan.make_int4(_to(matrices[f], self.device)) for f in PARTS}
        on_large_pages(list(linears.values()))
        return own.with_linears(linears)

    def _twin(self, layer: int, own: LayerWeights) -> LayerWeights:
        """The twin of 1-based `layer`, read again."""
        stored = {fused: self.checkpoint.matrices(layer, fused) for fused in PARTS}
        joined = {fused: torch.cat(list(parts.values())) for fused, parts in stored.items()}
        return self._coded(layer, own, stored, joined)


def _bytes(matrix: Tensor) -> memoryview:
    """The matrix's bytes, without a copy where it is contiguous."""
    return matrix.contiguous().view(torch.uint8).numpy().data


def _to(matrix: QuantMatrix, device: torch.device) -> QuantMatrix:
    codes, scale, zero = (t.to(device) for t in (matrix.codes, matrix.scale, matrix.zero))
    return QuantMatrix(codes, scale, zero, matrix.group_size)
