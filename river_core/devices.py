"""Which device computes, its name, and waiting for it: the place that asks torch for these."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from .errors import KernelUnavailable, SettingsError


def find_device(wanted: str) -> torch.device:
    """The device of a name: "auto" is a CUDA GPU where torch sees one, else the CPU.

    Raises KernelUnavailable for a device that is not here, SettingsError for an unknown name.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise KernelUnavailable(
            f"device {wanted!r} was asked for, but torch sees no CUDA GPU; use device='cpu'."
        )
    if wanted.startswith("mps") and not torch.backends.mps.is_available():
        raise KernelUnavailable(
            f"device {wanted!r} was asked for, but torch sees no Apple GPU; use device='cpu'."
        )
    try:
        return torch.device(wanted)
    except RuntimeError as error:
        raise SettingsError(f"device {wanted!r} is not one torch knows; use 'cpu'.") from error


def settle(device: torch.device) -> None:
    """Wait until the device has done everything asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def processor(device: torch.device) -> str:
    """A short name of the processor that kernels run on, for keys and for the page."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    if device.type == "mps":
        return f"{name} (Apple GPU)"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"


def threads() -> int:
    """Threads that torch's kernels on the CPU use now."""
    return torch.get_num_threads()


def usable_cores() -> int:
    """Cores, as the system counts them, that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
