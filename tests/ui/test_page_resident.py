"""Layers evicted on the page: the ledger shows what is loaded, and what was chosen stays chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from river_core.footprint import Layout, footprint
from river_core.settings import DEFAULT_RIVER
from river_core.shapes import SHAPES
from tests.ui.driving import run_to_end
from tests.ui.synthetic import LAYERS

OpenPage = Callable[..., Page]


@pytest.fixture
def whole(served: Any) -> Iterator[str]:
    """The page's address; afterwards all layers are there again."""
    yield served[0]
    served[1].set_resident(LAYERS)


def keep(page: Page, layers: int) -> None:
    """Evict or restore by the settings panel."""
    field = page.locator("#resident input")
    if not field.is_visible():
        page.click("#settings > button")
    field.fill(str(layers))
    field.press("Tab")
    page.click("#resident-apply")


def slider(page: Page) -> Locator:
    return page.locator("#ledger-resident")


def test_the_slider_goes_along_with_what_is_loaded(open_page: OpenPage, whole: str) -> None:
    page = open_page(whole)
    shown, measured = page.locator(".ledger-field output"), page.locator(".ledger .measured")
    run_to_end(page)
    expect(shown).to_have_text("30 of 30")
    expect(measured.last).to_have_text("402 MiB")
    for layers in (12, 20):
        keep(page, layers)
        expect(shown).to_have_text(f"{layers} of 30")
        assert slider(page).input_value() == str(layers - 1)
        layout = Layout(DEFAULT_RIVER, resident=layers)
        parts = footprint(SHAPES["smollm2-135m"], layout, tokens=4096).parts
        formula = page.locator(".ledger-table tbody tr").first.locator(".number").first
        expect(formula).to_have_text(f"{parts['backbone'] / 2**20:.0f} MiB")
        expect(measured).to_have_text(["—"] * 8)
    keep(page, 99)
    expect(page.locator("#resident-said")).to_contain_text("resident_layers is 99")
    expect(shown).to_have_text("20 of 30")
    keep(page, LAYERS)
    expect(shown).to_have_text("30 of 30")
    expect(measured.last).to_have_text("402 MiB")


def test_what_the_reader_chose_stays(open_page: OpenPage, whole: str) -> None:
    page = open_page(whole)
    shown = page.locator(".ledger-field output")
    expect(shown).to_have_text("30 of 30")
    slider(page).fill("4")
    keep(page, 12)
    expect(page.locator("#resident-said")).to_have_text("12 of 30 backbone layers are kept.")
    expect(shown).to_have_text("5 of 30")
    page.select_option("#ledger-model", index=1)
    page.select_option("#ledger-model", index=0)
    expect(shown).to_have_text("12 of 30")
