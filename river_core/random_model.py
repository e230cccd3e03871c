"""A RiverModel with random weights at a known shape: speed and memory without any file.

Builds on the device, layer by layer; needs neither transformers nor a quantizer. Its similarities
mean nothing, so a measurement forces the exits by a schedule. Knows nothing of what is measured.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from .block import Rope
from .cache import SharedCache
from .errors import SettingsError
from .kernels.base import Linear, QuantMatrix
from .kernels.choose import KernelPlan
from .kernels.native import on_large_pages
from .layer import NORMS, LayerWeights
from .model import Bank, ModelInfo, RiverModel
from .plan import plan_kernels
from .residency import Shelf, return_memory
from .residency import resident_layers as checked_residents
from .settings import LoadSettings, QuantSpec
from .shapes import ShapeSpec, check_group, find_shape

CPU = torch.device("cpu")
BACKBONE, VECTORS = 2000, 4000  # first numbers of generators; the river's count from 1 on


def random_model(
    shape: str | ShapeSpec,
    *,
    device: torch.device = CPU,
    dtype: str = "auto",
    river: QuantSpec | None = None,
    entry_layer: int = 2,
    resident_layers: int | None = None,
    capacity: int = 512,
    seed: int = 0,
    store: Path | None = None,
) -> RiverModel:
    """A model of random weights on `device`, without a tokenizer and without stop ids.

    `shape` is a name of SHAPES or a ShapeSpec; `dtype`, `river`, `entry_layer`, `resident_layers`
    (a number) and `capacity` mean what they mean to `load`; the same `seed` gives the same weights
    on the same kind of device. `store`: see `plan_kernels`. Raises SettingsError or
    KernelUnavailable (both RiverError).
    """
    spec = find_shape(shape) if isinstance(shape, str) else shape
    settings = LoadSettings(
        dtype=dtype,
        river=river or QuantSpec(),
        entry_layer=entry_layer,
        resident_layers=resident_layers,
        capacity=capacity,
    )
    if entry_layer > spec.layers:
        raise SettingsError(f"entry_layer is {entry_layer}, but {spec.name} has {spec.layers}.")
    for name, (_, columns) in spec.block.matrices.items():
        check_group(settings.river, name, columns)
    if settings.river.budget is not None:
        raise SettingsError(
            "a budget of bits needs a text and a model that reads it; leave it out."
        )
    plan = plan_kernels(spec.block, spec.layers, spec.vocab, device, settings, store=store)
    model = _Maker(spec, settings, plan, device, seed).model(capacity)
    return_memory(device)
    return model


def plain_rope(theta: float, head_dim: int, capacity: int, device: torch.device) -> Rope:
    """Cosines and sines fp32 [capacity, head_dim] of unscaled RoPE with base `theta`."""
    frequency = theta ** -(torch.arange(0, head_dim, 2, device=device).float() / head_dim)
    angle = torch.outer(torch.arange(capacity, device=device).float(), frequency)
    both = torch.cat([angle, angle], dim=-1)
    return Rope(both.cos(), both.sin())


class _Maker:
    """Draws one model: weights ~ N(0, 1 / sqrt(K)), norms U(0.5, 1.5), biases N(0, 0.5).

    Codes are whole numbers 0..15, equally likely.
    """

    def __init__(
        self,
        spec: ShapeSpec,
        settings: LoadSettings,
        plan: KernelPlan,
        device: torch.device,
        seed: int,
    ) -> None:
        self.spec, self.settings, self.plan, self.device = spec, settings, plan, device
        self.seed, self.shelf = seed, Shelf()

    def model(self, capacity: int) -> RiverModel:
        """Everything put together, the twins from the entry layer on."""
        spec, shape = self.spec, self.spec.block
        size = (spec.vocab, shape.hidden)
        random = self._generator(0)
        embedding = self._weight(size, random)
        head = self.plan.make_dense(embedding if spec.tied else self._weight(size, random))
        backbone, river = self._banks()
        heads = (shape.kv_heads, shape.head_dim)
        return RiverModel(
            info=self._info(),
            shapes=(shape,) * spec.layers,
            embedding=embedding,
            backbone=backbone,
            river=river,
            final_norm=self._norm((shape.hidden,), random),
            head=head,
            ropes=(plain_rope(spec.rope_theta, shape.head_dim, capacity, self.device),),
            cache=SharedCache(spec.layers, capacity, heads, self.plan.dtype, self.device),
            tokenizer=None,
            eos_ids=(),
            build_twin=self._twin,
            restore_layer=self._restored,
            shelf=self.shelf,
        )

    def _banks(self) -> tuple[Bank, Bank]:
        """Backbone and river, layer by layer; layers that are not resident are never made."""
        backbone: Bank = []
        river: Bank = []
        settings, count = self.settings, self.spec.layers
        resident = checked_residents(
            settings.resident_layers, count, settings.entry_layer, None, 0.5
        )
        for layer in range(1, count + 1):
            sizes, random = self.spec.block.vectors, self._generator(VECTORS + layer)
            small = {name: self._vector(name, size, random) for name, size in sizes.items()}
            own = twin = None
            if layer <= resident or self._identical:
                own = LayerWeights.of(self._dense(layer), small)
            if layer >= settings.entry_layer:
                if settings.river.own_norms:
                    small |= {name: small[name].clone() for name in NORMS.values() if name in small}
                twin = own if self._identical else LayerWeights.of(self._coded(layer), small)
            backbone.append(own if layer <= resident else None)
            river.append(twin)
        return backbone, river

    def _info(self) -> ModelInfo:
        return ModelInfo(
            name=f"random {self.spec.name}",
            origin=f"random weights at the shape of {self.spec.name}",
            revision=None,
            path=None,
            quant=self.settings.river,
            entry_layer=self.settings.entry_layer,
            default_threshold=0.5,
            kernels=self.plan.shown(),
            execution=self.settings.execution,
            notes=(*self.plan.notes, "random weights: force the exits, similarities mean nothing."),
        )

    def _generator(self, number: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(self.seed * 10_000 + number)

    def _weight(self, size: tuple[int, int], random: torch.Generator) -> Tensor:
        weight = torch.randn(size, generator=random, device=self.device, dtype=self.plan.dtype)
        return weight.mul_(size[1] ** -0.5)

    def _norm(self, size: tuple[int, ...], random: torch.Generator) -> Tensor:
        return torch.rand(size, generator=random, device=self.device) + 0.5

    def _vector(self, name: str, size: tuple[int, ...], random: torch.Generator) -> Tensor:
        if name == "qkv_bias":
            return 0.5 * torch.randn(size, generator=random, device=self.device)
        return self._norm(size, random)

    @property
    def _identical(self) -> bool:
        return self.settings.river.bits == 16

    def _dense(self, layer: int) -> dict[str, Linear]:
        """The linears of backbone layer `layer`: the same ones whenever they are made."""
        kept, random = self.shelf.find(layer), self._generator(BACKBONE + layer)
        sizes = self.spec.block.matrices
        if kept is None:
            made = {n: self.plan.make_dense(self._weight(s, random)) for n, s in sizes.items()}
        else:
            made = {n: self.plan.make_dense(t.to(self.device)) for n, t in kept.items()}
        on_large_pages(list(made.values()))
        return made

    def _coded(self, layer: int) -> dict[str, Linear]:
        """The linears of the twin of `layer`: random codes."""
        sizes, random = self.spec.block.matrices, self._generator(layer)
        made = {n: self.plan.make_coded(self._codes(size, random)) for n, size in sizes.items()}
        on_large_pages(list(made.values()))
        return made

    def _twin(self, layer: int, own: LayerWeights) -> LayerWeights:
        """The river's 1-based `layer`: random codes, or the backbone's `own` layer in 16 bits."""
        return own if self._identical else own.with_linears(self._coded(layer))

    def _restored(self, layer: int, twin: LayerWeights) -> LayerWeights:
        """Backbone layer `layer`, as it was."""
        return twin if self._identical else twin.with_linears(self._dense(layer))

    def _codes(self, size: tuple[int, int], random: torch.Generator) -> QuantMatrix:
        """Codes uint8 [N, K] whose weights spread as the backbone's do."""
        n, k = size
        river, device = self.settings.river, self.device
        group, many = river.group_size, 2**river.code_bits
        codes = torch.randint(0, many, (n, k), generator=random, device=device, dtype=torch.uint8)
        spread = torch.rand(2, n, k // group, generator=random, device=device)
        deviation = math.sqrt((many**2 - 1) / 12)  # of whole numbers below it, equally likely
        scale = (0.8 + 0.4 * spread[0]) / (deviation * math.sqrt(k))
        return QuantMatrix(codes, scale, many // 2 - 1 + spread[1], group, river.code_bits)
