"""The compiled kernels and the fused layer step, against plain torch written here."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from river_core.block import Rope
from river_core.errors import CacheFull, KernelUnavailable
from river_core.execution.native import NativeLayer, NativeStep
from river_core.kernels.base import Linear, QuantMatrix
from river_core.kernels.native import FEW_ROWS, NativeDense, NativeInt4, NativeInt8
from river_core.kernels.native_library import NativeLibrary, load_library
from river_core.layer import BlockShape, LayerWeights

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to build them with")
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
CAPACITY = 304
DENSE_ERROR = 5e-6
CODED = {4: NativeInt4, 8: NativeInt8}
CODED_KINDS = [f"int{bits}-{group}" for bits in CODED for group in (32, 64, 128)]
CODED_ERROR = 2e-4  # activations are rounded to 16 bits per group: 1.5e-5 of the group's largest


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> NativeLibrary:
    folder = tmp_path_factory.mktemp("native")
    with ThreadPoolExecutor() as two:  # both find an empty folder
        first, second = two.map(load_library, [folder, folder])
    assert first.path == second.path
    return first


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # test_native_threads.py says that further threads change no bit
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def quant(n: int, k: int, group: int, bits: int = 4) -> QuantMatrix:
    codes, finer = torch.randint(0, 2**bits, (n, k), dtype=torch.uint8), 2 ** (bits - 4)
    scale = (0.5 + torch.rand(n, k // group)) / (3 * finer * math.sqrt(k))
    zero = (7.5 + 3 * torch.randn(n, k // group)) * finer
    return QuantMatrix(codes, scale, zero, group, bits)


def rounded(matrix: QuantMatrix) -> QuantMatrix:
    """With scale and zero as the kernels keep them: fp16, 8-bit codes' zeros less 128."""
    middle = 128 if matrix.code_bits == 8 else 0
    zero = (matrix.zero - middle).half().float() + middle
    return replace(matrix, scale=matrix.scale.half().float(), zero=zero)


def make(n: int, k: int, kind: str, library: NativeLibrary) -> Linear:
    """Weights ~ N(0, 1.5 / sqrt(K)), or codes of about that size: kind "int4-64" and so on."""
    if kind.startswith("int"):
        bits = int(kind[3])
        return CODED[bits](quant(n, k, int(kind[5:]), bits), library)
    return NativeDense((torch.randn(n, k) * 1.5 / math.sqrt(k)).to(DTYPES[kind]), library)


def error(found: Tensor, x: Tensor, linear: Linear) -> float:
    """Largest error of a product, in units of the size that its numbers have on average."""
    weight, x = linear.dense().double(), x.double()
    size = x.norm(dim=-1, keepdim=True) * weight.norm(dim=1) / math.sqrt(x.shape[-1])
    return float(((found.double() - x @ weight.T) / size).abs().max())


def compare(linear: Linear, few: float) -> None:
    """Products of 1 to 33 rows; `few` is the limit where the kernel itself computes."""
    assert isinstance(linear, Linear)
    rows, columns = linear.shape
    for m in (1, 2, 3, 4, 7, 16, 33):
        x = torch.randn(m, columns)
        assert linear(x).shape == (m, rows)
        assert error(linear(x), x, linear) < (few if m <= FEW_ROWS else DENSE_ERROR)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 17, 65, 576])
@pytest.mark.parametrize("columns", [64, 100, 192, 576, 1536])
def test_dense_equals_torch(library: NativeLibrary, kind: str, rows: int, columns: int) -> None:
    weight = torch.randn(rows, columns).to(DTYPES[kind])
    linear = NativeDense(weight, library)
    assert (linear.name, linear.shape) == (f"native-{kind}", (rows, columns))
    assert torch.equal(linear.dense(), weight.float())
    assert linear.tensors()[0].data_ptr() == weight.data_ptr(), "shared with the caller"
    compare(linear, DENSE_ERROR)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("rows", [1, 3, 17, 65, 576])
@pytest.mark.parametrize("columns", [64, 96, 192, 576, 640, 1536])
@pytest.mark.parametrize("bits", CODED)
def test_codes_equal_torch(
    library: NativeLibrary, bits: int, group: int, rows: int, columns: int
) -> None:
    matrix = quant(rows, columns, group, bits)
    if columns % group:
        with pytest.raises(KernelUnavailable, match=f"{columns} columns in groups of {group}"):
            CODED[bits](matrix, library)
        return
    linear = CODED[bits](matrix, library)
    assert (linear.name, linear.shape) == (f"native-int{bits}", (rows, columns))
    assert rows % 4 or columns % 64 or linear.bits == bits + 32 / group
    weight = rounded(matrix).dense()  # zeros in the other frame: the last bit may differ
    assert (linear.dense() - weight).abs().max() <= 1e-6 * weight.abs().max()
    compare(linear, CODED_ERROR)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_the_largest_sums_do_not_overflow(library: NativeLibrary, group: int) -> None:
    """Every activation as large as its group's largest, every code at an end."""
    for code in (0, 255):
        codes = torch.full((4, 256), code, dtype=torch.uint8)
        scale = torch.ones(4, 256 // group)
        for zero in (0.0, 255.0):
            linear = NativeInt8(QuantMatrix(codes, scale, zero * scale, group, 8), library)
            for x in (torch.ones(1, 256), -torch.ones(1, 256)):
                assert torch.allclose(linear(x), x @ linear.dense().T, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("bits", CODED)
def test_codes_survive_outliers_and_refuse_what_fp16_cannot_hold(
    library: NativeLibrary, bits: int
) -> None:
    matrix = quant(64, 576, 64, bits)
    linear = CODED[bits](matrix, library)
    for scale in (1e-20, 1e20):
        x = torch.randn(1, 576) * scale
        x[0, 5] *= 1000
        assert error(linear(x), x, linear) < CODED_ERROR * 10
    assert not linear(x * 0).any()
    for bad in (math.nan, math.inf, -math.inf):
        x[0, 100] = bad
        assert not linear(x).isfinite().any()
    matrix.zero[3, 2] = 1e5
    with pytest.raises(ValueError, match="does not fit"):
        linear(x[:, 1:])
    with pytest.raises(KernelUnavailable, match="65504"):
        CODED[bits](matrix, library)
    with pytest.raises(KernelUnavailable, match=f"codes of {12 - bits} bits"):
        CODED[bits](replace(matrix, code_bits=12 - bits), library)


def rope(dim: int) -> Rope:
    angles = torch.outer(torch.arange(CAPACITY), 10000.0 ** (-torch.arange(0, dim, 2) / dim))
    return Rope(torch.cat([angles, angles], 1).cos(), torch.cat([angles, angles], 1).sin())


def fused(
    kind: str, repeat: int, dim: int, library: NativeLibrary, **options: object
) -> NativeLayer:
    """A layer of random weights: norms U(0.5, 1.5), biases N(0, 0.5)."""
    kv_heads, d, ffn = 4 if dim == 32 else 2, 256 if kind.endswith("-128") else 192, 384
    shape = BlockShape(d, kv_heads * repeat, kv_heads, dim, ffn, 1e-5, **options)
    linears = {name: make(n, k, kind, library) for name, (n, k) in shape.matrices.items()}
    small = {name: 0.5 + torch.rand(size) for name, size in shape.vectors.items()}
    if shape.qkv_bias:
        small["qkv_bias"] = 0.5 * torch.randn(shape.vectors["qkv_bias"])
    return NativeLayer(LayerWeights.of(linears, small), shape)


def reference(
    layer: NativeLayer, h: Tensor, kv: tuple[Tensor, Tensor], at: tuple[int, Tensor, Tensor]
) -> tuple[Tensor, float, Tensor, Tensor]:
    """One row through a layer in fp32, over the rows in k and v: h', cosine, new k and v rows."""
    position, cos, sin = at
    w, shape = layer.weights, layer.shape

    def turn(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return x * cos[position] + torch.cat([-x[:, half:], x[:, :half]], 1) * sin[position]

    x = F.rms_norm(h, h.shape, w.attn_norm, shape.eps)
    qkv = (w.qkv.dense() @ x).view(-1, shape.head_dim)
    q, new_k, new_v = qkv.split([shape.heads, shape.kv_heads, shape.kv_heads])
    repeat = shape.heads // shape.kv_heads
    keys, values = (t[:, : position + 1].float().repeat_interleave(repeat, 0) for t in kv)
    scores = (keys @ turn(q).unsqueeze(-1)).squeeze(-1) / math.sqrt(shape.head_dim)
    mixed = (scores.softmax(-1).unsqueeze(1) @ values).flatten()
    y = h + w.out.dense() @ mixed
    gate, up = (w.gate_up.dense() @ F.rms_norm(y, y.shape, w.ffn_norm, shape.eps)).chunk(2)
    y = y + w.down.dense() @ (F.silu(gate) * up)
    return y, float(F.cosine_similarity(h, y, 0)), turn(new_k), new_v


def one(step: NativeStep, layer: NativeLayer, h: Tensor, k: Tensor, v: Tensor, at: int) -> float:
    """One layer on one row, bound anew each time; its cosine."""
    return step.run(step.bank([layer], [k], [v]), h, at, 0, 1)[0]


@pytest.mark.parametrize("kind", [*DTYPES, *CODED_KINDS])
@pytest.mark.parametrize("repeat", [1, 3, 4])
@pytest.mark.parametrize("dim", [32, 64, 128])
def test_fused_layer(library: NativeLibrary, kind: str, repeat: int, dim: int) -> None:
    layer, table, exact = fused(kind, repeat, dim, library), rope(dim), kind in DTYPES
    step, heads = NativeStep([table], library), layer.shape.kv_heads
    for dtype, ulp in ((torch.float32, 0.0), (torch.float16, 2**-10), (torch.bfloat16, 2**-7)):
        both = torch.full((2, heads, CAPACITY, dim), math.nan, dtype=dtype)
        k, v = both
        for position in (0, 1, 63, 300):
            both[:, :, :position] = torch.randn(2, heads, position, dim)
            h = torch.randn(layer.shape.hidden) * 3
            found = h.clone()
            similarity = one(step, layer, found, k, v, position)
            y, cosine, new_k, new_v = reference(layer, h, (k, v), (position, table.cos, table.sin))
            for cache, row in ((k, new_k), (v, new_v)):
                limit = row.abs() * ulp + (DENSE_ERROR if exact else CODED_ERROR) * row.abs().max()
                assert ((cache[:, position].float() - row).abs() <= limit).all()
            assert both[:, :, position + 1 :].isnan().all()
            off = (found - y).abs().max() / (y - h).abs().max()
            assert off < (1e-5 if exact else 5e-4)
            assert abs(similarity - cosine) < (1e-6 if exact else 2e-4)


def test_fused_layer_refuses_what_it_cannot_run(library: NativeLibrary) -> None:
    layer = fused("fp32", 3, 64, library)
    step = NativeStep([rope(64)], library)
    h, k, v = torch.randn(192), *torch.zeros(2, 2, CAPACITY, 64)
    for row, values, position, expected, match in (
        (h, v, -1, CacheFull, "position -1"),
        (h, v, CAPACITY, CacheFull, f"position {CAPACITY}"),
        (h.half(), v, 0, ValueError, "h has to be"),
        (h, v.half(), 0, ValueError, "k and v have to be"),
    ):
        with pytest.raises(expected, match=match):
            one(step, layer, row, k, values, position)
    h[7] = math.nan
    assert math.isnan(one(step, layer, h, k, v, 0))
