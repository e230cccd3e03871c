"""Two people's way through the real app: a teacher before a class, a researcher with a model."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page, expect
from transformers import LlamaConfig, LlamaForCausalLM

import river_core
from tests.ui.conftest import Watch
from tests.ui.driving import LOADED_WITHIN, app_at, finish, start
from tests.ui.file_driving import cells, exported, opened

MODEL = "smollm2-135m-packaged"
LAYERS = 5
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
OpenPage = Callable[..., Page]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def ready(page: Page) -> None:
    page.wait_for_function("document.body.dataset.phase === 'ready'", timeout=LOADED_WITHIN)


def slide(page: Page, keys: str, times: int) -> None:
    page.focus("#threshold input[type=range]")
    for _ in range(times):
        page.keyboard.press(keys)


def test_a_teacher(open_page: OpenPage, browser: Browser, tmp_path: Path) -> None:
    with app_at(MODEL, tmp_path) as url:
        page = open_page(url)
        assert page.locator(".lane-upper .tok").count() > 20  # a recorded run is there at once
        page.get_by_role("button", name="Lesson").click()
        heading = page.locator("#lesson-title")
        expect(heading).to_be_visible()
        page.get_by_role("button", name="Skip").click()
        page.keyboard.press("Escape")
        ready(page)
        start(page, "Why do cats purr?", 16)
        finish(page)
        assert len(cells(page)) == len(cells(page, "lower")) == 16
        before = page.locator(".lane-upper .tok.b0").count()
        slide(page, "Home", 1)
        expect(page.locator(".estimate-line")).to_contain_text("Estimate")
        assert page.locator(".lane-upper .tok.b0").count() > before
        page.get_by_role("button", name="Run at this threshold").click()
        finish(page)
        expect(page.locator(".lane-upper .lane-caption")).to_contain_text("threshold 0.")
        shown = cells(page)
        handout = exported(page, "html", tmp_path)
    watch = Watch()
    sheet = opened(browser, handout, watch)
    sheet.wait_for_selector(".lane-upper .tok")
    assert cells(sheet) == shown
    sheet.context.close()
    assert (watch.errors, watch.strangers) == ([], [])


@pytest.fixture(scope="module")
def own_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in hub layout: random weights, a real tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "my-model"
    packaged = Path(river_core.load(MODEL, river=river_core.QuantSpec(method="rtn")).path)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=49152,
        tie_word_embeddings=True,
        max_position_embeddings=512,
    )
    torch.manual_seed(3)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for name in TOKENIZER:
        if (packaged / name).exists():
            shutil.copy(packaged / name, folder)
    yield folder
    shutil.rmtree(folder)


def test_a_researcher(open_page: OpenPage, own_model: Path, tmp_path: Path) -> None:
    with app_at(str(own_model), tmp_path, "--river", "hqq-4bit-g64") as url:
        page = open_page(url)
        ready(page)
        expect(page.locator(".topbar .chips")).to_contain_text("my-model")
        assert str(own_model.parent) not in page.locator("body").inner_text()
        page.click("#settings > button")
        page.locator("#policy-lower input").click()
        page.get_by_role("option", name="State propagation").click()
        expect(page.locator("#settings")).to_contain_text("take their keys and values from")
        start(page, "one two three", 8)
        finish(page)
        expect(page.locator(".lane-lower .lane-title")).to_have_text("State propagation")
        rows = list(csv.DictReader(exported(page, "csv", tmp_path).open(encoding="utf-8-sig")))
        assert len(rows) == 16 and {len(row["kv_source"]) for row in rows} == {LAYERS}
        page.click("#charts > button")
        page.click("#measure-sweep")
        page.wait_for_selector("#chart-speed .main-svg", timeout=LOADED_WITHIN)
        with page.expect_download() as download:
            page.click("#rv-chart-quality button")
        download.value.save_as(tmp_path / "quality.csv")
        table = list(csv.reader((tmp_path / "quality.csv").open(encoding="utf-8")))
        assert len(table) > 3 and all(len(row) == len(table[0]) for row in table)
