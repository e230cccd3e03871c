"""The engine's words on a page in another language: known ones translated, others marked."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from app.decoding import decode_lent
from app.views import english, wording
from app.views.english import CLOSE, OPEN, Refused, known, marked, named, told, with_elements
from app.views.policies import policy_sentence
from river_core.errors import SettingsError
from river_core.packaged import MODELS
from river_core.policies import POLICIES

ROOT = Path(__file__).resolve().parents[2]
OTHERS = [code for code in wording.languages() if code != "en"]
TOLD = ("progress", "_progress", "report")  # what tells the page of a step
NEVER_ON_THE_PAGE = ("gguf_export.py",)  # of `bench` alone


@pytest.fixture(autouse=True)
def back_to_english() -> Iterator[None]:
    yield
    wording.choose_language("en")


@cache
def trees() -> list[ast.Module]:
    paths = sorted((ROOT / "river_core").rglob("*.py"))
    shown = [path for path in paths if path.name not in NEVER_ON_THE_PAGE]
    return [ast.parse(path.read_text(encoding="utf-8")) for path in shown]


def template(node: ast.expr) -> str | None:
    """A string of the code, each value in it as {}."""
    if isinstance(node, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
        return "".join(map(str, parts))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@cache
def in_the_code() -> set[str]:
    nodes = [node for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.expr)]
    return {text for node in nodes if (text := template(node))}


def told_by_the_engine() -> set[str]:
    """Notes of a model and of a run, and steps of loading, as far as they are written in place."""
    found = set()
    for node in (node for tree in trees() for node in ast.walk(tree)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = ast.unparse(node.func).removeprefix("self.")
        if called in TOLD or re.fullmatch(r"_?notes\.append", called):
            found.add(template(node.args[0]))
    return {text for text in found if text}


def is_known(text: str) -> bool:
    return any(pattern.fullmatch(text) for pattern in english.patterns().values())


@pytest.mark.parametrize("policy", POLICIES)
def test_the_english_page_describes_a_policy_as_the_engine_does(policy: str) -> None:
    assert wording.read_dictionary("en")[f"policy.{policy}.about"] == POLICIES[policy].sentence
    assert policy_sentence(policy).startswith(POLICIES[policy].sentence)


@pytest.mark.parametrize("key", english.patterns())
def test_the_engine_still_says_so(key: str) -> None:
    pattern = english.patterns()[key]
    assert any(pattern.fullmatch(text) for text in in_the_code()), (
        f"{key} is no sentence of river_core any more: change it in assets/text, or remove it"
    )


def test_every_note_and_step_of_the_engine_is_in_the_dictionary() -> None:
    written = told_by_the_engine()
    assert len(written) > 12
    missing = sorted(text for text in written if not is_known(text))
    assert missing == [], "add them to assets/text under `engine.`"
    assert all(is_known(model.origin) for model in MODELS.values())


def test_nothing_changes_in_english() -> None:
    for text in ("folder x", "something else", "execution", ""):
        assert (known(text), marked(text), named(text), told(SettingsError(text))) == (text,) * 4
        assert with_elements(text) == text


@pytest.mark.parametrize("code", OTHERS)
def test_known_sentences_are_translated_with_their_values(code: str) -> None:
    wording.choose_language(code)
    text = wording.dictionary()
    assert known("reading layer 3 of 30") == text["engine.step.reading"].format(layer=3, layers=30)
    silent = "folder x; used because the Hugging Face hub did not answer"
    assert known(silent) == text["engine.origin.instead"].format(
        origin=text["engine.origin.folder"].format(name="x"), reason=text["engine.origin.silent"]
    )
    assert marked("b c") in known("GGUF file a, stored as b c")  # the words of a value


@pytest.mark.parametrize("code", OTHERS)
def test_what_stays_english_is_introduced_and_marked(code: str) -> None:
    wording.choose_language(code)
    lead = wording.dictionary()["english.says"].partition("{")[0]
    assert len(lead.strip()) > 5
    assert told(SettingsError("no <b>.")) == known("no <b>.") == f"{lead}{OPEN}no <b>.{CLOSE}"
    assert with_elements(told(SettingsError("no <b>."))) == (
        f'{lead}<span lang="en">no &lt;b&gt;.</span>'
    )
    assert told(Refused(wording.say("task.busy"))) == wording.say("task.busy")
    assert named("native-fp16") == "native-fp16"
    assert marked(marked("a")) == f"{OPEN}a{CLOSE}"
    assert known("folder " + "x" * 600).startswith(lead)  # long ones are not looked up


def test_the_kind_of_an_error_outlives_another_process() -> None:
    def model(error: Exception) -> list[tuple[str, object]]:
        def failing() -> None:
            raise error

        return list(decode_lent(None, failing, None))  # type: ignore[arg-type]

    assert model(SettingsError("a")) == [("error", "a")]
    assert model(Refused("b")) == [("refused", "b")]


@pytest.mark.parametrize("code", wording.languages())
def test_words_are_joined_as_the_language_does(code: str) -> None:
    wording.choose_language(code)
    sentence = policy_sentence("river")
    rules = [wording.say(f"rule.{rule}") for rule in ("similarity", "confidence", "gap", "fixed")]
    assert wording.say("list.comma").join(rules) in sentence
    assert wording.sentences(("a.", "", "b.")) == f"a.{wording.say('list.sentence')}b."
