"""Records to JSON Lines and back; what is not a record is refused in one sentence."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from river_core.errors import RecordError
from river_core.records import RunRecord
from tests.unit.made_records import run, token

HOSTILE = [
    "${1+1}",
    "</script>",
    "<img onerror=x>",
    "`",
    "\n",
    "\u2028",
    "\x00\x1b",
    "אב",
    "🌧️",
    '"',
]


def test_round_trip_is_the_identity():
    made = run([1, 2, 3])
    assert RunRecord.from_lines(made.lines()) == made


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_survives(text, tmp_path):
    made = run([1, 2])
    made = replace(made, tokens=(replace(made.tokens[0], text=text), made.tokens[1]))
    made.save(tmp_path / "r.jsonl")
    assert RunRecord.load(tmp_path / "r.jsonl") == made


def test_the_line_of_the_design():
    """The example line of records.md, key by key."""
    made = replace(token(1, 1093, text=" sky"), position=8, alternatives=((1093, " sky", -0.21),))
    line = list(replace(run([1]), tokens=(made,)).lines())[2]
    assert line == (
        '{"type":"token","index":1,"position":8,"token_id":1093,"text":" sky","exit_layer":2,'
        '"forced":false,"threshold":0.9,"similarities":[0.0123,0.9312],"path":"bbrr",'
        '"kv_source":"bbrr","logprob":-0.21,"entropy":0.83,"alternatives":[[1093," sky",-0.21]],'
        '"seconds":0.0141}'
    )


def test_similarities_are_rounded_only_when_saved():
    made = replace(run([1]), tokens=(replace(token(0, 1), similarities=(0.123456, 0.9)),))
    assert json.loads(list(made.lines())[2])["similarities"] == [0.1235, 0.9]
    assert made.tokens[0].similarities[0] == 0.123456


def test_kv_final_applies_updates_by_position():
    """Row P+i-1 belongs to the pass that chose token i; the last token has no row."""
    made = run([1, 2, 3])
    assert made.kv_final == ("bbrr", "bbrr", "bbrr", "bbbb", "bbrr")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[:-1], "0 summary lines"),
        (lambda lines: [*lines, lines[-1]], "2 summary lines"),
        (lambda lines: ["not json", *lines[1:]], "line 1"),
        (lambda lines: ['{"type":"other"}', *lines], "line 1"),
        (lambda lines: [lines[0].replace('"schema":1', '"schema":99'), *lines[1:]], "schema is 99"),
        (lambda lines: [*lines[:2], lines[2].replace('"bbrr"', '"bbxr"'), *lines[3:]], "letter"),
        (lambda lines: [*lines[:2], '{"type":"token","index":0}', *lines[3:]], "line 3"),
        (lambda lines: [*lines[:2], "[]", *lines[3:]], "line 3"),
        (lambda lines: [], "0 header lines"),
    ],
)
def test_what_is_no_record_is_refused(change, words):
    lines = change(list(run([1, 2]).lines()))
    with pytest.raises(RecordError, match=words):
        RunRecord.from_lines(lines)


def test_a_missing_or_binary_file(tmp_path):
    with pytest.raises(RecordError, match="cannot be read"):
        RunRecord.load(tmp_path / "none.jsonl")
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordError, match="cannot be read"):
        RunRecord.load(tmp_path / "b.jsonl")


def test_frame_has_a_row_per_token():
    frame = run([4, 5, 6]).to_frame()
    assert frame["token_id"].tolist() == [4, 5, 6]
    assert frame["path"].tolist() == ["bbrr"] * 3
