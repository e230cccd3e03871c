"""The app's views of one token: colours and their contrast, its text, its sentences."""

from __future__ import annotations

import dataclasses
import random
import re
import subprocess
import sys

import pytest

from app.views import colour, display, sentences
from app.views.run import Lane, ModelCard, Run
from app.views.snapshot import (
    snapshot,
)
from app.views.wording import ASSETS, dictionary, say
from tests.ui.synthetic import (
    HOSTILE,
    LAYERS,
    prompt_record,
    token,
)

CARD = ModelCard("ready", "Ready", "m", "packaged", "cpu", LAYERS, 0.98, 4096)
DEPTHS = (1, 2, 3, 4, 5, 6, 7, 12, 16, 26, 28, 30, 32, 36, 80)


def test_views_leave_torch_and_gradio_out() -> None:
    code = (
        "import sys, app.views.snapshot, app.views.record\n"
        "print([m for m in ('torch', 'gradio', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Colours


def test_every_fill_and_its_ink_are_readable() -> None:
    ratios = [colour.contrast(f, i) for f, i in zip(colour.FILLS, colour.INKS, strict=True)]
    assert min(ratios) >= 4.5
    assert round(min(ratios), 1) == 5.2
    for fill, ink in zip(colour.FILLS, colour.INKS, strict=True):
        other = colour.WHITE if ink == colour.BLACK else colour.BLACK
        assert colour.contrast(fill, ink) > colour.contrast(fill, other)


def test_contrast_is_wcag() -> None:
    assert colour.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert colour.contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


def test_the_scale_is_light_to_dark() -> None:
    luminances = [colour.luminance(fill) for fill in colour.FILLS]
    assert luminances == sorted(luminances, reverse=True)


@pytest.mark.parametrize("layers", DEPTHS)
def test_the_legend_covers_every_exit_layer_once(layers: int) -> None:
    entries = colour.legend(layers)
    covered = [layer for e in entries for layer in range(e.first, e.last + 1)]
    assert covered == list(range(1, layers + 1))
    assert entries[-1].never and entries[-1].first == layers
    for layer in range(1, layers + 1):
        entry = entries[colour.legend_index(layer, layers)]
        assert entry.first <= layer <= entry.last
        assert entry.fill == colour.bin_of(layer, layers)


def test_bins_of_thirty_layers() -> None:
    bins = [colour.bin_of(layer, 30) for layer in (0, 1, 5, 6, 10, 11, 25, 26, 30)]
    assert bins == [0, 0, 0, 1, 1, 2, 4, 5, 5]
    assert colour.counts([1, 5, 6, 30, 30], 30) == [2, 1, 0, 0, 0, 0, 2]


@pytest.mark.parametrize("layer", [-1, 31])
def test_an_impossible_exit_layer_is_refused(layer: int) -> None:
    with pytest.raises(ValueError, match="not within"):
        colour.bin_of(layer, 30)


# Token text


@pytest.mark.parametrize(
    "text, raw, shown, kind, gap",
    [
        (" the", "", "the", "text", True),
        ("the", "", "the", "text", False),
        (" ", "", "·", "text", False),
        ("  x", "", "··x", "text", False),
        ("x ", "", "x·", "text", False),
        (" x y", "", "x y", "text", True),
        ("x  y", "", "x··y", "text", False),
        ("\n", "", "↵", "text", False),
        (" \n", "", "·↵", "text", False),
        ("\t\r", "", "⇥␍", "text", False),
        ("\x00\x7f", "", "␀␡", "text", False),
        ("\u202eab", "", "⟨U+202E⟩ab", "text", False),
        ("\u200b", "", "⟨U+200B⟩", "text", False),
        ("\u0301", "", "◌\u0301", "text", False),
        ("\U0001f469\u200d\U0001f680", "", "\U0001f469\u200d\U0001f680", "text", False),
        ("", "f09f", "F0 9F", "bytes", False),
        (" \U0001f30a", "8a", "\U0001f30a", "text", True),
        ("", "", "#7", "empty", False),
    ],
)
def test_display(text: str, raw: str, shown: str, kind: str, gap: bool) -> None:
    assert display.show(text, raw, 7) == display.Shown(shown, kind, gap)


def test_hostile_text_passes_through_unharmed() -> None:
    for text in HOSTILE:
        if text.strip() and text.isprintable() and not re.search("[\u0300-\u036f]", text):
            shown = display.show(text)
            assert (" " if shown.gap else "") + shown.text == text


# Sentences


def test_a_token_sentence_says_where_it_left_and_what_the_cache_received() -> None:
    record = dataclasses.replace(
        token(11, " the", "", 14, 31, random.Random(0)), similarities=(0.5,) * 13 + (0.97123,)
    )
    assert sentences.token_sentence(record, 30) == (
        "token 12, ‘ the’, chosen after 14 of 30 layers, similarity 0.9712; while it was chosen, "
        "layers 15 to 30 of the cache at position 41 were written by the river"
    )


def test_other_sentences() -> None:
    rng = random.Random(0)
    never = sentences.token_sentence(token(1, "\n", "", 30, 11, rng), 30)
    assert "‘↵’, never left, chosen after all 30 layers" in never
    assert "every layer of the cache at position 11 was written by the backbone" in never
    one = dataclasses.replace(token(1, "", "8c", 29, 11, rng), forced=True)
    said = sentences.token_sentence(one, 30)
    assert "<8C>, sent on after 29 of 30 layers because no more are resident" in said
    assert "layer 30 of the cache at position 11 was written by the river" in said
    mixed = dataclasses.replace(one, kv_source="b" * 10 + "p" * 10 + "m" * 9 + "d")
    phrase = sentences.cache_phrase(mixed)
    assert "layers 11 to 20" in phrase and "layers 21 to 29" in phrase and "layer 30" in phrase
    all_river = dataclasses.replace(one, exit_layer=0, similarities=(), kv_source="r" * 30)
    assert "0 of 30" in sentences.token_sentence(all_river, 30)


def test_the_prompt_sentence_names_the_depth() -> None:
    lane = Lane("upper", "river", 30, prompt=prompt_record(5))
    assert "11 prompt tokens through 5 of 30" in sentences.prompt_sentence(lane)
    lane.prompt = prompt_record(30)
    assert "after no layer" in sentences.prompt_sentence(lane)
    assert sentences.prompt_sentence(Lane("upper", "river", 30)) == ""


def test_every_key_of_the_views_exists() -> None:
    run = Run("x")
    for phase in ("idle", "waiting", "loading", "prompt", "decoding", "done", "stopped", "failed"):
        run.phase = run.upper.phase = run.lower.phase = phase
        view = snapshot(run, CARD)
        assert view["status"] and view["live"] and view["lanes"]["upper"]["caption"]


def test_the_script_uses_only_words_that_exist() -> None:
    used = set()
    for path in (ASSETS / "js").glob("*.js"):
        used |= set(re.findall(r'say\("([\w.]+)"', path.read_text(encoding="utf-8")))
    assert used and used <= set(dictionary())


def test_a_missing_word_is_an_error() -> None:
    with pytest.raises(KeyError):
        say("no.such.key")
    with pytest.raises(KeyError):
        say("layer.one")
