"""One row through a whole layer in one call of C++: norms, products, RoPE, cache and attention.

For layers of every family, with the options of `BlockShape`, whose linears are native kernels.
Knows nothing of exits, policies, or which bank a layer belongs to; the caller owns every tensor
that is written.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..block import Rope
from ..errors import CacheFull, KernelUnavailable
from ..kernels.base import Linear
from ..kernels.native import HOLD_BYTES, TYPES, CMatrix, Native
from ..kernels.native_library import NativeLibrary, load_library
from ..layer import BlockShape, LayerWeights

POINTER = ctypes.sizeof(ctypes.c_void_p)
ATTENTION, FEED_FORWARD, BOTH = 1, 2, 3  # Parts of native_layer.h
VECTORS = (  # in the order of native_layer.h
    *("attn_norm", "ffn_norm", "attn_post_norm", "ffn_post_norm", "qkv_bias", "qk_norm"),
)


class CLayer(ctypes.Structure):
    """`Layer` of native_layer.h."""

    _fields_ = (
        *((name, CMatrix) for name in ("qkv", "o", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in VECTORS),
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads", "head_dim")),
        *((name, ctypes.c_int64) for name in ("whole_norm", "window", "gelu")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
    )


class CCache(ctypes.Structure):
    """`Cache` of native_layer.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("k", "v")),
        *((name, ctypes.c_int64) for name in ("kind", "head_stride", "row_stride")),
        *((name, ctypes.c_void_p) for name in ("cos", "sin", "queries", "readable", "count")),
    )


def _native(linear: Linear, what: str) -> Native:
    if not isinstance(linear, Native):
        raise KernelUnavailable(f"{what} has the kernel {linear.name}; a fused layer needs native.")
    return linear


def _fp32(tensor: Tensor, shape: tuple[int, ...], what: str) -> Tensor:
    """The tensor, once it is known to be what its pointer will be read as."""
    fits = tensor.shape == shape and tensor.dtype == torch.float32
    if not (fits and tensor.is_contiguous() and tensor.device.type == "cpu"):
        raise ValueError(f"{what} has to be contiguous fp32 {shape} on the CPU, not "
                         f"{tensor.dtype} {tuple(tensor.shape)}")  # fmt: skip
    return tensor


@dataclass(eq=False)
class NativeLayer:
    """One layer's weights as native.cpp reads them; keeps its tensors alive. Immutable.

    Norms and biases are those of `BlockShape.vectors`. Raises KernelUnavailable where a linear is
    not a native kernel or a size is not a multiple of 8, ValueError where shapes disagree.
    """

    weights: LayerWeights
    shape: BlockShape
    sizes: tuple[object, ...] = field(init=False)
    nbytes: int = field(init=False)
    descriptor: CLayer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        shape = self.shape
        linears = {name: _native(w, name) for name, w in self.weights.linears.items()}
        found = {name: linear.shape for name, linear in linears.items()}
        if found != shape.matrices or shape.heads % shape.kv_heads:
            raise ValueError(f"the linears have to be {shape.matrices}, not {found}")
        if not shape.in_eights:
            sizes = f"{shape.hidden}, {shape.ffn} and {shape.head_dim}"
            raise KernelUnavailable(f"a fused layer needs sizes in multiples of 8, not {sizes}.")
        self.nbytes = sum(linear.nbytes for linear in linears.values())
        self.sizes = (*found.values(), shape.heads, shape.kv_heads)
        scale = shape.head_dim**-0.5 if shape.scale is None else shape.scale
        self.descriptor = CLayer(
            *(linear.descriptor for linear in linears.values()),
            *self._pointers(),
            *(shape.heads, shape.kv_heads, shape.head_dim),
            *(shape.qk_norm == "all", shape.window or 0, shape.activation == "gelu_tanh"),
            *(shape.eps, scale),
        )

    def _pointers(self) -> list[int | None]:
        """Where each norm and bias lies, in the order of `VECTORS`; None where there is none."""
        small, sizes = self.weights.small, self.shape.vectors
        if small.keys() != sizes.keys():
            raise ValueError(f"a layer with {sorted(sizes)} cannot have {sorted(small)}")
        return [
            _fp32(small[name], sizes[name], name).data_ptr() if name in small else None
            for name in VECTORS
        ]


class NativeBank:
    """Layers and the cache slots that they write, bound by `NativeStep.bank`. Keeps all tensors."""

    def __init__(
        self,
        layers: Sequence[NativeLayer],
        caches: Sequence[CCache],
        slots: list[Tensor],
        kept: list[Tensor],
    ) -> None:
        self.layers = tuple(layers)
        self.hidden = layers[0].shape.hidden
        self.layer_bytes = max(layer.nbytes for layer in layers)
        self.capacity = min(tensor.shape[-2] for tensor in slots)
        pointers, numbers = ctypes.c_void_p * len(layers), ctypes.c_float * len(layers)
        descriptors = pointers(*(ctypes.addressof(layer.descriptor) for layer in layers))
        where = pointers(*(ctypes.addressof(cache) for cache in caches))
        self.cosines = numbers()
        self.addresses = tuple(ctypes.addressof(a) for a in (descriptors, where, self.cosines))
        self._kept = (descriptors, where, caches, slots, kept)


class NativeStep:
    """Runs single rows through layers and the head, with `torch.get_num_threads()` threads.

    `ropes` are the model's RoPE tables, fp32 [capacity, head_dim], which the layers' shapes count.
    Results do not depend on the number of threads. Not for two Python threads at once.
    """

    def __init__(self, ropes: Sequence[Rope], library: NativeLibrary | None = None) -> None:
        library = load_library() if library is None else library
        self._ropes = tuple(ropes)
        for rope in self._ropes:
            size = (rope.cos.shape[0], rope.cos.shape[-1])
            _fp32(rope.cos, size, "cos")
            _fp32(rope.sin, size, "sin")
            if rope.queries is not None:
                _fp32(rope.queries, size[:1], "queries")
        self._layers, self._heads = (
            {hold: library.function(name, None, arguments, hold) for hold in (True, False)}
            for name, arguments in (("river_layers", "ppnpnnip"), ("river_head", "ppdppi"))
        )
        self._keys_values = library.function("river_keys_values", None, "ppnpni", hold=True)
        self._choice = library.function("river_choice", None, "pnnnppp", hold=True)
        self._all = torch.full((1,), -1)
        self._h: Tensor | None = None
        self._h_address = self._hidden = 0
        self._threads = torch.get_num_threads

    def bank(
        self,
        layers: Sequence[NativeLayer],
        ks: Sequence[Tensor],
        vs: Sequence[Tensor],
        readable: tuple[Tensor, Tensor] | None = None,
    ) -> NativeBank:
        """Layers of the same sizes with their k and v [kv_heads, capacity, head_dim], for `run`.

        fp16, bf16 or fp32, kept by the bank. `readable` are rows int32 [layers, capacity] and their
        counts int64 [layers], below 0 where a token may read every row before its own. Raises
        ValueError where shapes do not fit.
        """
        rows, counts = readable or (torch.empty(len(layers), 1, dtype=torch.int32), self._all)
        caches = [
            self._cache(layer, k, v, (rows[n].data_ptr(), counts[n % len(counts)].data_ptr()))
            for n, (layer, k, v) in enumerate(zip(layers, ks, vs, strict=True))
        ]
        if len({layer.sizes for layer in layers}) != 1:
            raise ValueError("the layers of a bank have to be of the same sizes")
        tables = [t for rope in self._ropes for t in (rope.cos, rope.sin)]
        return NativeBank(layers, caches, [*ks, *vs, *tables], [rows, counts])

    def _cache(self, layer: NativeLayer, k: Tensor, v: Tensor, readable: tuple[int, int]) -> CCache:
        """The descriptor of k and v, once they are known to fit the layer."""
        shape = layer.shape
        size = (shape.kv_heads, k.shape[1], shape.head_dim)
        fits = k.shape == v.shape == size and k.stride() == v.stride() and k.stride(2) == 1
        if not (fits and k.dtype == v.dtype and k.dtype in TYPES and k.device.type == "cpu"):
            raise ValueError(f"k and v have to be alike, 16 or 32 bits, {size}, not {k.shape}")
        pointers = (k.data_ptr(), v.data_ptr(), TYPES.index(k.dtype), k.stride(0), k.stride(1))
        return CCache(*pointers, *self._turns(shape), *readable)

    def _turns(self, shape: BlockShape) -> tuple[int | None, int | None, int | None]:
        """Where the RoPE factors of a layer lie; None where it has none."""
        if shape.rope is None:
            return None, None, None
        rope = self._ropes[shape.rope]
        if rope.cos.shape[1] != shape.head_dim:
            raise ValueError(f"cos has {rope.cos.shape[1]} columns for heads of {shape.head_dim}")
        queries = None if rope.queries is None else rope.queries.data_ptr()
        return rope.cos.data_ptr(), rope.sin.data_ptr(), queries

    def run(
        self, bank: NativeBank, h: Tensor, position: int, first: int, last: int, parts: int = BOTH
    ) -> list[float]:
        """Run layers first..last-1 (from 0) of `bank` on h fp32 [d] in place, in one call.

        Writes row `position` of their k and v, attends to the readable rows before it and to
        itself, and returns the cosine of what went into and came out of each layer, NaN where h is
        not finite. `parts` ATTENTION or FEED_FORWARD runs only that half of each. h is checked when
        it is first seen and then known by identity. Raises CacheFull beyond the cache or the RoPE
        tables, IndexError beyond the bank.
        """
        self._check(bank, h, position, first, last)
        count, (layers, caches, cosines) = last - first, bank.addresses
        self._layers[count * bank.layer_bytes <= HOLD_BYTES](
            layers + POINTER * first, caches + POINTER * first, count,
            self._h_address, position, parts, self._threads(), cosines,
        )  # fmt: skip
        return bank.cosines[:count]

    def keys_values(
        self, bank: NativeBank, h: Tensor, position: int, first: int, last: int
    ) -> None:
        """Write row `position` of k and v of layers first..last-1 as h fp32 [d] gives them."""
        self._check(bank, h, position, first, last)
        layers, caches, _ = bank.addresses
        self._keys_values(
            layers + POINTER * first, caches + POINTER * first, last - first,
            self._h_address, position, self._threads(),
        )  # fmt: skip

    def _check(self, bank: NativeBank, h: Tensor, position: int, first: int, last: int) -> None:
        if not 0 <= position < bank.capacity:
            raise CacheFull(f"position {position} is outside a cache of {bank.capacity} rows.")
        if not 0 <= first < last <= len(bank.layers):
            raise IndexError(f"layers {first} to {last} of {len(bank.layers)}")
        if h is not self._h or bank.hidden != self._hidden:
            self._h, self._hidden = _fp32(h, (bank.hidden,), "h"), bank.hidden
            self._h_address = h.data_ptr()

    def head(self, norm: Tensor, eps: float, linear: Linear, h: Tensor, logits: Tensor) -> None:
        """Write the scores of h fp32 [d], normed with `norm` fp32 [d], into logits fp32 [V]."""
        head = _native(linear, "the head")
        size, d = head.shape
        if d % 8:
            raise KernelUnavailable(f"a fused head needs a width in multiples of 8, not {d}.")
        _fp32(norm, (d,), "norm")
        _fp32(h, (d,), "h")
        _fp32(logits, (size,), "logits")
        self._heads[head.nbytes <= HOLD_BYTES](
            ctypes.addressof(head.descriptor), norm.data_ptr(), eps, h.data_ptr(),
            logits.data_ptr(), self._threads(),
        )  # fmt: skip

    def choice(
        self, logits: Tensor, token_id: int | None, wanted: int
    ) -> tuple[list[tuple[int, float]], float, float]:
        """The `wanted` best (id, log-probability) of logits fp32 [V], equals by the lower id.

        And the log-probability of `token_id` (of the best where None) and the entropy, in nats;
        not finite where the logits are not.
        """
        size, count = logits.shape[0], min(wanted, logits.shape[0])
        _fp32(logits, (size,), "logits")
        ids, scores = (ctypes.c_int64 * count)(), (ctypes.c_float * count)()
        about = (ctypes.c_float * 2)()
        self._choice(
            logits.data_ptr(), size, -1 if token_id is None else token_id, count,
            ctypes.addressof(ids), ctypes.addressof(scores), ctypes.addressof(about),
        )  # fmt: skip
        return list(zip(ids, scores, strict=True)), about[0], about[1]
