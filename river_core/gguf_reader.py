"""Opening a GGUF file: header, metadata without the vocabulary, gguf's reader over the tensors.

Every way in which a file can be broken becomes one sentence. Knows nothing of what is made of it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ModelUnavailable, UnsupportedModel
from .gguf_architectures import GgufArchitecture, architecture_of

if TYPE_CHECKING:
    from gguf import GGUFReader


@dataclass(frozen=True)
class GgufFile:
    """An opened GGUF file.

    `metadata` holds its fields by their full names, without the vocabulary's arrays; `reader` is
    gguf's own, over memory-mapped tensors.
    """

    path: Path
    architecture: GgufArchitecture
    metadata: dict[str, Any]
    reader: GGUFReader

    def number(self, key: str) -> int:
        """The whole number stored under ``<architecture>.<key>``; UnsupportedModel without one."""
        full = f"{self.architecture.name}.{key}"
        value = self.metadata.get(full)
        if not isinstance(value, int) or isinstance(value, bool):
            raise UnsupportedModel(
                f"the GGUF file {self.path.name} does not state {full} as one number for all "
                "layers; choose another file of this model."
            )
        return value

    def array(self, key: str) -> list[Any] | None:
        """The list stored under a full name (the vocabulary's are not in `metadata`), or None."""
        field = self.reader.fields.get(key)
        return None if field is None else list(field.contents())


def open_gguf(path: Path) -> GgufFile:
    """Open a GGUF file of a supported architecture and read its header.

    Raises ModelUnavailable (missing, not a GGUF file, truncated) and UnsupportedModel (version,
    byte order, architecture).
    """
    check_magic(path)
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        metadata = {
            name: field.contents()
            for name, field in reader.fields.items()
            if field.types
            and not (field.types[0].name == "ARRAY" and name.startswith("tokenizer."))
        }
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError, TypeError) as error:
        raise ModelUnavailable(
            f"the GGUF file {path} is cut off or damaged; download it again."
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    return GgufFile(path, architecture_of(metadata, path.name), metadata, reader)


def _unreadable(path: Path, error: OSError) -> ModelUnavailable:
    return ModelUnavailable(
        f"the GGUF file {path} cannot be read ({error.strerror or type(error).__name__}); check "
        "the path and its permissions."
    )


def check_magic(path: Path) -> None:
    """Raise what `open_gguf` raises for a file whose first eight bytes already rule it out."""
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except FileNotFoundError:
        raise ModelUnavailable(f"the GGUF file {path} does not exist; check the path.") from None
    except OSError as error:
        raise _unreadable(path, error) from error
    if head[:4] != b"GGUF"[: len(head[:4])] or not head:
        raise ModelUnavailable(
            f"{path} is not a GGUF file (it does not begin with 'GGUF'); give another file."
        )
    if len(head) < 8:
        raise ModelUnavailable(f"the GGUF file {path} is cut off or damaged; download it again.")
    version = struct.unpack("<I", head[4:])[0]
    if version not in (2, 3):
        raise UnsupportedModel(
            f"the GGUF file {path.name} is of a version or byte order that is not supported; use "
            "a little-endian file of version 2 or 3."
        )
