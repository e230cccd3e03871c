"""From a model's name to a RiverModel: weights read, kernels chosen, the river built or reloaded.

The only place that puts the parts together. Where a name leads is sources.py's, what a
configuration means families.py's; nothing here knows of policies.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .awq_checkpoint import AwqCheckpoint
from .banks import Banks
from .banks import fingerprint as fingerprint_of
from .cache import SharedCache
from .cache_paths import cache_root
from .calibration_store import CalibrationFile
from .checkpoint import Checkpoint
from .devices import find_device
from .errors import SettingsError
from .families import block_shapes, family_of, positions, rope_tables, rotary_order
from .footprint import Layout
from .hub_folder import eos_ids, has_tokenizer, read_config, read_tokenizer
from .input_moments import InputMoments, sequences
from .kernels.choose import KernelPlan
from .kernels.pages import together
from .mixed_river import raise_bits
from .model import ModelInfo, Progress, RiverModel
from .placement import free_gpus, placement_of
from .plan import plan_kernels
from .residency import resident_layers, return_memory
from .settings import DEFAULT_RIVER, LoadSettings
from .shapes import ShapeSpec, check_group
from .sources import Source, resolve
from .weights import Weights

DEFAULT_CAPACITY = 4096
# (hidden, layers, vocabulary) -> default threshold; others take the paper's 0.5 for Llama models.
# SmolLM2-135M: docs/thresholds.md, Gemma 3 270M: docs/thresholds-gemma3.md
THRESHOLDS = {(576, 30, 49152): 0.98, (640, 18, 262144): 0.98}


def load(name: str | Path, *, progress: Progress | None = None, **settings: Any) -> RiverModel:
    """Load a model by name, hub id, folder or .gguf file (design.md, Public API).

    Settings are those of LoadSettings; `river` None or left out is DEFAULT_RIVER, or HQQ where the
    model has no tokenizer. The river is quantised once and kept on disk. Raises SettingsError,
    UnsupportedModel or KernelUnavailable (all RiverError).
    """
    chosen = settings.pop("river", None)
    try:
        checked = LoadSettings(**settings, **({} if chosen is None else {"river": chosen}))
    except TypeError as error:
        raise SettingsError(f"load got a setting it does not know ({error}).") from error
    source = resolve(str(name), progress=progress)
    if chosen is None and has_tokenizer(source.folder):
        checked = replace(checked, river=DEFAULT_RIVER)
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
        self.threshold = THRESHOLDS.get((self.shape.hidden, self.layers, self.vocab), 0.5)
        tables = rope_tables(self.config, self.capacity)
        self.ropes = tuple(table.to(self.device) for table in tables)
        self.rivers = cache_root() / "rivers"
        order = rotary_order(self.config)
        weights = Weights(source.folder)
        self.checkpoint = Checkpoint(weights, self.family, self.shape, self.vocab, order)
        self.awq = self._awq(progress)
        self._note_odd()

    def _awq(self, progress: Progress) -> AwqCheckpoint | None:
        """The AWQ checkpoint that the river is taken from, where the settings name one."""
        spec = self.settings.river
        if spec.checkpoint is None:
            return None
        found = resolve(spec.checkpoint, progress=progress)
        self.notes.append(f"the river is an AWQ checkpoint, {spec.shown}, {found.origin}.")
        return AwqCheckpoint.open(spec.checkpoint, found.folder, self.checkpoint, spec)

    def _note_odd(self) -> None:
        """Say what runs slower, and what of the model is not used."""
        if self.device.type == "cpu" and not self.shape.in_eights:
            self.notes.append(
                "no fused step for sizes that are not multiples of 8: layers run operation by "
                "operation."
            )
        if getattr(self.config, "auto_map", None):
            kind = self.config.model_type
            self.notes.append(f"the model's own code is not run: {kind} is known without it.")

    def _resident(self) -> int:
        """Backbone layers to keep; "auto" reads all weights once more, to find the calibration."""
        asked, entry, file = self.settings.resident_layers, self.settings.entry_layer, None
        if asked == "auto":
            self.progress("looking for the calibration", None)
            file = self._calibration(fingerprint_of(self.checkpoint, self.layers))
        return resident_layers(asked, self.layers, entry, file, self.threshold)

    def _calibration(self, fingerprint: str) -> CalibrationFile:
        """The file of a calibration of these weights."""
        settings = self.settings
        return CalibrationFile(self.rivers, fingerprint, settings.river, settings.entry_layer)

    def model(self) -> RiverModel:
        """Read everything and put it together, layer by layer."""
        resident = self._resident()
        self.progress("choosing kernels, which are compiled the first time", None)
        sizes = (self.shape, self.layers, self.vocab)
        store = cache_root() / "kernels.json"
        wide = self.family.wide
        plan = plan_kernels(*sizes, self.device, self.settings, store=store, wide=wide)
        self.plan: KernelPlan = plan
        tokenizer = self._tokenizer()
        embedding = self._dense(self.checkpoint.embedding())
        own_head = self.checkpoint.head(bool(self.config.tie_word_embeddings))
        head = plan.make_dense(embedding if own_head is None else self._dense(own_head))
        placement = self._placement(resident)
        devices = placement or [self.device] * self.layers
        banks = Banks(
            self.checkpoint,
            self.layers,
            self.settings,
            plan,
            devices,
            self.rivers,
            self.progress,
            lambda: self._text(tokenizer, embedding),
            self.awq,
        )
        backbone, river, fingerprint = banks.build(resident)
        final_norm = self.checkpoint.final_norm().to(self.device)
        self.checkpoint.refuse_unread()
        heads = (self.shape.kv_heads, self.shape.head_dim)
        model = RiverModel(
            info=self._info(fingerprint, banks.seconds),
            shapes=self.shapes,
            embedding=embedding,
            backbone=backbone,
            river=river,
            final_norm=final_norm,
            head=head,
            ropes=self.ropes,
            cache=SharedCache(
                self.layers, self.capacity, heads, plan.dtype, placement or self.device
            ),
            tokenizer=tokenizer,
            eos_ids=eos_ids(self.source.folder, self.config, tokenizer),
            build_twin=banks.twin,
            restore_layer=banks.restore,
            shelf=banks.shelf,
            placement=placement,
            embedding_scale=self.shape.hidden**0.5 if self.family.scaled_embedding else 1.0,
        )
        if self.settings.river.budget is not None:
            raise_bits(model, banks, fingerprint)
        return_memory(self.device)
        self.progress("ready", 1.0)
        return model

    def _text(self, tokenizer: Any, embedding: Tensor) -> InputMoments:
        """The bundled text before the first layer."""
        if tokenizer is None:
            raise SettingsError(
                f"method {self.settings.river.method!r} runs a text through the model, but this "
                "one has no tokenizer; use method 'hqq'."
            )
        scale = self.shape.hidden**0.5 if self.family.scaled_embedding else 1.0
        ids = sequences(tokenizer)
        streams = [embedding[torch.tensor(s, device=self.device)].float() * scale for s in ids]
        return InputMoments(self.shapes, self.ropes, streams)

    def _placement(self, resident: int) -> tuple[torch.device, ...]:
        """A device per layer where the model does not fit the GPU that was asked for."""
        s = self.settings
        if self.device.type != "cuda" or self.device.index is not None:
            return ()
        bits = None if s.river.bits == 16 else s.river
        layout = Layout(river=bits, entry_layer=s.entry_layer, resident=resident)
        tied = bool(self.config.tie_word_embeddings)
        spec = ShapeSpec(self.source.name, self.shape, self.layers, self.vocab, tied, 0.0)
        found = placement_of(spec, layout, self.capacity, free_gpus())
        if found:
            self.notes.append(f"layers stand on {len(set(found))} GPUs, in order, for capacity.")
        return found

    def _dense(self, weight: Tensor) -> Tensor:
        """A large matrix on the device, in the dense dtype, on large pages."""
        (moved,) = together([weight.to(self.device).to(self.plan.dtype)])
        return moved

    def _tokenizer(self) -> Any:
        if has_tokenizer(self.source.folder):
            return read_tokenizer(self.source.folder)
        self.notes.append("no tokenizer: prompts must be token ids, texts show as <id>.")
        return None

    def _info(self, fingerprint: str, seconds: float) -> ModelInfo:
        s = self.settings
        return ModelInfo(
            name=self.source.name,
            origin=self.source.origin,
            revision=self.source.revision,
            path=self.source.folder,
            quant=s.river,
            entry_layer=s.entry_layer,
            default_threshold=self.threshold,
            kernels=self.plan.shown(),
            notes=(*self.plan.notes, *self.notes),
            calibration=self._calibration(fingerprint),
            river_seconds=seconds,
            execution=s.execution,
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
