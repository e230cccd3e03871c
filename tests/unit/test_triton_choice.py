"""Where Triton's kernels are offered, and what is said where they cannot run. No GPU is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from river_core.errors import KernelUnavailable
from river_core.kernels.choose import CODED_ON, DENSE_ON, Chooser
from river_core.kernels.gemv_plan import (
    MOST_ROWS,
    Cut,
    cut_of,
    pack_meta,
    pack_words,
    unpack,
    unpack_words,
)
from river_core.kernels.micro import random_matrix, random_weight
from river_core.kernels.triton_loading import load_triton, triton_dense, triton_int4

CUDA = torch.device("cuda")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


def said(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_engine_and_its_chooser_do_not_import_triton() -> None:
    code = (
        "import sys, torch, river_core, river_core.loading\n"
        "from river_core.kernels.choose import Chooser\n"
        "Chooser(torch.device('cpu')).plan({(64, 64): 1}, {(4, 64, 64): 1}, 'float16')\n"
        "print([name for name in sys.modules if name.startswith('river_core.kernels.triton')])\n"
        "print('triton' in sys.modules)"
    )
    assert said(code).splitlines() == ["['river_core.kernels.triton_loading']", "False"]


def test_a_missing_triton_is_said_in_one_sentence() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from river_core.kernels.choose import Chooser\n"
        "print(Chooser(torch.device('cuda'))._notes)"
    )
    found = said(code)
    assert "Triton's kernels are not used" in found
    assert "pip install triton" in found


@without_gpu
def test_no_gpu_is_said_and_the_names_are_left_out() -> None:
    pytest.importorskip("triton", reason="triton is not installed (requirements-dev.txt)")
    with pytest.raises(KernelUnavailable, match="torch sees no GPU"):
        load_triton(CUDA)
    chooser = Chooser(CUDA)
    assert chooser._lacks == "triton"
    assert len(chooser._notes) == 1


@without_gpu
def test_the_linears_refuse_a_cpu_and_shapes_that_do_not_fit() -> None:
    pytest.importorskip("triton", reason="triton is not installed (requirements-dev.txt)")
    with pytest.raises(KernelUnavailable, match="needs a CUDA GPU, not cpu"):
        triton_int4(random_matrix((16, 128), 64, seed=1))
    with pytest.raises(KernelUnavailable, match="multiples of 64, not 16 x 96 in groups of 32"):
        triton_int4(random_matrix((16, 96), 32, seed=1))
    with pytest.raises(KernelUnavailable, match="4-bit codes"):
        triton_int4(random_matrix((16, 128), 64, seed=1, code_bits=8))
    with pytest.raises(KernelUnavailable, match="multiples of 16, not torch"):
        triton_dense(random_weight((16, 24), torch.float16))
    with pytest.raises(KernelUnavailable, match="16-bit weights"):
        triton_dense(random_weight((16, 32), torch.float32))


def test_the_lists_offer_them_on_cuda_only() -> None:
    assert "triton-int4" in CODED_ON["cuda", 4]
    assert "triton" in DENSE_ON["cuda"]
    others = [*CODED_ON["cpu", 4], *CODED_ON["cpu", 8], *DENSE_ON["cpu"]]
    assert not any("triton" in name for name in others)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_packing_and_back(group: int) -> None:
    matrix = random_matrix((5, 384), group, seed=1)
    words = pack_words(matrix.codes)
    assert words.shape == (5, 48)
    assert torch.equal(unpack_words(words), matrix.codes)
    back = unpack(words, pack_meta(matrix), group)
    assert torch.equal(back.scale, matrix.scale.half().float())
    assert torch.equal(back.zero, matrix.zero.half().float())
    word = int(words[0, 9]) & 0xFFFFFFFF  # word 1 of the second span
    assert [word >> 4 * j & 15 for j in range(8)] == matrix.codes[0, 65:128:8].tolist()


def test_scales_beyond_fp16_are_refused() -> None:
    matrix = random_matrix((5, 128), 64, seed=1)
    matrix.scale[3, 1] = 1e5
    with pytest.raises(KernelUnavailable, match="over 65504"):
        pack_meta(matrix)


@pytest.mark.parametrize(
    ("rows", "units", "choices", "cut"),
    [
        (28672, 64, (16, 8, 4), Cut(8, 8, 1)),  # 8B gate and up
        (4096, 64, (16, 8, 4), Cut(4, 16, 1)),
        (960, 9, (16, 8, 4), Cut(4, 4, 2)),  # 135M q, k, v: its columns are split
        (576, 1536, (512, 256, 128), Cut(4, 512, 3)),
    ],
)
def test_the_cut_depends_on_the_shape(rows, units, choices, cut) -> None:
    assert cut_of(rows, units, choices) == cut
    assert MOST_ROWS == 8
