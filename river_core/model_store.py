"""Folders in the cache that are either complete or absent, however a run ended.

A folder is built under a temporary name beside its final place, gets its marker last and is moved
there in one step; a lock lets one process build while others wait. Knows nothing of models.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import ModelUnavailable

Progress = Callable[[str, float | None], None]  # text for a person, fraction 0..1 or None
MARKER = "river.json"
_WAIT_SECONDS = 0.4


def read_marker(folder: Path, key: str | None) -> dict[str, object] | None:
    """The facts stored with a complete `folder` built for `key`, else None. Takes milliseconds.

    Complete means: the marker names this key (None: any), and every file it lists has the listed
    size in bytes.
    """
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        if key is not None and marker["key"] != key:
            return None
        for name, size in marker["files"].items():
            if (folder / name).stat().st_size != size:
                return None
        facts = dict(marker["facts"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return facts


def publish(
    folder: Path,
    key: str,
    build: Callable[[Path], dict[str, object]],
    progress: Progress | None = None,
) -> dict[str, object]:
    """Return the facts of the complete `folder` for `key`, building it first where needed.

    `build(temporary)` fills an empty folder beside the final one and returns the facts to keep. An
    older folder of another key is replaced. What an interrupted run left behind is removed.
    Raises ModelUnavailable when the cache cannot be written; errors of `build` pass through.
    """
    facts = read_marker(folder, key)
    if facts is not None:
        return facts
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder, progress):
            facts = read_marker(folder, key)  # another process may have built it meanwhile
            return facts if facts is not None else _build(folder, key, build)
    except OSError as error:
        raise ModelUnavailable(
            f"the cache folder {folder.parent} cannot be written "
            f"({error.strerror or type(error).__name__}); free some space there or set RIVER_CACHE "
            "to another folder."
        ) from error


class _locked:
    """Hold the lock file beside `folder`, saying so while another process has it."""

    def __init__(self, folder: Path, progress: Progress | None) -> None:
        self.lock = FileLock(folder.with_name(f"{folder.name}.lock"))
        self.progress = progress

    def __enter__(self) -> None:
        while True:
            try:
                self.lock.acquire(timeout=_WAIT_SECONDS)
                return
            except Timeout:
                if self.progress:
                    self.progress("waiting for another process that prepares this model", None)

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def _build(folder: Path, key: str, build: Callable[[Path], dict[str, object]]) -> dict[str, object]:
    prefix = f".{folder.name}.building-"
    temporary = folder.with_name(f"{prefix}{os.getpid()}")
    try:
        _remove_leftovers(folder.parent, prefix)
        temporary.mkdir()
        facts = build(temporary)
        _write_marker(temporary, key, facts)
        if folder.exists():
            os.replace(folder, folder.with_name(f"{prefix}replaced"))
        os.replace(temporary, folder)
    finally:
        _remove_leftovers(folder.parent, prefix)
    return facts


def _remove_leftovers(parent: Path, prefix: str) -> None:
    for leftover in parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _write_marker(folder: Path, key: str, facts: dict[str, object]) -> None:
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    content = json.dumps({"key": key, "files": files, "facts": facts}, indent=1)
    (folder / MARKER).write_text(content, encoding="utf-8")
