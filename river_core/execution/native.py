"""One row through a whole layer in one call of C++: norms, products, RoPE, cache and attention.

For Llama-shaped layers (grouped-query attention, Hugging Face's half-rotation RoPE, SiLU-gated
feed-forward, no biases) whose linears are native kernels. Knows nothing of exits, policies, or
which bank a layer belongs to; the caller owns every tensor that is written.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import CacheFull, KernelUnavailable
from ..kernels.base import Linear
from ..kernels.native import (
    HOLD_BYTES,
    TYPES,
    CMatrix,
    NativeDense,
    NativeInt4,
    NativeLibrary,
    load_library,
)

Native = NativeDense | NativeInt4


class CLayer(ctypes.Structure):
    """`Layer` of native.cpp."""

    _fields_ = (
        *((name, CMatrix) for name in ("qkv", "o", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("attn_norm", "ffn_norm")),
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads", "head_dim")),
        ("eps", ctypes.c_float),
    )


class CCache(ctypes.Structure):
    """`Cache` of native.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("k", "v")),
        *((name, ctypes.c_int64) for name in ("kind", "head_stride", "row_stride")),
        *((name, ctypes.c_void_p) for name in ("cos", "sin")),
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

    Norms fp32 [d]; qkv [(heads + 2 kv_heads) head_dim, d], rows q, k, v; o [d, heads head_dim];
    gate_up [2 F, d], rows gate, up; down [d, F]. Raises KernelUnavailable where a linear is not a
    native kernel or a size is not a multiple of 8, ValueError where shapes disagree.
    """

    attn_norm: Tensor
    qkv: Linear
    o: Linear
    ffn_norm: Tensor
    gate_up: Linear
    down: Linear
    eps: float
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int = field(init=False)
    nbytes: int = field(init=False)
    descriptor: CLayer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names = ("qkv", "o", "gate_up", "down")
        linears = [_native(getattr(self, name), name) for name in names]
        self.hidden = d = linears[0].shape[1]
        self.nbytes = sum(linear.nbytes for linear in linears)
        ffn, wide = linears[3].shape[1], self.heads * self.head_dim
        expected = [
            (wide + 2 * self.kv_heads * self.head_dim, d),
            (d, wide),
            (2 * ffn, d),
            (d, ffn),
        ]
        found = [linear.shape for linear in linears]
        if found != expected or self.heads % self.kv_heads:
            raise ValueError(f"{names} have to be {expected}, not {found}")
        if d % 8 or ffn % 8 or self.head_dim % 8:
            sizes = f"{d}, {ffn} and {self.head_dim}"
            raise KernelUnavailable(f"a fused layer needs sizes in multiples of 8, not {sizes}.")
        norms = [_fp32(self.attn_norm, (d,), "attn_norm"), _fp32(self.ffn_norm, (d,), "ffn_norm")]
        self.descriptor = CLayer(
            *(linear.descriptor for linear in linears),
            *(norm.data_ptr() for norm in norms),
            *(self.heads, self.kv_heads, self.head_dim, self.eps),
        )


@dataclass(eq=False)
class _Bound:
    """A layer with the cache it was last run on, and the call that is ready to go."""

    layer: NativeLayer
    k: Tensor
    v: Tensor
    cache: CCache
    capacity: int
    addresses: tuple[int, int]
    run: Callable[..., float]


class NativeStep:
    """Runs single rows through layers and the head, with `torch.get_num_threads()` threads.

    cos, sin fp32 [capacity, head_dim] are the model's RoPE tables. Results do not depend on the
    number of threads. Tensors are checked when they are first seen and then known by identity: pass
    the same objects at every step (`cache.k.unbind()` once, not `cache.k[layer]` each time). Not
    for two Python threads at once.
    """

    def __init__(self, cos: Tensor, sin: Tensor, library: NativeLibrary | None = None) -> None:
        library = load_library() if library is None else library
        self._cos = _fp32(cos, (cos.shape[0], cos.shape[-1]), "cos")
        self._sin = _fp32(sin, tuple(cos.shape), "sin")
        self._layers, self._heads = (
            {hold: library.function(name, result, arguments, hold) for hold in (True, False)}
            for name, result, arguments in (
                ("river_layer", ctypes.c_float, "pppni"),
                ("river_head", None, "ppfppi"),
            )
        )
        self._bound: dict[int, _Bound] = {}
        self._h: Tensor | None = None
        self._h_address = self._hidden = 0
        self._threads = torch.get_num_threads

    def layer(self, layer: NativeLayer, h: Tensor, k: Tensor, v: Tensor, position: int) -> float:
        """Run `layer` on h fp32 [d] in place; return the cosine of h before and after.

        Writes row `position` of k and v [kv_heads, capacity, head_dim] (fp16, bf16 or fp32) and
        attends to rows 0..position. The cosine is NaN where h is not finite. Raises CacheFull
        beyond the cache or the RoPE tables.
        """
        bound = self._bound.get(id(layer))
        if bound is None or bound.k is not k or bound.v is not v:
            bound = self._bind(layer, k, v)
        if h is not self._h or layer.hidden != self._hidden:
            self._h, self._hidden = _fp32(h, (layer.hidden,), "h"), layer.hidden
            self._h_address = h.data_ptr()
        if not 0 <= position < bound.capacity:
            raise CacheFull(f"position {position} is outside a cache of {bound.capacity} rows.")
        return bound.run(*bound.addresses, self._h_address, position, self._threads())

    def _bind(self, layer: NativeLayer, k: Tensor, v: Tensor) -> _Bound:
        """Check a cache against a layer and prepare the call; the tensors are kept."""
        size = (layer.kv_heads, k.shape[1], layer.head_dim)
        fits = k.shape == v.shape == size and k.stride() == v.stride() and k.stride(2) == 1
        if not (fits and k.dtype == v.dtype and k.dtype in TYPES and k.device.type == "cpu"):
            raise ValueError(f"k and v have to be alike, 16 or 32 bits, {size}, not {k.shape}")
        if self._cos.shape[1] != layer.head_dim:
            raise ValueError(f"cos has {self._cos.shape[1]} columns for heads of {layer.head_dim}")
        pointers = (k.data_ptr(), v.data_ptr(), TYPES.index(k.dtype), k.stride(0), k.stride(1))
        cache = CCache(*pointers, self._cos.data_ptr(), self._sin.data_ptr())
        addresses = (ctypes.addressof(layer.descriptor), ctypes.addressof(cache))
        capacity = min(k.shape[1], self._cos.shape[0])
        run = self._layers[layer.nbytes <= HOLD_BYTES]
        bound = _Bound(layer, k, v, cache, capacity, addresses, run)
        self._bound[id(layer)] = bound
        return bound

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
