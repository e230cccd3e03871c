"""Dense kernels that torch already has: `F.linear` in fp32, fp16 or bf16, and oneDNN-packed.

On a CPU the 16-bit types are bandwidth kernels for one row; many rows go through fp32, which is
several times faster there than torch's 16-bit matrix product (docs/decisions.md).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import KernelUnavailable

MANY_ROWS = 4


class TorchDense:
    """`F.linear` with the weight [N, K] as it is stored; the weight is not copied."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.shape = (weight.shape[0], weight.shape[1])
        self.bits = float(weight.element_size() * 8)
        self.name = f"torch-{_short(weight.dtype)}"

    def __call__(self, x: Tensor) -> Tensor:
        weight = self.weight
        if weight.dtype == torch.float32:
            return F.linear(x, weight)
        if weight.device.type == "cpu" and x.shape[0] >= MANY_ROWS:
            return F.linear(x, weight.float())
        return F.linear(x.to(weight.dtype), weight).float()

    def dense(self) -> Tensor:
        """The weight, fp32 [N, K]."""
        return self.weight.float()

    def tensors(self) -> list[Tensor]:
        """The stored weight."""
        return [self.weight]


class MkldnnDense:
    """oneDNN's packed layout on CPU, in bf16 where the processor has it, or fp32.

    Raises KernelUnavailable where oneDNN refuses the type.
    """

    def __init__(self, weight: Tensor) -> None:
        ops = torch.ops.mkldnn
        if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
            raise KernelUnavailable("oneDNN kernels need a CPU build of torch with oneDNN.")
        if weight.dtype == torch.bfloat16 and not ops._is_mkldnn_bf16_supported():
            raise KernelUnavailable(
                "this processor has no oneDNN bf16 path; 'torch-bf16' serves instead."
            )
        if weight.dtype not in (torch.bfloat16, torch.float32):
            raise KernelUnavailable(f"oneDNN packs bf16 and fp32 here, not {weight.dtype}.")
        self.shape = (weight.shape[0], weight.shape[1])
        self.dtype = weight.dtype
        self.bits = float(weight.element_size() * 8)
        self.name = f"onednn-{_short(weight.dtype)}"
        self.packed = ops._reorder_linear_weight(weight.contiguous(), 1)

    def __call__(self, x: Tensor) -> Tensor:
        linear = torch.ops.mkldnn._linear_pointwise
        result: Tensor = linear(x.to(self.dtype), self.packed, None, "none", [], "")
        return result.float()

    def dense(self) -> Tensor:
        """The weight, fp32 [N, K], read back through the kernel itself."""
        return self(torch.eye(self.shape[1])).t().contiguous()

    def tensors(self) -> list[Tensor]:
        """The packed weight."""
        return [self.packed]


def _short(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
