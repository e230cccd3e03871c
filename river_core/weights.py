"""The tensors of a folder in hub layout, read one by one from its safetensors shards.

Every tensor is checked against the size that the configuration asks for; what is missing or left
over is an error. FP8 weights come out multiplied by their scales. A file is mapped only while one
of its tensors is alive, since the pages that were read count as the process's memory. Knows nothing
of what the tensors are for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .errors import ModelUnavailable

SCALE = "_scale_inv"  # behind the name of an FP8 matrix


@dataclass
class Weights:
    """Reads tensors of `folder` by name; raises ModelUnavailable for damaged files."""

    folder: Path

    def __post_init__(self) -> None:
        self._files: dict[str, Path] = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            self._files |= dict.fromkeys(_names(path), path)

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor `name`, which must have `shape`; ModelUnavailable otherwise."""
        tensor = self._checked(name, shape)
        return self._scaled(name, tensor) if tensor.dtype.itemsize == 1 else tensor

    def _checked(self, name: str, shape: tuple[int, ...], *, integers: bool = False) -> Tensor:
        """The tensor `name` as it is stored."""
        if name not in self._files:
            raise ModelUnavailable(
                f"the weights in {self.folder} lack {name}; download the model again."
            )
        tensor = _read(self._files[name], name)
        if tuple(tensor.shape) != shape or tensor.dtype.is_floating_point == integers:
            raise ModelUnavailable(
                f"{name} in {self.folder} is {tensor.dtype} {list(tensor.shape)}, but the "
                f"configuration asks for {list(shape)}; the folder mixes two models."
            )
        return tensor

    def integers(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor `name` of whole numbers, which must have `shape`; else ModelUnavailable."""
        return self._checked(name, shape, integers=True)

    def _scaled(self, name: str, tensor: Tensor) -> Tensor:
        """An FP8 matrix [N, K] in bf16, times its scale: one number or a grid of equal blocks.

        The layout of transformers' fine-grained FP8 (Ministral 3, DeepSeek).
        """
        scale_name = name + SCALE
        if scale_name not in self._files:
            raise ModelUnavailable(
                f"{name} in {self.folder} is stored as {tensor.dtype}, but its scale {scale_name} "
                "is missing; download the model again."
            )
        scale = _read(self._files[scale_name], scale_name).float()
        scale = scale.reshape(1, 1) if scale.numel() == 1 else scale
        if scale.dim() != 2 or any(n % s for n, s in zip(tensor.shape, scale.shape, strict=True)):
            raise ModelUnavailable(
                f"{scale_name} in {self.folder} has the shape {list(scale.shape)}, which does not "
                f"divide that of its matrix, {list(tensor.shape)}; download the model again."
            )
        blocks = [n // s for n, s in zip(tensor.shape, scale.shape, strict=True)]
        full = scale.repeat_interleave(blocks[0], 0).repeat_interleave(blocks[1], 1)
        whole: Tensor = tensor.float() * full
        return whole.bfloat16()

    def names(self) -> Collection[str]:
        """The names of all tensors that are stored."""
        return self._files.keys()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def refuse_unexpected(self, expected: set[str], beside: tuple[str, ...] = ()) -> None:
        """Raise ModelUnavailable for tensors that no part of the model uses.

        Scales of expected ones, buffers of old checkpoints and names that begin with one of
        `beside` are none.
        """
        scales = {name + SCALE for name in expected}
        scales |= {name.removesuffix("weight") + "activation_scale" for name in expected}
        extra = sorted(set(self._files) - expected - scales)
        extra = [n for n in extra if not n.endswith("rotary_emb.inv_freq")]
        extra = [n for n in extra if not n.startswith(beside)] if beside else extra
        if extra:
            raise ModelUnavailable(
                f"the weights in {self.folder} hold {len(extra)} tensors that this model type does "
                f"not use ({extra[0]}); its config.json belongs to another model."
            )


def _names(path: Path) -> list[str]:
    """The names of a file's tensors."""
    with _opened(path) as file:
        return list(file.keys())


def _read(path: Path, name: str) -> Tensor:
    """One tensor; the file stays mapped for as long as it is alive."""
    with _opened(path) as file:
        tensor: Tensor = file.get_tensor(name)
        return tensor


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file, open for reading; ModelUnavailable where it is damaged or gone."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError as error:
        raise ModelUnavailable(f"{path} is gone; download the model again.") from error
    except (OSError, SafetensorError) as error:
        raise ModelUnavailable(f"{path} is damaged ({error}); download the model again.") from error
