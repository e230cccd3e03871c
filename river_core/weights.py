"""The tensors of a folder in hub layout, read one by one from its safetensors shards.

Every tensor is checked against the size that the configuration asks for; what is missing or left
over is an error. Knows nothing of what the tensors are for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .errors import ModelUnavailable


@dataclass
class Weights:
    """Reads tensors of `folder` by name; raises ModelUnavailable for damaged files."""

    folder: Path

    def __post_init__(self) -> None:
        from safetensors import SafetensorError, safe_open

        self._files: dict[str, Any] = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                file = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ModelUnavailable(
                    f"{path} is damaged ({error}); download the model again."
                ) from error
            self._files |= dict.fromkeys(file.keys(), file)

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor `name`, which must have `shape`; ModelUnavailable otherwise."""
        if name not in self._files:
            raise ModelUnavailable(
                f"the weights in {self.folder} lack {name}; download the model again."
            )
        tensor: Tensor = self._files[name].get_tensor(name)
        if tuple(tensor.shape) != shape or not tensor.dtype.is_floating_point:
            raise ModelUnavailable(
                f"{name} in {self.folder} is {tensor.dtype} {list(tensor.shape)}, but the "
                f"configuration asks for {list(shape)}; the folder mixes two models."
            )
        return tensor

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def refuse_unexpected(self, expected: set[str]) -> None:
        """Raise ModelUnavailable for tensors that no part of the model uses."""
        extra = sorted(set(self._files) - expected)
        extra = [name for name in extra if not name.endswith("rotary_emb.inv_freq")]
        if extra:
            raise ModelUnavailable(
                f"the weights in {self.folder} hold {len(extra)} tensors that this model type does "
                f"not use ({extra[0]}); its config.json belongs to another model."
            )
