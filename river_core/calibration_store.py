"""What `calibrate` measured, and its file beside the river's: which threshold costs how much.

Numbers and JSON only; how they are measured is calibrate.py's, what a run does with them
thresholds.py's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from .errors import RecordError
from .quantize import atomic_file
from .settings import QuantSpec

FORMAT = "calibration-2"  # counts up with the file's form and with the bundled text


@dataclass(frozen=True)
class Point:
    """Means at one threshold: exit layer over decode passes; match 0..1 and KL (nats) over all.

    `exits[l - 1]` is the number of decode passes that left after layer l; L, the last, is never.
    """

    threshold: float
    mean_exit_layer: float
    match: float
    kl: float
    exits: tuple[int, ...]

    @property
    def means(self) -> tuple[float, ...]:
        """The numbers other than the exits."""
        return self.threshold, self.mean_exit_layer, self.match, self.kl


@dataclass(frozen=True)
class Calibration:
    """One model's similarities and what its thresholds cost, teacher-forced on its own tokens.

    `quantiles[l - 1][n]` is the similarity of layer l below which `levels[n]` percent of the decode
    passes lie; `points` ascend by threshold, 1 last; `prefill` is the rule that they ran with;
    `passes` counts the compared ones; `measured` says with what (dtype, device, versions, text).
    """

    levels: tuple[float, ...]
    quantiles: tuple[tuple[float, ...], ...]
    points: tuple[Point, ...]
    prefill: str
    passes: int
    measured: Mapping[str, str]

    def __post_init__(self) -> None:
        rows = [self.levels, *self.quantiles, *(p.means for p in self.points)]
        if not all(_is_number(value) for row in rows for value in row):
            raise ValueError("a value is not a finite number")
        thresholds = [p.threshold for p in self.points]
        if not thresholds or thresholds != sorted(set(thresholds)) or thresholds[-1] != 1:
            raise ValueError("thresholds do not ascend to 1")
        if not self.quantiles or {len(row) for row in self.quantiles} != {len(self.levels)}:
            raise ValueError("the quantiles are not one row per layer")
        if not all(0 <= p.match <= 1 and p.kl >= 0 for p in self.points):
            raise ValueError("a match or KL is out of range")
        if not all(_are_counts(p.exits, len(self.quantiles)) for p in self.points):
            raise ValueError("the exits are not one count per layer")

    def smallest_threshold(self, target_match: float) -> float | None:
        """The smallest measured threshold below 1 whose match is `target_match` or more.

        None where there is none: only 1, at which no token leaves, is left then.
        """
        fine = [p.threshold for p in self.points if p.threshold < 1 and p.match >= target_match]
        return min(fine, default=None)

    def covering(self, threshold: float, share: float) -> int:
        """The smallest layer by which `share` of the passes had left, at `threshold`.

        Counted at the first measured threshold that is no lower.
        """
        exits = next(p.exits for p in self.points if p.threshold >= threshold)
        left = accumulate(exits)
        return 1 + next(n for n, count in enumerate(left) if count >= share * sum(exits))

    def scale(self) -> tuple[float, float]:
        """(lowest, step) of a slider over the thresholds that change this model's depth.

        Below `lowest` nearly every token leaves at its earliest: up to a tenth of the depth more.
        """
        depths = [p.mean_exit_layer for p in self.points]
        early = min(depths) + 0.1 * (max(depths) - min(depths))
        low = max(p.threshold for p in self.points if p.mean_exit_layer <= early)
        lowest = min(math.floor(low * 100) / 100, 0.95)
        return lowest, 0.0005 if lowest >= 0.9 else 0.001


class CalibrationFile:
    """Where one model's calibration lies, keyed by weights, river and entry layer.

    `fingerprint` identifies the 16-bit weights. Writing is atomic.
    """

    def __init__(self, folder: Path, fingerprint: str, spec: QuantSpec, entry_layer: int) -> None:
        name = f"{fingerprint[:20]}-{spec.stem}-from{entry_layer}.calibration.json"
        self.path = folder / name
        self._key = {
            "format": FORMAT,
            "weights": fingerprint,
            "river": spec.label,
            "entry_layer": entry_layer,
        }

    def load(self) -> Calibration | None:
        """What is stored, None where nothing is.

        Raises RecordError for a file that is damaged or of other weights or settings.
        """
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if {key: found.pop(key) for key in self._key} != self._key:
                raise RecordError(
                    f"{self.path} is a calibration of other weights or settings, or of another "
                    "version; run `python -m river_core calibrate` again."
                )
            return _calibration(found)
        except FileNotFoundError:
            return None
        except RecordError:
            raise
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise RecordError(
                f"{self.path} is damaged ({type(error).__name__}: {error}); run "
                "`python -m river_core calibrate` again."
            ) from error

    def save(self, calibration: Calibration) -> None:
        """Write it, replacing what is there in one step."""
        text = json.dumps(self._key | asdict(calibration), indent=1, allow_nan=False)
        with atomic_file(self.path) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8", newline="\n")


def _calibration(found: dict[str, Any]) -> Calibration:
    """From JSON's lists; raises ValueError, TypeError or KeyError where something does not fit."""
    return Calibration(
        levels=tuple(found.pop("levels")),
        quantiles=tuple(tuple(row) for row in found.pop("quantiles")),
        points=tuple(
            Point(**point | {"exits": tuple(point["exits"])}) for point in found.pop("points")
        ),
        prefill=str(found.pop("prefill")),
        passes=int(found.pop("passes")),
        measured={str(k): str(v) for k, v in found.pop("measured").items()},
        **found,
    )


def _are_counts(values: tuple[int, ...], layers: int) -> bool:
    """Whether these are counts of something, one per layer."""
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in values)
    return whole and len(values) == layers and sum(values) > 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
