"""Every language has every sentence, with the same placeholders."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator

import pytest

from app.views import wording
from tests.unit.english_words import ENGLISH as GIVE_AWAY

ENGLISH = wording.read_dictionary("en")


@pytest.fixture
def back_to_english() -> Iterator[None]:
    yield
    wording.choose_language("en")


def placeholders(sentence: str) -> list[str]:
    return sorted(name for _, name, _, _ in string.Formatter().parse(sentence) if name)


@pytest.mark.parametrize("code", wording.languages())
def test_a_language_is_whole(code: str) -> None:
    text = wording.read_dictionary(code)
    assert list(text) == list(ENGLISH)  # the same order, so that two files compare line by line
    wrong = [k for k in ENGLISH if placeholders(text[k]) != placeholders(ENGLISH[k])]
    assert wrong == []
    assert [k for k, sentence in text.items() if not sentence.strip() and ENGLISH[k].strip()] == []


@pytest.mark.parametrize("code", [code for code in wording.languages() if code != "en"])
def test_no_sentence_is_left_in_english(code: str) -> None:
    """Commands and placeholders apart; the lesson gives the paper's terms in brackets."""
    word = re.compile(rf"(?<![\w.-])({'|'.join(GIVE_AWAY)})(?![\w.-])")
    apart = re.compile(r"\{\w+(!r)?\}|'\w+'|python -m .*?(calibrate|N)\b|[(（][A-Za-z -]+[)）]")
    text = wording.read_dictionary(code)
    assert {k: v for k, v in text.items() if word.search(apart.sub("", v))} == {}


@pytest.mark.usefixtures("back_to_english")
def test_the_page_speaks_the_chosen_language() -> None:
    for code in wording.languages():
        wording.choose_language(code)
        assert wording.say("run") == wording.read_dictionary(code)["run"]
        assert wording.dictionary() is wording.read_dictionary(code)


def test_an_unknown_language_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"language is 'xx'; use one of .*en"):
        wording.choose_language("xx")
