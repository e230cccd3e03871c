"""AWQ checkpoints of tiny models as AutoAWQ writes them, and the slow reference of their rivers.

Packs number by number; shares no code with the reader.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.tiny.slow_layers import FUSED, LINEARS
from tests.tiny.slow_reference import MixedLinear, MixedReference

PLACES = (0, 2, 4, 6, 1, 3, 5, 7)
QUANTISATION = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 128,
    "version": "gemm",
    "zero_point": True,
    "modules_to_not_convert": None,
}
READERS = {  # what reads a norm's output
    "input_layernorm": ("q_proj", "k_proj", "v_proj", "qkv_proj"),
    "post_attention_layernorm": ("gate_proj", "up_proj", "gate_up_proj"),
    "pre_feedforward_layernorm": ("gate_proj", "up_proj", "gate_up_proj"),
}


@dataclass
class Written:
    """A checkpoint's folder, and per layer the weights that it stands for, by module name."""

    folder: Path
    layers: list[dict[str, Tensor]] = field(default_factory=list)


def write(model: Any, folder: Path, *, fold_values: bool = False, **changes: Any) -> Written:
    """Write `model` with random scales folded into its norms and its `up` rows.

    `fold_values` folds some between v and o too, as AutoAWQ does without grouped queries. `changes`
    are those of the quantisation's configuration.
    """
    folder.mkdir()
    written, tensors = Written(folder), {}
    settings = QUANTISATION | changes
    random = torch.Generator().manual_seed(5)
    for n, layer in enumerate(model.model.layers):
        scaled = _scaled(layer, model.config, random, fold_values)
        seen: dict[str, Tensor] = {}
        for owner, part in (("self_attn", layer.self_attn), ("mlp", layer.mlp)):
            for name, module in part.named_children():
                base = f"model.layers.{n}.{owner}.{name}"
                if name in (*LINEARS, *FUSED):
                    seen[name] = _put(tensors, base, scaled[name], settings["group_size"])
                    if module.bias is not None:
                        tensors[f"{base}.bias"] = module.bias.detach().clone()
        for name, parameter in layer.named_parameters():
            if name.endswith("norm.weight"):
                short = name.removesuffix(".weight").split(".")[-1]
                seen[short] = scaled.get(short, parameter.detach()).clone()
                tensors[f"model.layers.{n}.{name}"] = seen[short]
        written.layers.append(seen)
    tensors["model.embed_tokens.weight"] = model.model.embed_tokens.weight.detach().clone()
    tensors["model.norm.weight"] = model.model.norm.weight.detach().clone()
    save_file(tensors, folder / "model.safetensors")
    config = json.loads(model.config.to_json_string(use_diff=False))
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return written


def _scaled(layer: Any, config: Any, random: torch.Generator, values: bool) -> dict[str, Tensor]:
    """Linears and norms with the scales in them."""

    def scales(size: int) -> Tensor:
        return 2 ** (2 * torch.rand(size, generator=random) - 1)

    found = {
        name.split(".")[-2]: parameter.detach().clone()
        for name, parameter in layer.named_parameters()
        if name.endswith(".weight") and name.split(".")[-2] in (*LINEARS, *FUSED)
    }
    four = hasattr(layer, "pre_feedforward_layernorm")
    before = (
        "input_layernorm",
        "pre_feedforward_layernorm" if four else "post_attention_layernorm",
    )
    for name in before:
        s, more = scales(config.hidden_size), float("gemma" in config.model_type)
        found[name] = (getattr(layer, name).weight.detach() + more) / s - more
        for reader in READERS[name]:
            if reader in found:
                found[reader] = found[reader] * s
    s = scales(config.intermediate_size)
    found["down_proj"] = found["down_proj"] * s
    up = found["up_proj" if "up_proj" in found else "gate_up_proj"]
    up[-len(s) :] /= s[:, None]
    if values:
        s = scales(len(found["v_proj"]))
        found["v_proj"] = found["v_proj"] / s[:, None]
        found["o_proj"] = found["o_proj"] * s
    return found


def _put(tensors: dict[str, Tensor], base: str, weight: Tensor, group: int) -> Tensor:
    """Store a linear [N, K] in codes; the weight that they stand for."""
    parts = weight.view(len(weight), -1, group)
    high, low = parts.amax(-1).clamp(min=0), parts.amin(-1).clamp(max=0)
    scale = ((high - low) / 15).half()
    zero = (-low / scale.float()).round().clamp(0, 15)
    codes = (parts / scale.float()[..., None]).round() + zero[..., None]
    codes = codes.clamp(0, 15)
    tensors[f"{base}.qweight"] = packed(codes.view_as(weight).T)
    tensors[f"{base}.qzeros"] = packed(zero.T)
    tensors[f"{base}.scales"] = scale.T.contiguous()
    return ((codes - zero[..., None]) * scale.float()[..., None]).view_as(weight)


def packed(codes: Tensor) -> Tensor:
    """[R, N] -> int32 [R, N / 8], one number after the other."""
    rows = []
    for row in codes.int().tolist():
        numbers = []
        for start in range(0, len(row), 8):
            number = sum(row[start + c] << (4 * place) for place, c in enumerate(PLACES))
            numbers.append(number - 2**32 if number >= 2**31 else number)
        rows.append(numbers)
    return torch.tensor(rows, dtype=torch.int32)


class MixedNorm(nn.Module):
    """Two norms; row r of the sequence uses the twin's where `layer` > exits[r]."""

    def __init__(self, own: nn.Module, twin: Tensor, layer: int, exits: list[int]) -> None:
        super().__init__()
        self.own, self.twin, self.layer, self.exits = own, deepcopy(own), layer, exits
        self.twin.weight = nn.Parameter(twin, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        river = torch.tensor([self.layer > e for e in self.exits[: x.shape[1]]])[None, :, None]
        return torch.where(river, self.twin(x), self.own(x))


class OwnNormsReference(MixedReference):
    """transformers' model whose rows leave into layers with these weights and norms."""

    def __init__(self, model: Any, layers: list[dict[str, Tensor]]) -> None:
        self.exits: list[int] = []
        self.model = deepcopy(model)
        for n, (layer, twin) in enumerate(zip(self.model.model.layers, layers, strict=True), 1):
            for owner in (layer.self_attn, layer.mlp, layer):
                for name, own in list(owner.named_children()):
                    if name in (*LINEARS, *FUSED) and name in twin:
                        setattr(owner, name, MixedLinear(own, twin[name], n, self.exits))
                    elif name in READERS and name in twin:
                        setattr(owner, name, MixedNorm(own, twin[name], n, self.exits))
