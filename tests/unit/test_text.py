"""Streaming text is always a prefix of the final decode, on a byte-level tokenizer made here."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from river_core.text import TextStream, decode, partial_bytes, split


@pytest.fixture(scope="module")
def tokenizer():
    """Every byte is a token, and one special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    base = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
    base.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    base.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=base, eos_token="<|end|>")


TEXTS = [
    "plain",
    "emoji 🌧️ split",
    "אבג right to left",
    "日本語",
    "a\n\tb",
    "👨‍👩‍👧 family",
    "${x}`</script>",
]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    assert "".join(split(tokenizer, ids)) == text
    stream, shown = TextStream(tokenizer), ""
    for i in ids:
        shown += stream.push(i)
        assert text.startswith(shown)
    assert shown + stream.flush() == text


def test_any_bytes_stream_as_a_prefix_of_the_final_decode(tokenizer):
    for seed in range(200):
        draw = random.Random(seed)
        ids = [draw.randrange(256) for _ in range(12)]
        final = decode(tokenizer, ids)
        stream, shown = TextStream(tokenizer), ""
        for i in ids:
            shown += stream.push(i)
            assert final.startswith(shown), seed
        assert shown + stream.flush() == final, seed


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_stop_string_over_several_tokens_is_never_shown(tokenizer, cut):
    text, stop = "good morning STOP more", "STOP"
    stream, shown = TextStream(tokenizer, (stop, "never")), ""
    for i in tokenizer(text)["input_ids"]:
        shown += stream.push(i)
        assert "ST" not in shown
        if stream.stopped:
            break
    assert stream.stopped
    assert shown == "good morning "
    stream = TextStream(tokenizer, (stop,))
    ids = tokenizer(text[:cut] + "ST")["input_ids"]
    shown = "".join(stream.push(i, last=n == len(ids) - 1) for n, i in enumerate(ids))
    assert shown == text[:cut] + "ST"  # the start of a stop string is released at the end


def test_partial_characters_are_told_in_hex(tokenizer):
    ids = tokenizer("é🌧")["input_ids"]
    assert [partial_bytes(tokenizer, i) for i in ids] == ["c3", "a9", "f0", "9f", "8c", "a7"]
    assert partial_bytes(tokenizer, tokenizer("a")["input_ids"][0]) == ""
    assert [bool(t) for t in split(tokenizer, ids)] == [False, True, False, False, False, True]


def test_without_a_tokenizer_ids_stand_for_themselves():
    assert split(None, [3, 14]) == ("<3>", "<14>")
    assert partial_bytes(None, 3) == ""
