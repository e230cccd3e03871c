"""Weights to the river's codes, scales and zeros, and the river's file on disk.

The only file that imports hqq, and only when it quantises. Works matrix by matrix on fp32 [N, K];
knows nothing of kernels' layouts (kernels/) or of where weights come from (loading.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from .activation_aware import clipped
from .errors import ModelUnavailable, SettingsError
from .kernels.base import QuantMatrix
from .second_order import Compensation
from .settings import QuantSpec
from .shapes import check_group

FORMAT = "river-2"
BLOCK = 1 << 21  # numbers: 8 MiB in fp32, and the solver holds ten times that


def quantize(
    weight: Tensor, spec: QuantSpec, name: str = "the matrix", moments: Tensor | None = None
) -> QuantMatrix:
    """Quantise one matrix [N, K] of any float type by the method of `spec`.

    In blocks of rows of at most BLOCK numbers: the groups lie along the rows, so a block only
    decides by itself when a solver has done enough, and its many temporaries stay small.
    `moments` fp32 [K, K], the mean of x x^T over inputs x, is what methods "gptq" and "awq" need; a
    matrix alone has no scales of "awq", only its ranges. Solved where the moments are. Raises
    SettingsError where the group does not divide K or the moments are missing.
    """
    check_group(spec, name, weight.shape[1])
    rows = max(1, BLOCK // weight.shape[1])
    device = torch.device("cpu") if moments is None else moments.device
    blocks = [block.detach().to(device, torch.float32) for block in weight.split(rows)]
    if spec.needs_inputs and moments is None:
        raise SettingsError(
            f"method {spec.method!r} needs inputs; load a model that has a tokenizer."
        )
    if spec.method == "awq" and moments is not None:
        return QuantMatrix.cat([clipped(b, moments, spec.group_size, spec.top) for b in blocks])
    if spec.method == "gptq" and moments is not None:
        solver = Compensation(moments, spec.group_size, spec.top)
        return QuantMatrix.cat([solver.solve(b).to(torch.device("cpu")) for b in blocks])
    solve = {"hqq": _hqq, "rtn": _round_to_nearest}[spec.method]
    return QuantMatrix.cat([solve(block, spec) for block in blocks])


def _round_to_nearest(weight: Tensor, spec: QuantSpec) -> QuantMatrix:
    """Each group's range in equal steps, the zero a whole number: the control."""
    grouped = weight.view(weight.shape[0], -1, spec.group_size)
    high, low = grouped.amax(-1, keepdim=True), grouped.amin(-1, keepdim=True)
    scale = ((high - low) / spec.top).clamp(min=1e-8)
    zero = (-low / scale).round()
    codes = (grouped / scale + zero).round().clamp(0, spec.top).to(torch.uint8)
    sides = scale.squeeze(-1), zero.squeeze(-1)
    return QuantMatrix(codes.view_as(weight), *sides, spec.group_size, spec.code_bits)


def _hqq(weight: Tensor, spec: QuantSpec) -> QuantMatrix:
    """Half-quadratic quantization (method.md 3.13)."""
    from hqq.core.quantize import Quantizer

    n, k = weight.shape
    codes, meta = Quantizer.quantize(
        weight,
        nbits=spec.bits,
        group_size=spec.group_size,
        axis=1,
        round_zero=False,
        bitpack=False,
        compute_dtype=torch.float32,
        device="cpu",
    )
    groups = (n, k // spec.group_size)
    return QuantMatrix(
        codes.to(torch.uint8).view(n, k),
        meta["scale"].float().view(groups),
        meta["zero"].float().view(groups),
        spec.group_size,
        spec.code_bits,
    )


def quantize_fused(
    parts: Mapping[str, Tensor], spec: QuantSpec, moments: Tensor | None = None
) -> QuantMatrix:
    """Quantise matrices with the same columns one by one, then stack them by rows."""
    if spec.method == "gptq":  # rows do not depend on each other, one solution serves them all
        name = next(iter(parts))
        return quantize(torch.cat(list(parts.values())), spec, name, moments)
    return QuantMatrix.cat([quantize(w, spec, name) for name, w in parts.items()])


class RiverFile:
    """One river on disk: safetensors with codes and fp32 metadata, keyed by its weights.

    `fingerprint` identifies the 16-bit weights; a file made from other weights or settings is
    refused with ModelUnavailable. Codes of 4 bits lie two in a byte; files from before there were
    others do not say which they have. Writing is atomic: a broken write leaves no file. Once loaded
    or saved, `seconds` is what it took to make the codes and `vectors` what lies beside them: what
    norms are divided by (fp32, by name), under a method that does so.
    """

    seconds = 0.0

    def __init__(self, path: Path, fingerprint: str, spec: QuantSpec) -> None:
        self.path = path
        self.vectors: dict[str, Tensor] = {}
        self._meta = {"format": FORMAT, "weights": fingerprint, "spec": spec.label}

    @classmethod
    def of(cls, folder: Path, fingerprint: str, spec: QuantSpec) -> RiverFile:
        """The file of these weights in `folder`; one of an earlier format has another name."""
        name = f"{fingerprint[:20]}-{spec.label}-{FORMAT}.safetensors"
        return cls(folder / name, fingerprint, spec)

    def exists(self) -> bool:
        """Whether a file is there (it may still be refused)."""
        return self.path.is_file()

    def load(self) -> dict[str, QuantMatrix]:
        """Matrices by name, bit-identical to what was saved."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="pt") as file:
                meta = file.metadata() or {}
                if {key: meta.get(key) for key in self._meta} != self._meta:
                    raise ModelUnavailable(
                        f"{self.path} holds a river of other weights or settings; delete it and "
                        "it will be built again."
                    )
                groups = json.loads(meta["groups"])
                self.seconds = float(meta["seconds"])
                bits = json.loads(meta.get("code_bits", "{}"))
                names = json.loads(meta.get("vectors", "[]"))
                self.vectors = {name: file.get_tensor(f"{name}.vector") for name in names}
                return {n: _read(file, n, group, bits.get(n, 4)) for n, group in groups.items()}
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise ModelUnavailable(
                f"{self.path} is damaged ({error}); delete it and it will be built again."
            ) from error

    def save(
        self,
        matrices: Mapping[str, QuantMatrix],
        seconds: float = 0.0,
        vectors: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write `matrices` and `vectors`, replacing what is there in one step."""
        from safetensors.torch import save_file

        tensors: dict[str, Tensor] = {}
        for name, matrix in matrices.items():
            tensors[f"{name}.codes"] = _packed(matrix)
            tensors[f"{name}.scale"] = matrix.scale.contiguous()
            tensors[f"{name}.zero"] = matrix.zero.contiguous()
        groups = json.dumps({name: m.group_size for name, m in matrices.items()})
        bits = json.dumps({name: m.code_bits for name, m in matrices.items()})
        more = {"groups": groups, "code_bits": bits, "seconds": repr(seconds)}
        if vectors:
            tensors |= {f"{name}.vector": t.contiguous() for name, t in vectors.items()}
            more["vectors"] = json.dumps(list(vectors))
        with atomic_file(self.path) as temporary:
            save_file(tensors, temporary, metadata=self._meta | more)
        self.seconds, self.vectors = seconds, dict(vectors or {})


def _packed(matrix: QuantMatrix) -> Tensor:
    if matrix.code_bits == 8:
        return matrix.codes.contiguous()
    return matrix.codes[:, ::2] | matrix.codes[:, 1::2] << 4


def _read(file: object, name: str, group: int, bits: int) -> QuantMatrix:
    get = file.get_tensor  # type: ignore[attr-defined]
    codes = get(f"{name}.codes")
    if bits == 4:
        codes = torch.stack([codes & 15, codes >> 4], dim=-1).view(codes.shape[0], -1)
    return QuantMatrix(codes, get(f"{name}.scale"), get(f"{name}.zero"), group, bits)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that replaces it at the end, or vanishes on an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
