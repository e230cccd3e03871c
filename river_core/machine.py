"""How much memory this machine has free now. Reads the system's own counters; knows no models.

A counter that is missing or makes no sense counts as unknown, never as zero.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

# A container's limit, its use, and in its statistics the file pages that it can give back: control
# groups of version 2, then of version 1. Only the container's own group, at the mount's root.
_GROUPS = (
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


@dataclass(frozen=True)
class FreeMemory:
    """`kind` is "RAM" or "GPU memory"; `size` in bytes, None where it cannot be found out."""

    kind: str
    size: int | None

    def holds(self, needed: int) -> bool | None:
        """Whether `needed` bytes fit; None where that is unknown."""
        return None if self.size is None else needed <= self.size


def free_memory() -> FreeMemory:
    """What `load` with device "auto" could use: the CUDA GPU's memory, else RAM."""
    import torch

    if torch.cuda.is_available():
        return FreeMemory("GPU memory", free_gpu())
    return FreeMemory("RAM", free_ram())


def free_gpu() -> int | None:
    """Free bytes of the current CUDA device; None where the driver does not say."""
    import torch

    try:
        return int(torch.cuda.mem_get_info()[0])
    except (RuntimeError, AssertionError):  # the second: a torch without CUDA
        return None


def peak_memory(device: str) -> int | None:
    """Most bytes in use so far: torch's own on "cuda", else this process's; None where unknown."""
    if device == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def free_ram(root: Path = Path("/")) -> int | None:
    """Free bytes of RAM, or less where a container may use less; None where unknown.

    Linux: MemAvailable, which counts caches that can be given back. Elsewhere: free pages, where
    the system has that counter. `root` is where /proc and /sys lie.
    """
    whole = _meminfo(root / "proc" / "meminfo")
    if whole is None:
        whole = _free_pages()
    limits = (_group_room(root / where, *names) for where, *names in _GROUPS)
    return min((size for size in (whole, *limits) if size is not None), default=None)


def _meminfo(path: Path) -> int | None:
    """MemAvailable in bytes."""
    size = _field(path, "MemAvailable:")
    return None if size is None else size * 1024


def _field(path: Path, name: str) -> int | None:
    """The whole number after `name` at a line's start; None where there is none."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return next((_whole(line.split()[1]) for line in lines if line.split()[:1] == [name]), None)
    except (OSError, ValueError, IndexError):
        return None


def _whole(text: str) -> int:
    """A whole number of bytes or kilobytes; ValueError for anything else."""
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def _group_room(folder: Path, limit: str, use: str, reclaimable: str) -> int | None:
    """Bytes left to a control group; None without a limit."""
    try:
        bound = _whole((folder / limit).read_text(encoding="ascii").strip())
        used = _whole((folder / use).read_text(encoding="ascii").strip())
    except (OSError, ValueError):  # a limit of "max", too
        return None
    return max(0, bound - used + (_field(folder / "memory.stat", reclaimable) or 0))


def _free_pages() -> int | None:
    try:
        size = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf, macOS no such counter
        return None
    return size if size > 0 else None
