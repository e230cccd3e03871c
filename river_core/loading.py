"""From a model's name to a RiverModel: weights read, kernels chosen, the river built or reloaded.

The only place that puts the parts together. Where a name leads is sources.py's, what a
configuration means families.py's; nothing here knows of policies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .block import BlockShape, LayerWeights
from .cache import SharedCache
from .cache_paths import cache_root
from .calibration_store import CalibrationFile
from .errors import KernelUnavailable, SettingsError
from .families import (
    block_shape,
    eos_ids,
    read_config,
    read_tokenizer,
    rope_tables,
)
from .kernels.base import Linear, QuantMatrix
from .kernels.choose import KernelPlan
from .kernels.native import on_large_pages
from .kernels.pages import together
from .model import ModelInfo, Progress, RiverModel
from .plan import plan_kernels
from .quantize import RiverFile, check_group, quantize_fused
from .settings import LoadSettings
from .sources import Source, resolve
from .tensor_names import TENSOR_NAMES
from .weights import Weights

FUSED = {"qkv": ("q", "k", "v"), "out": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}
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
        shape = block_shape(self.config)
        self.layers: int = self.config.num_hidden_layers
        self.vocab: int = self.config.vocab_size
        self.tied: bool = bool(self.config.tie_word_embeddings)
        self.capacity = self._capacity()
        self.shape: BlockShape = shape.within(self.capacity)
        if settings.entry_layer > self.layers:
            raise SettingsError(
                f"entry_layer is {settings.entry_layer}, but the model has {self.layers} layers."
            )
        for name, (_, columns) in self.shape.matrices.items():
            check_group(settings.river, name, columns)
        self.device = _device(settings.device)
        self.rivers = cache_root() / "rivers"
        self.weights = Weights(source.folder)
        self.notes: list[str] = []
        if self.shape.options:
            has = " and ".join(self.shape.options)
            self.notes.append(f"no fused step for {has}: layers run operation by operation.")

    def model(self) -> RiverModel:
        """Read everything and put it together."""
        self.progress("choosing kernels", None)
        sizes = (self.shape, self.layers, self.vocab)
        store = cache_root() / "kernels.json"
        plan = plan_kernels(*sizes, self.device, self.settings, store=store)
        self.plan: KernelPlan = plan
        tokenizer = self._tokenizer()
        embedding = self._tensor(TENSOR_NAMES.embed, (self.vocab, self.shape.hidden))
        (embedding,) = together([embedding.to(plan.dtype)])
        head_weight = embedding
        if not self.tied:
            size = (self.vocab, self.shape.hidden)
            (head_weight,) = together([self._tensor(TENSOR_NAMES.head, size).to(plan.dtype)])
        backbone = self._backbone()
        river = self._river(backbone)
        shape = self.shape
        cos, sin = rope_tables(self.config, self.capacity)
        heads = (shape.kv_heads, shape.head_dim)
        model = RiverModel(
            info=self._info(),
            shape=shape,
            embedding=embedding,
            backbone=backbone,
            river=river,
            final_norm=self._tensor(TENSOR_NAMES.final_norm, (shape.hidden,)).float(),
            head=plan.make_dense(head_weight),
            rope=(cos.to(self.device), sin.to(self.device)),
            cache=SharedCache(self.layers, self.capacity, heads, plan.dtype, self.device),
            tokenizer=tokenizer,
            eos_ids=eos_ids(self.source.folder, self.config, tokenizer),
            build_twin=lambda layer: self._twin(layer, backbone),
        )
        self.progress("ready", 1.0)
        return model

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
        longest = int(self.config.max_position_embeddings)
        wanted = self.settings.capacity
        if wanted is not None and wanted > longest:
            raise SettingsError(
                f"capacity is {wanted}, but the model's positions end at {longest}; use at most "
                f"{longest}."
            )
        return min(DEFAULT_CAPACITY, longest) if wanted is None else wanted

    def _tensor(self, name: str, size: tuple[int, ...]) -> Tensor:
        return self.weights.get(name, size).to(self.device)

    def _small(self, layer: int) -> tuple[dict[str, Tensor], set[str]]:
        """Norms and biases of 1-based `layer` by LayerWeights' names; the stored names."""
        shape, used = self.shape, set[str]()

        def read(pattern: str, size: int) -> Tensor:
            name = pattern.format(layer=layer - 1)
            used.add(name)
            return self._tensor(name, (size,)).float()

        names, heads = TENSOR_NAMES, (shape.heads, shape.kv_heads)
        small = {
            "attn_norm": read(names.attn_norm, shape.hidden),
            "ffn_norm": read(names.ffn_norm, shape.hidden),
        }
        if shape.qkv_bias:
            rows = [n * shape.head_dim for n in (*heads, shape.kv_heads)]
            patterns = (names.q_bias, names.k_bias, names.v_bias)
            small["qkv_bias"] = torch.cat([read(*x) for x in zip(patterns, rows, strict=True)])
        if shape.qk_norm:
            norms = [read(pattern, shape.head_dim) for pattern in (names.q_norm, names.k_norm)]
            each = [norm.expand(n, -1) for norm, n in zip(norms, heads, strict=True)]
            small["qk_norm"] = torch.cat(each)
        return small, used

    def _parts(self, layer: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """The matrices of 1-based `layer` as stored, grouped as they are fused."""
        shape = self.shape
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        rows = {"q": wide, "k": narrow, "v": narrow, "gate": shape.ffn, "up": shape.ffn}
        rows |= {"o": shape.hidden, "down": shape.hidden}
        for fused, names in FUSED.items():
            columns = shape.matrices[fused][1]
            patterns = {n: getattr(TENSOR_NAMES, n).format(layer=layer - 1) for n in names}
            yield (
                fused,
                {p: self._tensor(p, (rows[n], columns)) for n, p in patterns.items()},
            )

    def _backbone(self) -> list[LayerWeights]:
        layers, expected = [], {TENSOR_NAMES.embed, TENSOR_NAMES.final_norm, TENSOR_NAMES.head}
        digest = hashlib.sha256()
        for layer in range(1, self.layers + 1):
            self.progress(f"reading backbone layer {layer} of {self.layers}", layer / self.layers)
            linears: dict[str, Linear] = {}
            for fused, parts in self._parts(layer):
                expected |= set(parts)
                joined = torch.cat(list(parts.values()))
                digest.update(joined.cpu().contiguous().view(torch.uint8).numpy().data)
                linears[fused] = self.plan.make_dense(joined)
            on_large_pages(list(linears.values()))
            small, names = self._small(layer)
            expected |= names
            layers.append(LayerWeights.of(linears, small))
        self.weights.refuse_unexpected(expected)
        self.fingerprint = digest.hexdigest()
        return layers

    def _river(self, backbone: list[LayerWeights]) -> list[LayerWeights | None]:
        entry = self.settings.entry_layer
        below: list[LayerWeights | None] = [None] * (entry - 1)
        if self.settings.river.bits == 16:
            return below + list(backbone[entry - 1 :])
        matrices = self._matrices(range(entry, self.layers + 1), f"from{entry}")
        river = [self._coded(n, matrices, backbone) for n in range(entry, self.layers + 1)]
        return below + river

    def _twin(self, layer: int, backbone: list[LayerWeights]) -> LayerWeights:
        if self.settings.river.bits == 16:
            return backbone[layer - 1]
        return self._coded(layer, self._matrices([layer], f"layer{layer}"), backbone)

    def _coded(
        self, layer: int, matrices: Mapping[str, QuantMatrix], backbone: list[LayerWeights]
    ) -> LayerWeights:
        """A river layer: its own linears, the backbone's norms and biases (HQQ changes none)."""
        linears = {
            fused: self.plan.make_int4(_to(matrices[f"{layer}.{fused}"], self.device))
            for fused in FUSED
        }
        on_large_pages(list(linears.values()))
        return backbone[layer - 1].with_linears(linears)

    def _matrices(self, layers: Any, label: str) -> dict[str, QuantMatrix]:
        """Codes of the given layers: from the river's file, or quantised now and saved."""
        spec = self.settings.river
        path = self.rivers / f"{self.fingerprint[:20]}-{spec.label}-{label}.safetensors"
        file = RiverFile(path, self.fingerprint, spec)
        if file.exists():
            return file.load()
        matrices: dict[str, QuantMatrix] = {}
        for n, layer in enumerate(layers, start=1):
            self.progress(f"building the river: layer {layer} of {self.layers}", n / len(layers))
            for fused, parts in self._parts(layer):
                matrices[f"{layer}.{fused}"] = quantize_fused(parts, spec)
        file.save(matrices)
        return matrices


def _to(matrix: QuantMatrix, device: torch.device) -> QuantMatrix:
    codes, scale, zero = (t.to(device) for t in (matrix.codes, matrix.scale, matrix.zero))
    return QuantMatrix(codes, scale, zero, matrix.group_size)


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise KernelUnavailable(
            f"device {wanted!r} was asked for, but torch sees no CUDA GPU; use device='cpu'."
        )
    try:
        return torch.device(wanted)
    except RuntimeError as error:
        raise SettingsError(f"device {wanted!r} is not one torch knows; use 'cpu'.") from error
