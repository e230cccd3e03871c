"""From a model's name to a folder in hub layout, and a sentence on where its weights come from.

Knows nothing of configurations, tokenizers or our engine; loading.py reads the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from . import gguf_files, hub_files, packaged
from .errors import ModelUnavailable
from .folders import folder_problem
from .model_store import MARKER, Progress, read_marker

PACKAGED = "smollm2-135m-packaged"
DEFAULT = "smollm2-135m"
_DEFAULT_REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
_DEFAULT_REPO_BYTES = 273_000_000  # roughly
_DEFAULT_PATIENCE = 3.0  # seconds until the packaged weights are taken instead
_PATIENCE = 10.0  # seconds for the first answer about any other repository
_HUB_ID = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[\w./+-]+))?")
_PATH_START = ("/", "./", "../", "~", "\\", ".\\", "..\\")


@dataclass(frozen=True)
class Source:
    """A model that can be loaded.

    `folder` is in hub layout (config.json, tokenizer files, *.safetensors); `origin` says for users
    where the weights come from and how they were stored; `revision` is the hub's commit or the
    package's version; `packaged` tells the packaged weights.
    """

    name: str
    folder: Path
    origin: str
    revision: str | None = None
    packaged: bool = False


@dataclass(frozen=True)
class KnownModel:
    """A name that `resolve` knows; `size` in bytes, on disk or to be downloaded.

    `folder` is its folder in hub layout, None where it is not cached.
    """

    name: str
    description: str
    cached: bool
    size: int
    folder: Path | None = None


def known_models() -> list[KnownModel]:
    """The named models and whether they can be loaded without a network."""
    hub = hub_files.cached(_DEFAULT_REPO)
    found = [
        KnownModel(
            DEFAULT,
            f"{_DEFAULT_REPO} from the Hugging Face hub, or the packaged weights without it",
            hub is not None,
            _DEFAULT_REPO_BYTES if hub is None else folder_bytes(hub),
            hub,
        ),
    ]
    for model in packaged.MODELS.values():
        folder = packaged.packaged_folder(model) if packaged.is_ready(model) else None
        size = model.download_bytes if folder is None else folder_bytes(folder)
        text, here = model.description, folder is not None
        if model.licence is not None and not here:
            text += f"; under the {model.licence.name}"
        found.append(KnownModel(model.name, text, here, size, folder))
    return found


def local_folder(name: str) -> Path | None:
    """Where the model called `name` lies already, without any network; None where it does not.

    `name` as for `resolve`, a .gguf file apart: that one is converted first, so it raises
    ModelUnavailable. A folder counts even if it holds no weights.
    """
    if name.lower().endswith(".gguf"):
        raise ModelUnavailable(
            f"{name} is a GGUF file; convert it with 'python -m river_core fetch {name}', then "
            "give the folder that 'python -m river_core models' lists for it."
        )
    if name == DEFAULT:
        return hub_files.cached(_DEFAULT_REPO) or local_folder(PACKAGED)
    if name in packaged.MODELS:
        model = packaged.MODELS[name]
        return packaged.packaged_folder(model) if packaged.is_ready(model) else None
    path = Path(name).expanduser()
    if name and path.is_dir():
        return path
    match = _HUB_ID.fullmatch(name)
    return None if match is None else hub_files.cached(match["repo"], match["revision"])


def cached_snapshots() -> Iterator[tuple[str, Path]]:
    """Name and folder of every complete snapshot in the Hugging Face cache, without any network.

    The name is what `resolve` takes: owner/name for the revision that is main there, else with
    @revision. The repository behind smollm2-135m is left out.
    """
    from huggingface_hub import constants

    for store in sorted(Path(constants.HF_HUB_CACHE).glob("models--*--*")):
        repo = store.name.removeprefix("models--").replace("--", "/", 1)
        main = hub_files.cached(repo)
        for snapshot in sorted((store / "snapshots").glob("*")):
            folder = hub_files.cached(repo, snapshot.name)
            if folder is not None and not (repo == _DEFAULT_REPO and folder == main):
                yield (repo if folder == main else f"{repo}@{snapshot.name}"), folder


def converted_models() -> Iterator[tuple[Path, str]]:
    """Folder of every complete converted model in River's cache, and how it was stored.

    Packaged models are left out.
    """
    for marker in sorted(packaged.packaged_folder().parent.glob(f"*/{MARKER}")):
        facts = read_marker(marker.parent, None)
        if facts is not None and marker.parent.name not in packaged.MODELS:
            yield marker.parent, str(facts.get("stored", "unknown"))


def folder_bytes(folder: Path) -> int:
    """Bytes of the files that lie in `folder` itself."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def resolve(name: str, *, progress: Progress | None = None, accept_licence: bool = False) -> Source:
    """Find the model called `name`, downloading or converting it where needed.

    `name` is a known name, a folder in hub layout, a .gguf file, or a hub id ``owner/name`` or
    ``owner/name@revision``. `progress(text, fraction or None)` is called while work goes on;
    `accept_licence` says that a person has accepted the terms of a packaged model that has some.
    Raises ModelUnavailable (cannot be had) or UnsupportedModel (cannot be run).
    """
    if name in packaged.MODELS:
        return _packaged(name, packaged.MODELS[name], progress, accept_licence)
    if name == DEFAULT:
        return _default(name, progress)
    path = Path(name).expanduser()
    if name.lower().endswith(".gguf"):
        return _gguf(name, path, progress)
    if name and path.is_dir():
        return _folder(name, path)
    if path.is_file():
        raise ModelUnavailable(f"{name} is a single file; give the folder that holds the model.")
    base = name.partition("@")[0]
    if base.startswith(_PATH_START) or "\\" in base or base.count("/") > 1:
        raise ModelUnavailable(f"the folder {name} does not exist; check the path.")
    match = _HUB_ID.fullmatch(name)
    if match is None:
        raise ModelUnavailable(
            f"unknown model name {name!r}; use {DEFAULT}, {', '.join(packaged.MODELS)}, a hub id "
            "such as owner/name or owner/name@revision, a folder in Hugging Face layout, or a path "
            "to a .gguf file."
        )
    folder = hub_files.fetch(match["repo"], match["revision"], _PATIENCE, progress)
    return _from_hub(name, match["repo"], folder)


def _packaged(
    name: str, model: packaged.PackagedModel, progress: Progress | None, accepted: bool
) -> Source:
    folder = packaged.ensure(model, progress, accepted=accepted)
    return Source(name, folder, model.origin, model.version, packaged=True)


def _default(name: str, progress: Progress | None) -> Source:
    folder = hub_files.cached(_DEFAULT_REPO)
    if folder is None:
        if progress:
            progress("asking the Hugging Face hub", None)
        try:
            folder = hub_files.fetch(_DEFAULT_REPO, None, _DEFAULT_PATIENCE, progress)
        except hub_files.HubSilent:
            return _instead(name, "the Hugging Face hub did not answer", progress)
        except ModelUnavailable:
            return _instead(name, "the download from the Hugging Face hub failed", progress)
    return _from_hub(name, _DEFAULT_REPO, folder)


def _instead(name: str, reason: str, progress: Progress | None) -> Source:
    source = _packaged(name, packaged.SMOLLM2, progress, accepted=False)
    return replace(source, origin=f"{source.origin}; used because {reason}")


def _from_hub(name: str, repo: str, folder: Path) -> Source:
    revision = folder.name
    origin = f"Hugging Face hub, {repo}, revision {revision[:12]}"
    return Source(name, folder, origin, revision)


def _folder(name: str, path: Path) -> Source:
    problem = folder_problem(path)
    if problem is not None:
        raise ModelUnavailable(
            f"the folder {name} is not a model in Hugging Face layout: {problem}; give a folder "
            "with config.json, tokenizer files and safetensors."
        )
    folder = path.resolve()
    return Source(folder.name, folder, f"folder {folder.name}")  # records tell no paths


def _gguf(name: str, path: Path, progress: Progress | None) -> Source:
    if path.is_dir():
        raise ModelUnavailable(f"{name} is a folder; give the path of one .gguf file in it.")
    folder, facts = gguf_files.convert_cached(path, progress)
    return Source(path.name, folder, f"GGUF file {path.name}, stored as {facts['stored']}")
