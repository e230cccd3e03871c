"""Free memory from made-up counters: right, limited by a container, missing and unreadable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from river_core import machine
from river_core.machine import FreeMemory, free_gpu, free_memory, free_ram

MEMINFO = "MemTotal:       24683656 kB\nMemFree:         100 kB\nMemAvailable:   1000 kB\n"


@pytest.fixture(autouse=True)
def no_page_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without sysconf's counter, as macOS."""

    def sysconf(name: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", sysconf, raising=False)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _linux(root: Path, text: str = MEMINFO) -> None:
    _write(root / "proc" / "meminfo", text)


def test_available_memory_of_linux(tmp_path: Path) -> None:
    _linux(tmp_path)
    assert free_ram(tmp_path) == 1000 * 1024


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MemFree: 100 kB\n",
        "MemAvailable:\n",
        "MemAvailable: many kB\n",
        "MemAvailable: -5 kB\n",
        "MemAvailable: ²\n",
        "\ufffd\x00",
    ],
)
def test_counters_that_make_no_sense_are_unknown(tmp_path: Path, text: str) -> None:
    _linux(tmp_path, text)
    assert free_ram(tmp_path) is None


def test_no_counters_at_all_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_ram(tmp_path) is None
    monkeypatch.delattr(os, "sysconf")  # Windows
    assert free_ram(tmp_path) is None


def test_a_folder_where_the_counter_should_be(tmp_path: Path) -> None:
    (tmp_path / "proc" / "meminfo").mkdir(parents=True)
    assert free_ram(tmp_path) is None


@pytest.mark.parametrize(("pages", "expected"), [(7, 7 * 4096), (0, None), (-1, None)])
def test_free_pages_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int, expected: int | None
) -> None:
    counters = {"SC_AVPHYS_PAGES": pages, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", counters.__getitem__)
    assert free_ram(tmp_path) == expected


def _group(root: Path, version: int, limit: str, use: str, stat: str) -> None:
    where, *names, _ = machine._GROUPS[version - 1]  # listed from version 2 on
    for name, text in zip([*names, "memory.stat"], (limit, use, stat), strict=True):
        _write(root / where / name, text)


@pytest.mark.parametrize(("place", "pages"), [(1, "inactive_file"), (2, "total_inactive_file")])
def test_a_container_has_less(tmp_path: Path, place: int, pages: str) -> None:
    _linux(tmp_path)
    _group(tmp_path, place, "900000\n", "500000\n", f"anon 3\n{pages} 100000\n")
    assert free_ram(tmp_path) == 500_000
    _group(tmp_path, place, "400000\n", "500000\n", "")
    assert free_ram(tmp_path) == 0


@pytest.mark.parametrize("limit", ["max\n", "9223372036854771712\n", "", "x"])
def test_a_container_without_a_limit(tmp_path: Path, limit: str) -> None:
    _linux(tmp_path)
    _group(tmp_path, 1, limit, "500000\n", "")
    assert free_ram(tmp_path) == 1000 * 1024


def test_the_gpu_counts_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (5, 9))
    assert free_memory() == FreeMemory("GPU memory", 5)

    def broken() -> tuple[int, int]:
        raise RuntimeError("CUDA driver error")

    monkeypatch.setattr(torch.cuda, "mem_get_info", broken)
    assert free_gpu() is None
    assert free_memory() == FreeMemory("GPU memory", None)


def test_ram_counts_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine, "free_ram", lambda: 3)
    assert free_memory() == FreeMemory("RAM", 3)


def test_whether_something_fits() -> None:
    assert FreeMemory("RAM", 10).holds(10) is True
    assert FreeMemory("RAM", 10).holds(11) is False
    assert FreeMemory("RAM", None).holds(1) is None
