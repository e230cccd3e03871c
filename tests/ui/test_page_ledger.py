"""What fits, and the charts: sums are the formula's, and nothing is drawn before it opens."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from app.views.ledger import HUB
from river_core.footprint import GIB, Layout, footprint, full_quantization
from river_core.settings import DEFAULT_RIVER
from river_core.shapes import SHAPES
from tests.ui.driving import run_to_end
from tests.ui.synthetic import LAYERS
from tests.ui.test_page_access import serious

OpenPage = Callable[..., Page]
USUAL = Layout(DEFAULT_RIVER)
DRAWN = 60_000  # milliseconds that the first chart may take: plotly is 4.6 MB of script


def choose(page: Page, shape: str, row: int, tokens: int, card: str = "") -> None:
    expect(page.locator("#ledger-model option").first).to_contain_text("Loaded:")
    page.select_option("#ledger-model", index=1 + list(HUB).index(shape))
    page.select_option("#ledger-context", index=(1000, 8000, 32000).index(tokens))
    page.locator("#ledger-resident").fill(str(row))
    page.fill("#ledger-card", card)


def gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def test_every_sum_on_show_is_the_formulas(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    expect(page.locator("#ledger-model option").first).to_have_text("Loaded: smollm2-135m-packaged")
    for shape, resident, tokens in (("llama-3.1-8b", 4, 8000), ("llama-3.1-70b", 80, 32000)):
        choose(page, shape, resident - 1, tokens)
        spec = SHAPES[shape]
        found = footprint(spec, replace(USUAL, resident=resident), tokens=tokens)
        expect(page.locator(".ledger-sum .number")).to_have_text(gib(found.total))
        sizes = page.locator(".ledger-row .ledger-size").all_text_contents()
        river = footprint(spec, full_quantization(USUAL), tokens=tokens)
        whole = footprint(spec, USUAL, tokens=tokens)
        alone = footprint(spec, tokens=tokens)
        assert sizes == [gib(one.total) for one in (found, alone, whole, river)]
        widths = page.locator(".ledger-row-chosen .segment").evaluate_all(
            "all => all.map(one => one.getBoundingClientRect().width)"
        )
        parts = [found.parts[name] for name in ("backbone", "river", "embedding", "head")]
        assert abs(widths[0] / widths[1] - parts[0] / parts[1]) < 0.05 * parts[0] / parts[1]
        command = page.locator(".ledger-command").text_content() or ""
        assert f"python app.py --model {HUB[shape]} --resident {resident}" in command
        assert f'river_core.load("{HUB[shape]}", resident_layers={resident})' in command


def test_whether_it_fits_and_how_many_layers_do(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0])
    fit, spec = page.locator(".ledger-fit"), SHAPES["llama-3.1-8b"]
    expect(fit).to_contain_text("Type how much memory")
    choose(page, "llama-3.1-8b", 31, 8000, "12")
    sizes = {
        k: footprint(spec, replace(USUAL, resident=k), tokens=8000).total for k in range(1, 33)
    }
    most = max(k for k, size in sizes.items() if size <= 12 * GIB)
    expect(fit).to_contain_text("does not fit a card of 12 GiB")
    expect(fit).to_contain_text(f"At most {most} of 32 backbone layers")
    page.locator("#ledger-resident").fill(str(most - 1))
    expect(fit).to_contain_text(f"{gib(sizes[most])} fits a card of 12 GiB")
    page.locator("#ledger-resident").press("ArrowRight")
    expect(fit).to_contain_text("does not fit")
    expect(page.locator(".ledger-field output")).to_have_text(f"{most + 1} of 32")
    words = {"80": "All 32 backbone", "6.8": "full quantization would", "2": "Not even"}
    for card, said in (words | dict.fromkeys(("-3", "0", "1e9"), "not a size")).items():
        page.fill("#ledger-card", card)
        expect(fit).to_contain_text(said)


def test_what_was_chosen_stays_when_the_loaded_model_comes(
    open_page: OpenPage, served: Any
) -> None:
    source = served[1]
    source.begun.clear()
    try:
        page = open_page(served[0])
        page.select_option("#ledger-model", index=list(HUB).index("llama-3.1-8b"))
        page.locator("#ledger-resident").fill("3")
        page.fill("#ledger-card", "12")
        said = page.locator(".ledger-fit").text_content()
    finally:
        source.begun.set()
    expect(page.locator("#ledger-model option").first).to_contain_text("Loaded:")
    chosen = page.locator("#ledger-model").evaluate("s => s.selectedOptions[0].textContent")
    assert chosen == "Llama 3.1 8B, not loaded"
    assert page.locator(".ledger-fit").text_content() == said
    expect(page.locator(".ledger-field output")).to_have_text("4 of 32")


def test_a_live_run_is_measured_beside_the_formula(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0], width=390)
    measured = page.locator(".ledger .measured")
    expect(measured).to_have_text(["—"] * 8)
    run_to_end(page)
    expect(measured.first).to_have_text("202 MiB")
    expect(measured.last).to_have_text("402 MiB")
    page.locator("#ledger-resident").fill("3")
    expect(measured.first).to_have_text("—")
    page.select_option("#ledger-model", index=3)
    expect(measured).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_charts_are_drawn_when_they_are_opened(
    open_page: OpenPage, served: Any, tmp_path: Path
) -> None:
    page = open_page(served[0], theme="dark")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    run_to_end(page)
    assert not [url for url in asked if "Plotly" in url]
    page.click("#charts > button")
    page.wait_for_selector("#chart-running .main-svg", timeout=DRAWN)
    assert [url for url in asked if "Plotly" in url]
    expect(page.locator("#rv-chart-exits .chart-note p")).to_contain_text("60 tokens of River")
    expect(page.locator("#chart-kv")).to_be_hidden()
    assert (
        page.locator("#chart-exits .gtitle").evaluate("t => t.style.fill") == "rgb(236, 236, 240)"
    )
    with page.expect_download() as download:
        page.click("#rv-chart-exits button")
    saved = tmp_path / "exits.csv"
    download.value.save_as(saved)
    rows = list(csv.reader(saved.open(encoding="utf-8")))
    assert rows[0] == ["exit layer", "River", "Backbone"] and len(rows) == 1 + LAYERS
    assert sum(int(row[1]) for row in rows[1:]) == 59
    page.click("[data-origin=recorded]")
    caption = page.locator("#rv-chart-exits .chart-note p")
    expect(caption).to_contain_text("smollm2-135m-packaged on cpu", timeout=DRAWN)
    page.wait_for_selector("#chart-exits .main-svg", timeout=DRAWN)
    assert serious(page) == []


def test_measurements_report_stop_and_refuse(open_page: OpenPage, served: Any) -> None:
    page = open_page(served[0], width=390)
    page.click("#charts > button")
    said = page.locator("#measure-said")
    page.fill("#prompt textarea", "slow")
    page.click("#measure-kv")
    expect(said).to_contain_text("%: step", timeout=DRAWN)
    page.click("#measure-stop")
    expect(said).to_have_text("Stopped; nothing was drawn.", timeout=DRAWN)
    page.fill("#prompt textarea", "refuse")
    page.click("#measure-sweep")
    expect(said).to_contain_text("prompt is empty", timeout=DRAWN)
    expect(page.locator("#chart-speed")).to_be_hidden()
    page.fill("#prompt textarea", "plain")
    page.click("#measure-sweep")
    page.wait_for_selector("#chart-speed .main-svg", timeout=DRAWN)
    page.wait_for_selector("#chart-quality .main-svg", timeout=DRAWN)
    expect(page.locator("#rv-chart-speed .chart-note p")).to_contain_text("Says nothing of quality")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
