"""Folders that are either complete or absent, however a build ends."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from river_core.errors import ModelUnavailable
from river_core.model_store import MARKER, publish, read_marker


def _fill(out: Path) -> dict[str, object]:
    (out / "weights").write_bytes(b"12345")
    return {"stored": "F16"}


def _never(out: Path) -> dict[str, object]:
    raise AssertionError("built again")


def test_a_complete_folder_is_not_built_again(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "model"
    assert read_marker(folder, "k") is None
    assert publish(folder, "k", _fill) == {"stored": "F16"}
    assert publish(folder, "k", _never) == {"stored": "F16"}
    assert sorted(p.name for p in folder.iterdir()) == [MARKER, "weights"]


def test_another_key_replaces_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    publish(folder, "old", _fill)
    (folder / "stray").write_text("x")
    publish(folder, "new", _fill)
    assert not (folder / "stray").exists()
    assert read_marker(folder, "old") is None


@pytest.mark.parametrize("damage", ["cut", "gone", "marker", "marker type"])
def test_a_damaged_folder_is_built_again(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "model"
    publish(folder, "k", _fill)
    if damage == "cut":
        (folder / "weights").write_bytes(b"123")
    elif damage == "gone":
        (folder / "weights").unlink()
    else:
        (folder / MARKER).write_text('{"key"' if damage == "marker" else "[1]")
    assert read_marker(folder, "k") is None
    publish(folder, "k", _fill)
    assert (folder / "weights").read_bytes() == b"12345"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_build_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def fail(out: Path) -> dict[str, object]:
        (out / "weights").write_bytes(b"12")
        raise error

    with pytest.raises(error):
        publish(tmp_path / "model", "k", fail)
    assert [p.name for p in tmp_path.iterdir()] in ([], ["model.lock"])
    publish(tmp_path / "model", "k", _fill)


def test_leftovers_of_a_killed_build_are_removed(tmp_path: Path) -> None:
    left = tmp_path / ".model.building-12345"
    left.mkdir()
    (left / "weights").write_bytes(b"12")
    publish(tmp_path / "model", "k", _fill)
    assert not left.exists()


def test_two_at_once_build_once(tmp_path: Path) -> None:
    builds: list[int] = []
    said: list[str] = []

    def slow(out: Path) -> dict[str, object]:
        builds.append(1)
        time.sleep(1.0)
        return _fill(out)

    def run() -> None:
        publish(tmp_path / "model", "k", slow, lambda text, fraction: said.append(text))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builds == [1]
    assert said and all("another process" in text for text in said)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelUnavailable, match="RIVER_CACHE"):
        publish(tmp_path / "file" / "model", "k", _fill)
