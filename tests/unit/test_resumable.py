"""A study's file: goes on after a cut, refuses another header and files that are not its own."""

from __future__ import annotations

import json

import pytest

from river_core.errors import RecordError, SettingsError
from river_core.resumable import Lines

HEAD = {"model": "m", "tokens": 8, "prompts": ["a", "b\u2028c"]}


def begun(path):
    file = Lines(path)
    file.begin("p", HEAD)
    return file


def test_lines_are_on_disk_at_once_and_read_again(tmp_path):
    path = tmp_path / "x.jsonl"
    file = begun(path)
    file.append({"part": "p", "type": "cell", "n": 1})
    assert [json.loads(x) for x in path.read_text("utf-8").split("\n") if x] == file.lines
    again = begun(path)
    assert again.lines == file.lines
    assert again.of("p", "cell") == [{"part": "p", "type": "cell", "n": 1}]
    assert again.of("q", "cell") == []


@pytest.mark.parametrize("left", [1, 5, 20])
def test_a_cut_line_is_dropped_when_the_next_is_written(tmp_path, left):
    path = tmp_path / "x.jsonl"
    begun(path).append({"part": "p", "type": "cell", "n": 1})
    whole = path.read_bytes()
    header = whole.split(b"\n")[0] + b"\n"
    path.write_bytes(whole[: len(header) + left])
    file = begun(path)
    assert file.of("p", "cell") == []
    file.append({"part": "p", "type": "cell", "n": 1})
    assert path.read_bytes() == whole


def test_a_cut_header_is_written_again(tmp_path):
    path = tmp_path / "x.jsonl"
    begun(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:30])
    begun(path)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": 9}, "tokens 8 instead of 9"),
        ({"prompts": ["a"]}, "other prompts"),
        ({"kernels": "x"}, "kernels None instead of 'x'"),
    ],
)
def test_another_header_is_refused_and_nothing_written(tmp_path, change, words):
    path = tmp_path / "x.jsonl"
    begun(path)
    whole = path.read_bytes()
    with pytest.raises(SettingsError, match="was begun with") as caught:
        Lines(path).begin("p", HEAD | change)
    assert words in str(caught.value)
    assert str(caught.value).count("\n") == 0
    assert path.read_bytes() == whole


def test_parts_have_headers_of_their_own(tmp_path):
    file = begun(tmp_path / "x.jsonl")
    file.begin("q", HEAD | {"tokens": 9})
    assert [line["tokens"] for line in file.lines] == [8, 9]


@pytest.mark.parametrize("text", ["a letter without an end", '{"type": "header"}\n', "{"])
def test_a_file_of_another_kind_is_left_alone(tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_text(text, "utf-8")
    if text == "{":  # the beginning of ours, cut off
        begun(path)
        return
    with pytest.raises(RecordError, match="not a study"):
        Lines(path)
    assert path.read_text("utf-8") == text


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"part": "p", "type"}\n', "utf-8")
    with pytest.raises(RecordError, match="damaged"):
        Lines(path)
