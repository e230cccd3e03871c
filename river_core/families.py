"""What a configuration means to River: block options of every layer, RoPE tables, tensor names.

A family is a row of a table. With hub_folder.py, loading.py and peers.py the only files that import
transformers, always inside functions, so importing this one stays cheap. Knows no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .block import Rope
from .errors import UnsupportedModel
from .layer import BlockShape
from .tensor_names import FOUR_NORMS, FUSED, TENSOR_NAMES, TensorNames

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class Family:
    """What the blocks of a `model_type` always have.

    `windowed`: its window is for all layers, where the layers have no types; `one_plus`: a norm
    multiplies by 1 + its weight; `wide`: its values leave the range of fp16 (Gemma's residual
    reaches 100,000); `rotary`: whose RoPE module computes the tables.
    """

    names: TensorNames = TENSOR_NAMES
    qkv_bias: bool = False
    qk_norm: str | None = None
    norms: str = "before"
    windowed: bool = False
    one_plus: bool = False
    scaled_embedding: bool = False
    wide: bool = False
    rotary: str = "Llama"


FAMILIES = {
    "llama": Family(),
    "mistral": Family(windowed=True),
    "ministral3": Family(windowed=True),
    "phi3": Family(FUSED, windowed=True, rotary="Phi3"),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm="head"),
    "gemma3_text": Family(
        FOUR_NORMS,
        qk_norm="head",
        norms="both",
        one_plus=True,
        scaled_embedding=True,
        wide=True,
        rotary="Gemma3",
    ),
    "smollm3": Family(),
    "olmo2": Family(qk_norm="all", norms="after"),
}
# vision-language models whose text model is one of these
WRAPPERS = {"mistral3": ("ministral3", "mistral"), "gemma3": ("gemma3_text",)}
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")
_REFUSED = (
    *("attention_bias", "mlp_bias", "use_bidirectional_attention"),
    *("attn_logit_softcapping", "final_logit_softcapping"),
)


def supported() -> tuple[str, ...]:
    """Names of the model types that River runs; of `WRAPPERS`, the text model."""
    return (*FAMILIES, *WRAPPERS)


def check_family(config: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel for a configuration, as JSON has it, of a type River does not run.

    A model's own code (auto_map) is never run: it must be of a type that transformers has.
    """
    found, text = config.get("model_type"), config.get("text_config")
    inner = text.get("model_type") if isinstance(text, Mapping) else None
    known = found in FAMILIES or (found in WRAPPERS and inner in (None, *WRAPPERS[found]))
    if known:
        return
    kind = repr(found) if found not in WRAPPERS else f"{found!r} around {inner!r}"
    own = " (its own code, auto_map, is never run)" if config.get("auto_map") else ""
    raise UnsupportedModel(
        f"models of type {kind} are not supported{own}; choose one of type "
        f"{', '.join(FAMILIES)}, or the text model of a {' or '.join(WRAPPERS)}."
    )


def check_storage(quantised: Mapping[str, Any] | None) -> None:
    """Raise UnsupportedModel where weights are stored other than in 16 bits or plain FP8."""
    method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
    if quantised is not None and method != "fp8":
        raise UnsupportedModel(
            f"this model's weights are already quantised (quantization_config, {method!r}); choose "
            "the 16-bit version of it."
        )


def family_of(config: PretrainedConfig) -> Family:
    """The row of a text model's configuration; raises UnsupportedModel where there is none."""
    check_family({"model_type": config.model_type})
    return FAMILIES[config.model_type]


def block_shapes(config: PretrainedConfig) -> tuple[BlockShape, ...]:
    """Sizes and options of every decoder block of a text model's configuration.

    Raises UnsupportedModel that names the option which River's block does not have.
    """
    family = family_of(config)
    _check_options(config, family)
    heads, kv_heads, head_dim = _heads(config)
    scalar = getattr(config, "query_pre_attn_scalar", head_dim)
    plain = BlockShape(
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=config.intermediate_size,
        eps=float(config.rms_norm_eps),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        scale=None if scalar == head_dim else scalar**-0.5,
        activation=ACTIVATIONS[_activation(config)],
        norms=family.norms,
    )
    return tuple(
        replace(plain, window=window, rope=rope)
        for window, rope in zip(_windows(config, family), _rope_of_layers(config), strict=True)
    )


def _activation(config: PretrainedConfig) -> str:
    name: str = getattr(config, "hidden_activation", None) or config.hidden_act
    return name


def _layer_types(config: PretrainedConfig) -> list[str]:
    """The attention type of every layer; "full_attention" where the configuration has none."""
    types = getattr(config, "layer_types", None)
    return list(types) if types else ["full_attention"] * config.num_hidden_layers


def _windows(config: PretrainedConfig, family: Family) -> list[int | None]:
    window = getattr(config, "sliding_window", None)
    if family.windowed:
        return [window] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in _layer_types(config)]


def _rope_of_layers(config: PretrainedConfig) -> list[int | None]:
    """Which table of `rope_tables` turns each layer's q and k."""
    kinds = _rope_kinds(config)
    turned = getattr(config, "no_rope_layers", None) or [1] * config.num_hidden_layers
    each = zip(_layer_types(config), turned, strict=False)
    return [(kinds.index(kind) if kind in kinds else 0) if has else None for kind, has in each]


def _rope_kinds(config: PretrainedConfig) -> list[str | None]:
    """The layer types that have RoPE parameters of their own, the full one first; or [None]."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [kind for kind in sorted(set(_layer_types(config))) if kind in parameters]
    return list(kinds) or [None]


def _rope_parameters(config: PretrainedConfig, kind: str | None) -> dict[str, Any]:
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    return parameters if kind is None else parameters[kind]


def _check_options(config: PretrainedConfig, family: Family) -> None:
    """Raise UnsupportedModel for an option that River's block does not have."""
    for name in _REFUSED:
        if getattr(config, name, None):
            raise UnsupportedModel(f"models with {name} are not supported; choose one without it.")
    types = set(_layer_types(config))
    if getattr(config, "sliding_window", None) and config.model_type == "llama":
        raise UnsupportedModel(
            "models of type 'llama' with sliding_window are not supported; choose one without it."
        )
    for other in sorted(types - {"full_attention", "sliding_attention"}):
        raise UnsupportedModel(
            f"layers of type {other!r} (layer_types) are not supported; choose a model whose "
            "layers are all of type 'full_attention' or 'sliding_attention'."
        )
    check_storage(getattr(config, "quantization_config", None))
    if _activation(config) not in ACTIVATIONS:
        raise UnsupportedModel(
            f"the activation {_activation(config)!r} is not supported; choose a model with "
            f"{' or '.join(ACTIVATIONS)}."
        )
    for kind in _rope_kinds(config):
        _check_rope(_rope_parameters(config, kind))


def _heads(config: PretrainedConfig) -> tuple[int, int, int]:
    """Query heads, key heads and values per head; UnsupportedModel where they do not divide."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    if heads % kv_heads or head_dim % 2:
        raise UnsupportedModel(
            f"{heads} query heads over {kv_heads} key heads of {head_dim} values do not divide "
            "evenly; choose a model whose do."
        )
    return heads, kv_heads, head_dim


def _check_rope(parameters: Mapping[str, Any]) -> None:
    rope_type = str(parameters.get("rope_type", "default"))
    if rope_type not in _ROPE_TYPES:
        raise UnsupportedModel(
            f"RoPE scaling {rope_type!r} is not supported; choose a model with one of "
            f"{', '.join(_ROPE_TYPES)}."
        )


def positions(config: PretrainedConfig) -> tuple[int, int]:
    """How many positions the model was made for, and how many have the same RoPE factors.

    They differ under longrope (Phi): a cache that holds more positions than the second number takes
    the long factors for all of them, as a cache cannot switch in between (traps.md).
    """
    longest = int(config.max_position_embeddings)
    parameters = _rope_parameters(config, _rope_kinds(config)[0])
    if parameters.get("rope_type") != "longrope":
        return longest, longest
    return longest, min(longest, int(parameters["original_max_position_embeddings"]))


def rotary_order(config: PretrainedConfig) -> list[int] | None:
    """The order of a head's D rows in which a partial RoPE turns the first half with the second.

    Phi turns the first r of D values, i with i + r / 2. With these rows moved to the front of both
    halves, every block does the same; None where all D are turned.
    """
    head_dim = _heads(config)[2]
    share = _rope_parameters(config, _rope_kinds(config)[0]).get("partial_rotary_factor", 1.0)
    turned = int(head_dim * share)
    if turned == head_dim:
        return None
    half, middle = turned // 2, (turned + head_dim) // 2
    return [*range(half), *range(turned, middle), *range(half, turned), *range(middle, head_dim)]


def rope_tables(config: PretrainedConfig, capacity: int) -> tuple[Rope, ...]:
    """The tables for positions 0..capacity-1 that the shapes name, [capacity, head_dim] each.

    Computed by transformers' own rotary modules, their scaling included. Values that a partial RoPE
    does not turn have cosine 1 and sine 0, in `rotary_order`. Raises UnsupportedModel for scalings
    that change with the length.
    """
    family, kinds = family_of(config), _rope_kinds(config)
    for kind in kinds:
        _check_rope(_rope_parameters(config, kind))
    name = family.rotary
    module = import_module(f"transformers.models.{name.lower()}.modeling_{name.lower()}")
    rotary = getattr(module, f"{name}RotaryEmbedding")(config)
    tables = []
    for kind in kinds:
        which = {} if kind is None else {"layer_type": kind}
        with torch.no_grad():
            at = torch.arange(capacity).unsqueeze(0)
            cos, sin = rotary(torch.zeros(1, dtype=torch.float32), at, **which)
        queries = _query_factors(_rope_parameters(config, kind), capacity)
        width = _heads(config)[2]
        tables.append(Rope(_widened(cos[0], 1.0, width), _widened(sin[0], 0.0, width), queries))
    return tuple(tables)


def _widened(table: Tensor, filler: float, head_dim: int) -> Tensor:
    """[n, r] with `filler` behind each half, [n, head_dim]."""
    rest = torch.full((table.shape[0], (head_dim - table.shape[1]) // 2), filler)
    first, second = table.chunk(2, dim=-1)
    return torch.cat([first, rest, second, rest], dim=-1).contiguous()


def _query_factors(parameters: Mapping[str, Any], capacity: int) -> Tensor | None:
    """Ministral 3: 1 + beta ln(1 + floor(position / trained length)); None where all are 1."""
    beta = parameters.get("llama_4_scaling_beta")
    if not beta:
        return None
    trained = parameters["original_max_position_embeddings"]
    factors = 1 + beta * torch.log(1 + torch.floor(torch.arange(capacity) / trained))
    return factors if capacity > trained else None
