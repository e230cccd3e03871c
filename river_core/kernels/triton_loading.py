"""Whether Triton's kernels run on a device, found out by running one; imports triton when asked.

Knows no shapes and makes no choice.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import KernelUnavailable
from .base import QuantMatrix
from .micro import random_matrix, verify

if TYPE_CHECKING:
    from .triton_linear import TritonDense, TritonInt4

OLDEST = (7, 5)  # compute capability


def load_triton(device: torch.device) -> str:
    """Compile and check a small 4-bit product on a CUDA `device`; the version of Triton.

    Raises KernelUnavailable with the reason where Triton is missing, or cannot compile there.
    """
    try:
        import triton
    except ImportError as error:
        raise KernelUnavailable(
            f"Triton's kernels are not used: {error}; `pip install triton` (Linux)."
        ) from error
    if not torch.cuda.is_available():
        raise KernelUnavailable(f"Triton's kernels are not used: torch sees no GPU for {device}.")
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability < OLDEST:
        raise KernelUnavailable(
            f"Triton's kernels are not used: they need compute capability 7.5, not {capability}."
        )
    try:
        _check(device)
    except (OSError, RuntimeError, subprocess.SubprocessError, triton.TritonError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise KernelUnavailable(
            f"Triton's kernels are not used: one failed here ({said[0]}); Triton needs a C "
            "compiler such as gcc."
        ) from error
    return str(triton.__version__)


def require_power(dim: int) -> None:
    """Raise KernelUnavailable where the attention kernels cannot take heads of this size."""
    if dim & (dim - 1):
        raise KernelUnavailable(f"Triton's attention needs heads of 2^n dimensions, not {dim}.")


def _check(device: torch.device) -> None:
    kernel = triton_int4(random_matrix((16, 128), 64, seed=0).to(device))
    verify(kernel, torch.randn(1, 128, generator=torch.Generator().manual_seed(7)).to(device))


def triton_int4(matrix: QuantMatrix) -> TritonInt4:
    """`TritonInt4` of a matrix; only after `load_triton`."""
    from .triton_linear import TritonInt4

    return TritonInt4(matrix)


def triton_dense(weight: Tensor) -> TritonDense:
    """`TritonDense` of a weight [N, K]; only after `load_triton`."""
    from .triton_linear import TritonDense

    return TritonDense(weight)
