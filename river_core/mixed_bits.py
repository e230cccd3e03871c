"""Mixed precision: which matrices of a river get 8 bits, so that a budget of bits goes furthest.

And where their measured sensitivity lies. Knows numbers, not models: sensitivity.py measures,
banks.py makes the matrices.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import ModelUnavailable
from .quantize import atomic_file
from .settings import QuantSpec

FORMAT = "sensitivity-1"
Matrix = tuple[int, str]  # 1-based layer, fused linear


def choose(
    kl: Mapping[Matrix, float],
    sizes: Mapping[Matrix, int],
    budget: float,
    bits: tuple[float, float],
) -> frozenset[Matrix]:
    """The matrices to raise from the lower to the higher of `bits`, stored per weight.

    `kl` is what each costs in the lower, `sizes` its weights. By KL per stored bit, greatest first;
    one that no longer fits is passed over. The mean over all of `sizes` stays within `budget`. A
    greater budget never gives less KL in sum, but another choice may give more than this one.
    """
    low, high = bits
    room = math.floor((budget - low) / (high - low) * sum(sizes.values()) + 1e-6)
    chosen = []
    for matrix in sorted(sizes, key=lambda m: (-kl[m] / sizes[m], m)):
        if sizes[matrix] <= room:
            chosen.append(matrix)
            room -= sizes[matrix]
    return frozenset(chosen)


def mean_bits(
    chosen: Collection[Matrix], sizes: Mapping[Matrix, int], bits: tuple[float, float]
) -> float:
    """Stored bits per weight over all of `sizes` where the chosen ones are raised."""
    low, high = bits
    return low + (high - low) * sum(sizes[m] for m in chosen) / sum(sizes.values())


@dataclass(frozen=True)
class Sensitivity:
    """KL in nats at the output when only this matrix is in 4 bits; seconds it took to measure."""

    kl: Mapping[Matrix, float]
    seconds: float


class SensitivityFile:
    """Where the measured sensitivity of one river in 4 bits lies, beside its codes.

    Keyed by the 16-bit weights' `fingerprint`, the river's 4-bit `form` and the `text` it was
    measured on: every budget chooses by the same numbers. Writing is atomic.
    """

    def __init__(self, folder: Path, fingerprint: str, form: QuantSpec, text: str) -> None:
        name = f"{fingerprint[:20]}-{form.stem}-{text}.sensitivity.json"
        self.path = folder / name
        self._key = {"format": FORMAT, "weights": fingerprint, "river": form.label, "text": text}

    def load(self) -> Sensitivity | None:
        """What is stored, None where nothing is.

        Raises ModelUnavailable for a file that is damaged or of other weights or settings.
        """
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if {key: found[key] for key in self._key} != self._key:
                raise ValueError("it is of other weights or settings")
            kl = {_matrix(name): float(value) for name, value in found["kl"].items()}
            seconds = float(found["seconds"])
            if not all(math.isfinite(value) for value in (*kl.values(), seconds)):
                raise ValueError("a number is not finite")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ModelUnavailable(
                f"{self.path} is damaged ({error}); delete it and it will be measured again."
            ) from error
        return Sensitivity(kl, seconds)

    def save(self, found: Sensitivity) -> None:
        """Write it, replacing what is there in one step."""
        kl = {f"{layer}.{name}": value for (layer, name), value in found.kl.items()}
        held = self._key | {"seconds": found.seconds, "kl": kl}
        with atomic_file(self.path) as temporary:
            text = json.dumps(held, indent=1, allow_nan=False)
            temporary.write_text(text + "\n", encoding="utf-8", newline="\n")


def _matrix(name: str) -> Matrix:
    layer, _, fused = name.partition(".")
    return int(layer), fused
