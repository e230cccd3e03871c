"""River: token-level early exit with a KV-shared, 4-bit exit river, on real models.

The public names, imported when first used: reading records or views needs no torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .version import VERSION as __version__

if TYPE_CHECKING:
    from .calibrate import calibrate
    from .calibration_store import Calibration
    from .compare import Comparison, compare
    from .control import Control
    from .decode import generate, stream, teacher_forced
    from .errors import RiverError
    from .kv_error import kv_error
    from .loading import load
    from .policies import POLICIES
    from .records import CacheUpdate, PromptRecord, RunRecord, RunSummary, TokenRecord
    from .safe_exits import earliest_safe_exits
    from .settings import DecodeSettings, QuantSpec

_HOME = {
    "load": "loading",
    "stream": "decode",
    "generate": "decode",
    "teacher_forced": "decode",
    "Control": "control",
    "calibrate": "calibrate",
    "Calibration": "calibration_store",
    "compare": "compare",
    "Comparison": "compare",
    "kv_error": "kv_error",
    "earliest_safe_exits": "safe_exits",
    "POLICIES": "policies",
    "QuantSpec": "settings",
    "DecodeSettings": "settings",
    "RiverError": "errors",
    "RunRecord": "records",
    "PromptRecord": "records",
    "TokenRecord": "records",
    "CacheUpdate": "records",
    "RunSummary": "records",
}

__all__ = [
    "POLICIES",
    "CacheUpdate",
    "Calibration",
    "Comparison",
    "Control",
    "DecodeSettings",
    "PromptRecord",
    "QuantSpec",
    "RiverError",
    "RunRecord",
    "RunSummary",
    "TokenRecord",
    "__version__",
    "calibrate",
    "compare",
    "earliest_safe_exits",
    "generate",
    "kv_error",
    "load",
    "stream",
    "teacher_forced",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return list(__all__)


class _Package(ModuleType):
    """Keeps a public name for what it stands for where a file is called the same (`compare`).

    Importing `river_core.compare` would otherwise put the module in the function's place.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
