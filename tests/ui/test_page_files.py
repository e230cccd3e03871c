"""Files of the page: exports, the link with its recipe, replay files."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from xml.etree import ElementTree

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from app.recorded import parse, saved, view
from app.shipped import RUNS
from river_core.records import RunRecord
from tests.ui.conftest import Watch
from tests.ui.driving import run_to_end
from tests.ui.file_driving import EXPORT, cells, copied, exported, opened

OpenPage = Callable[..., Page]
FORMULA = re.compile("'+[=+\\-@\t\r\n＝＋－＠]")


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="")))


def plain(cell: str) -> str:
    return cell[1:] if FORMULA.match(cell) else cell


def compare(row: dict[str, str], lane: str, token: dict[str, Any]) -> None:
    assert row["lane"] == lane
    for name, value in token.items():
        cell = row[name]
        if isinstance(value, str):
            assert plain(cell) == value
            assert not re.match("[=+\\-@\t\r]", cell), cell
        elif value is not None:
            assert json.loads(cell) == json.loads(json.dumps(value)), name


def test_exports_of_a_live_run_with_hostile_text(
    open_page: OpenPage, served: Any, tmp_path: Path
) -> None:
    page = open_page(served[0])
    run_to_end(page, "hostile")
    lines = exported(page, "jsonl", tmp_path)
    assert lines.name == "river-hostile.jsonl"
    text = lines.read_text(encoding="utf-8")
    assert text in served[1].kept.values()
    records = parse(text, "exported")
    assert saved(records) == text
    alone = tmp_path / "alone.jsonl"
    alone.write_text("".join(f"{line}\n" for line in records[0].lines()), encoding="utf-8")
    assert RunRecord.load(alone) == records[0]

    rows = rows_of(exported(page, "csv", tmp_path))
    columns = [*records[0].to_frame().columns]
    assert [name for name in rows[0] if name != "lane"] == columns
    tokens = [
        (lane, json.loads(line))
        for lane, record in zip(("upper", "lower"), records, strict=True)
        for line in record.lines()
        if line.startswith('{"type":"token"')
    ]
    for row, (lane, token) in zip(rows, tokens, strict=True):
        del token["type"]
        compare(row, lane, token)
    check_picture(page, tmp_path)
    check_html(page, tmp_path, records)


def check_picture(page: Page, folder: Path) -> None:
    shown = page.evaluate("[...document.querySelectorAll('.lane .txt')].map(t => t.textContent)")
    root = ElementTree.parse(exported(page, "svg", folder)).getroot()
    assert root.get("width") == "720"
    assert {element.tag.split("}")[1] for element in root.iter()} <= {
        *("svg", "title", "rect", "text", "circle")
    }
    drawn = "".join("".join(root.itertext()).split())
    for text in shown:
        assert "".join(re.sub("[\ufffe\uffff]", "", text).split()) in drawn, text
    edges = [float(r.get("x", 0)) + float(r.get("width", 0)) for r in root.iter() if r.get("x")]
    assert max(edges) <= 720
    data = exported(page, "png", folder).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">I", data[16:20]) == (1440,)


def check_html(page: Page, folder: Path, records: list[RunRecord]) -> None:
    path = exported(page, "html", folder)
    data = path.read_text(encoding="utf-8").split('id="river-data">')[1].split("</script>")[0]
    wanted = view(records, "live", "hostile", "hostile")
    assert json.loads(data) == json.loads(json.dumps([wanted]))
    before, watch = (cells(page), cells(page, "lower")), Watch()
    other = opened(page.context.browser, path, watch)
    assert (cells(other), cells(other, "lower")) == before
    assert other.evaluate("window.pwned") is None
    assert exported(other, "jsonl", folder).read_text(encoding="utf-8") == saved(records)
    assert exported(other, "png", folder).read_bytes()[:4] == b"\x89PNG"
    again = exported(other, "html", folder)
    third = opened(page.context.browser, again, watch)
    assert cells(third) == before[0]
    assert (watch.errors, watch.strangers) == ([], [])
    other.context.close()
    third.context.close()


@pytest.mark.thorough
def test_the_menu_by_keyboard(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    button = page.locator(EXPORT)
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    focused = "document.activeElement.dataset.export"
    assert page.evaluate(focused) == "jsonl"
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == "csv"
    page.keyboard.press("End")
    assert page.evaluate(focused) == "command.lower"
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == "jsonl"
    page.keyboard.press("Escape")
    expect(page.locator("#export-menu")).to_be_hidden()
    expect(button).to_be_focused()
    heights = "[...document.querySelectorAll('.file-button')].map(b => b.offsetHeight)"
    assert min(page.evaluate(heights)) >= 24
    page.keyboard.press("ArrowDown")
    assert [v["id"] for v in Axe().run(page).response["violations"] if v["impact"] != "minor"] == []


def test_link_and_command_of_a_live_run(open_page: OpenPage, served: Any) -> None:
    prompt = 'it\'s $(rm -rf ~) & "two"\nlines #1 + 1%'
    page = open_page(served[0])
    run_to_end(page, prompt)
    words = shlex.split(copied(page, "command.upper"))
    assert words[:4] == ["python", "-m", "river_core", "generate"] and words[-1] == prompt
    assert words[words.index("--policy") + 1] == "river"
    link = copied(page, "link")
    asked = parse_qs(urlsplit(link).query, strict_parsing=True)
    assert asked["prompt"] == [prompt] and asked["upper"] == ["river"]
    served[1].asked = {}
    other = open_page(link)
    expect(other.locator("#prompt textarea")).to_have_value(prompt)
    expect(other.locator(".recipe")).to_have_text(
        "This page was opened from a link. Press Run to decode this recipe."
    )
    assert served[1].asked == {}


def test_a_recipe_fills_the_controls_and_tells_what_is_wrong(
    open_page: OpenPage, served: Any
) -> None:
    hostile = "<img src=x onerror=window.pwned=1>${1}{{2}}"
    query = {
        "prompt": hostile,
        "upper": "kv-mask",
        "lower": "river",
        "threshold": "0.5",
        "seed": "x",
        "max_new_tokens": "7",
        "head": "lens",
        "temperature": "0.5",
        hostile: "1",
        "model": hostile,
    }
    page = open_page(f"{served[0]}?{urlencode(query)}")
    expect(page.locator("#prompt textarea")).to_have_value(hostile)
    expect(page.locator(".recipe p")).to_have_count(4)
    expect(page.locator(".recipe")).to_contain_text("The link's seed, “x”, cannot be used")
    assert page.locator("#rv-files img").count() == 0
    expect(page.locator("#threshold input[type=number]")).to_have_value("0.5")
    served[1].asked = {}
    page.click("#run")
    page.wait_for_function("document.body.dataset.phase === 'done'", timeout=30_000)
    wanted = {"prompt": hostile, "upper": "kv-mask", "lower": "river", "threshold": 0.5, "seed": 0}
    wanted |= {"max_new_tokens": 7, "head": "lens", "temperature": 0.5}
    assert wanted.items() <= served[1].asked.items()
    assert page.evaluate("window.pwned") is None


def test_a_file_is_opened_dropped_and_refused(
    open_page: OpenPage, served: Any, tmp_path: Path
) -> None:
    page = open_page(served[0])
    run_to_end(page, "hostile")
    path, live = exported(page, "jsonl", tmp_path), cells(page)
    page.reload()
    page.wait_for_selector("#rv-lanes .tok")
    page.set_input_files(".file-tools input[type=file]", path)
    expect(page.locator(".file-said")).to_contain_text("river-hostile.jsonl is shown")
    assert cells(page) == live
    chosen = page.locator(".run-chooser option:checked")
    expect(chosen).to_have_text("File: river-hostile.jsonl")
    expect(page.locator("[data-origin=recorded]")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".recorded-label")).to_contain_text("Recorded earlier: smollm2")
    again = exported(page, "jsonl", tmp_path)
    assert again.read_text(encoding="utf-8") == path.read_text(encoding="utf-8")
    bad = path.read_text(encoding="utf-8").replace('"forced":false', '"forced":2', 1)
    drop(page, "<b>bad</b>.jsonl", bad)
    expect(page.locator(".file-said")).to_contain_text("<b>bad</b>.jsonl is not a recorded run: ")
    assert cells(page) == live
    drop(page, "big.jsonl", " " * (8 * 2**20 + 1))
    expect(page.locator(".file-said")).to_have_text(
        "big.jsonl is larger than 8 MiB; it is not opened."
    )
    other = open_page(served[0])
    assert other.locator(".run-chooser option").count() == len(list(RUNS.glob("*.jsonl")))
    assert page.evaluate("window.pwned") is None


def drop(page: Page, name: str, text: str) -> None:
    page.evaluate(
        """([name, text]) => {
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([text], name));
          const options = {dataTransfer, bubbles: true, cancelable: true};
          document.body.dispatchEvent(new DragEvent("dragover", options));
          document.body.dispatchEvent(new DragEvent("drop", options));
        }""",
        [name, text],
    )


def test_a_run_that_is_no_longer_kept_is_told_of(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    run_to_end(page)
    served[1].kept.clear()
    page.click(EXPORT)
    page.click('[data-export="csv"]')
    expect(page.locator(".file-said")).to_contain_text("Run it again, then export it.")
