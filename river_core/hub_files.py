"""Models on the Hugging Face hub: what is cached, what the hub says, and downloading to its cache.

The only file that talks to the hub. It takes safetensors, JSON and tokenizer files and never code
or pickles; each failure becomes one sentence. Knows nothing of River's own names and cache.
"""

from __future__ import annotations

import fnmatch
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import ModelUnavailable
from .families import check_family
from .folders import folder_problem
from .model_store import Progress

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

T = TypeVar("T")
_ALLOWED = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
_IGNORED = ["*/*", "consolidated*"]  # subfolders (other formats), a second copy of the weights
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_POLL_SECONDS = 0.25
_FULL_HASH = re.compile(r"[0-9a-f]{40}")


class HubSilent(ModelUnavailable):
    """The hub did not answer (no network, offline mode, or too slow), and nothing is cached."""


def cached(repo: str, revision: str | None = None) -> Path | None:
    """The complete snapshot of `repo` in the hub's cache, without any network; else None."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError

    try:
        found = snapshot_download(
            repo,
            revision=revision,
            local_files_only=True,
            allow_patterns=_ALLOWED,
            ignore_patterns=_IGNORED,
        )
    except (EntryNotFoundError, HFValidationError, OSError, ValueError):
        return None
    folder = Path(found)
    complete = folder_problem(folder) is None and any(
        (folder / name).is_file() for name in _TOKENIZERS
    )
    return folder if complete else None


def fetch(
    repo: str, revision: str | None, patience: float, progress: Progress | None = None
) -> Path:
    """Return the snapshot folder of `repo` at `revision` (None: main), downloading what is missing.

    The hub has `patience` seconds in all to say what the repository holds; when it stays silent,
    the cached snapshot serves. Raises HubSilent when there is none, ModelUnavailable with its own
    sentence for each refusal, UnsupportedModel before anything large is downloaded.
    """
    if revision and _FULL_HASH.fullmatch(revision):
        folder = cached(repo, revision)
        if folder is not None:
            return folder
    try:
        info = _ask(repo, revision, patience)
    except HubSilent:
        folder = cached(repo, revision)
        if folder is None:
            raise
        return folder
    _check_contents(repo, info)
    return _download(repo, revision, info, progress)


def _ask(repo: str, revision: str | None, patience: float) -> ModelInfo:
    """What the hub says of `repo`: one request without retries, at most `patience` seconds."""
    from huggingface_hub import HfApi

    def request() -> ModelInfo:
        api = HfApi()
        return api.model_info(repo, revision=revision, files_metadata=True, timeout=patience)

    return _guarded(request, repo, revision, limit=patience)


def _check_contents(repo: str, info: ModelInfo) -> None:
    names = {sibling.rfilename for sibling in info.siblings or []}
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        raise ModelUnavailable(
            f"{repo} on the Hugging Face hub holds no config.json with safetensors weights; choose "
            "another repository of this model, or download its .gguf file and give the path."
        )
    config: dict[str, Any] = getattr(info, "config", None) or {}
    if "model_type" in config:
        check_family(config)


def _download(repo: str, revision: str | None, info: ModelInfo, progress: Progress | None) -> Path:
    from huggingface_hub import constants, snapshot_download

    total = sum(file.size or 0 for file in info.siblings or [] if _wanted(file.rfilename))
    blobs = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}" / "blobs"
    before = _size(blobs)

    def tick() -> None:
        if progress:
            done = min(1.0, (_size(blobs) - before) / total) if total else None
            progress(f"downloading {repo}, {total / 1e6:.0f} MB", done)

    def request() -> str:
        return snapshot_download(
            repo, revision=revision, allow_patterns=_ALLOWED, ignore_patterns=_IGNORED
        )

    with _without_bars():
        folder = Path(_guarded(request, repo, revision, tick=tick))
    problem = folder_problem(folder)
    if problem is not None:
        raise ModelUnavailable(
            f"{repo} on the Hugging Face hub is incomplete ({problem}); choose another repository."
        )
    return folder


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep the hub library's own progress bars off the terminal inside the block."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    shown = not are_progress_bars_disabled()
    if shown:
        disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            enable_progress_bars()


def _wanted(name: str) -> bool:
    """Whether `snapshot_download` takes this file under the two pattern lists."""
    allowed = any(fnmatch.fnmatch(name, pattern) for pattern in _ALLOWED)
    return allowed and not any(fnmatch.fnmatch(name, pattern) for pattern in _IGNORED)


def _size(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except OSError:  # renamed meanwhile: its download is complete
            continue
    return total


def _guarded(
    request: Callable[[], T],
    repo: str,
    revision: str | None,
    *,
    limit: float | None = None,
    tick: Callable[[], None] | None = None,
) -> T:
    """Run `request` in a thread of its own, so that `limit` seconds hold whatever it waits for.

    `tick` is called at least twice a second. Failures come out as ModelUnavailable.
    """
    from huggingface_hub import errors

    web_error: type[Exception] = getattr(errors, "HTTPError", OSError)  # httpx's own base class
    result: list[T] = []
    failure: list[Exception] = []

    def work() -> None:
        try:
            result.append(request())
        except (web_error, OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
            failure.append(error)

    thread = threading.Thread(target=work, daemon=True)
    started = time.monotonic()
    thread.start()
    while thread.is_alive():
        if tick:
            tick()
        left = _POLL_SECONDS if limit is None else limit - (time.monotonic() - started)
        if left <= 0:
            raise _silent(repo)
        thread.join(min(left, _POLL_SECONDS))
    if failure:
        raise _explain(failure[0], repo, revision) from failure[0]
    if not result:
        raise _silent(repo)
    return result[0]


def _silent(repo: str) -> HubSilent:
    return HubSilent(
        f"{repo} is not downloaded yet and the Hugging Face hub does not answer; check the network "
        "(and HF_HUB_OFFLINE), or use smollm2-135m-packaged."
    )


def _explain(error: Exception, repo: str, revision: str | None) -> ModelUnavailable:
    """One sentence with the next step for each way the hub can refuse."""
    from huggingface_hub import errors as hub

    if isinstance(error, hub.GatedRepoError):
        return ModelUnavailable(
            f"{repo} is gated: accept its terms on its page of the Hugging Face hub, then log in "
            "with 'hf auth login' or set HF_TOKEN."
        )
    if isinstance(error, hub.RepositoryNotFoundError | hub.HFValidationError):
        return ModelUnavailable(
            f"{repo} was not found on the Hugging Face hub and is no folder here; check the "
            "spelling, and log in with 'hf auth login' if it is private."
        )
    if isinstance(error, hub.RevisionNotFoundError):
        return ModelUnavailable(
            f"{repo} has no revision {revision!r} on the Hugging Face hub; use one of its "
            "branches, tags or commits, or leave it out."
        )
    if isinstance(error, hub.DisabledRepoError):
        return ModelUnavailable(
            f"{repo} was disabled on the Hugging Face hub; choose another model."
        )
    if isinstance(error, hub.HfHubHTTPError):
        return _explain_status(error.response.status_code, repo)
    if isinstance(error, OSError) and error.strerror and error.filename:
        return ModelUnavailable(
            f"{repo} cannot be stored in the Hugging Face cache ({error.strerror}); free some "
            "space or set HF_HOME to another folder."
        )
    return _silent(repo)


def _explain_status(status: int, repo: str) -> ModelUnavailable:
    if status == 401:
        return ModelUnavailable(
            f"the Hugging Face hub does not accept the access token that was sent for {repo}; log "
            "in again with 'hf auth login' or correct HF_TOKEN."
        )
    if status == 403:
        return ModelUnavailable(
            f"the access token may not read {repo} on the Hugging Face hub; use a token with read "
            "permission for it."
        )
    return ModelUnavailable(
        f"the Hugging Face hub answered with error {status} for {repo}; try again later."
    )
