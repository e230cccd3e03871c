"""Where River keeps what it can make again: compiled kernels, calibrations, chosen kernels.

Only answers with a path; makes no folder and reads no file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_root() -> Path:
    """The user's cache folder for River; it may not exist yet.

    $RIVER_CACHE itself when set, else %LOCALAPPDATA%\\river on Windows, else $XDG_CACHE_HOME/river,
    else ~/.cache/river. A relative $XDG_CACHE_HOME is ignored, as its specification asks.
    """
    own = os.environ.get("RIVER_CACHE")
    if own:
        return Path(own).expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "river"
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "river"
