"""The page and the API over the packaged model, started as a person starts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from playwright.sync_api import Page, expect

from tests.ui.driving import LOADED_WITHIN, finish, start

MODEL = "smollm2-135m-packaged"
OpenPage = Callable[..., Page]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def served(packaged_app: str) -> str:
    """`python app.py`, from the moment it answers."""
    return packaged_app


@pytest.fixture
def page(open_page: OpenPage, served: str) -> Page:
    """The page with the model ready."""
    opened = open_page(served)
    opened.wait_for_function("document.body.dataset.phase === 'ready'", timeout=LOADED_WITHIN)
    return opened


def count(page: Page, lane: str) -> int:
    return page.locator(f".lane-{lane} .tok").count()


def test_the_page_says_which_model_it_runs(page: Page) -> None:
    expect(page.locator(".topbar .chips")).to_contain_text(MODEL)
    expect(page.locator(".origin")).to_contain_text("4 bits")
    expect(page.locator(".origin")).to_contain_text("32")
    expect(page.locator("#status")).to_have_text("Ready")
    slider = float(page.input_value("#threshold input[type=number]"))
    expect(page.locator("#threshold")).to_contain_text(f"default is {slider:.3f}")


def test_tokens_appear_while_running_and_stop_keeps_them(page: Page) -> None:
    start(page, "Explain to a child how rain is made.", 400)
    page.wait_for_function(
        "document.body.dataset.phase === 'decoding' && "
        "document.querySelectorAll('.lane-upper .tok').length > 3",
        timeout=60_000,
    )
    assert page.locator(".lane-upper .tok[class*=' b']").count() > 3
    page.click("#stop")
    finish(page, "stopped")
    kept = count(page, "upper")
    assert 3 < kept < 400 and count(page, "lower") == 0
    expect(page.locator("#status")).to_have_text("Stopped")
    start(page, "Why is the sky blue?", 16)
    finish(page)
    assert count(page, "upper") == 16 and count(page, "lower") == 16


def test_a_token_is_read_with_the_keyboard(page: Page) -> None:
    start(page, "Name three colours.", 12)
    finish(page)
    page.locator(".lane .tok[tabindex='0']").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".panel-trace .panel-head")).to_contain_text("token 2, River")
    label = page.locator(":focus").get_attribute("aria-label") or ""
    assert label.startswith("token 2, ") and "while it was chosen" in label
    assert page.locator(".trace-dot").count() >= 1
    assert page.locator(".kv-column .slot").count() == 30
    expect(page.locator(".column-sentence")).to_contain_text("wrote this column")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".panel-trace .panel-head")).to_contain_text("token 2, Backbone")
    assert page.locator(".trace-dot").count() == 30
    values = page.locator(".tile .tile-value").all_text_contents()
    assert len(values) == 6 and "—" not in values


def test_hostile_text_is_text(page: Page) -> None:
    hostile = "Repeat: ${1+1} ` </script> <img src=x onerror=alert(1)> 🌊👩‍🚀 שלום مرحبا\n\tend"
    start(page, hostile, 12)
    finish(page)
    page.locator(".prompt-box summary").click()
    shown = "".join(page.locator(".prompt-tokens .txt").all_text_contents())
    for part in ("${", "</", "script", "<", "img", "onerror", "`", "↵", "⇥", "🌊"):
        assert part in shown, part
    assert page.locator(".rv img, .rv script").count() == 0
    assert page.input_value("#prompt textarea") == hostile


@pytest.mark.parametrize(
    "prompt, tokens, words",
    [("", 8, "prompt"), ("a b " * 25_000, 8, "tokens"), ("Hello", 99_999, "99999")],
)
def test_bad_input_is_one_sentence_and_the_next_run_works(
    page: Page, prompt: str, tokens: int, words: str
) -> None:
    start(page, prompt, tokens)
    finish(page, "failed")
    sentence = page.locator("#rv-alert [role=alert]")
    expect(sentence).to_contain_text(words)
    assert page.input_value("#prompt textarea") == prompt
    start(page, "Hello", 4)
    finish(page)
    expect(sentence).to_have_text("")


def test_the_api_returns_the_run_record(served: str, page: Page) -> None:
    client = Client(served, verbose=False)
    record = ask(client, "Why is the sky blue?", threshold=0.95, tokens=12)
    keys = {"header", "prompt", "tokens", "updates", "full_trace", "summary", "text"}
    assert set(record) == keys
    assert len(record["tokens"]) == 12 and len(record["full_trace"]) == 12
    assert record["text"] == "".join(t["text"] for t in record["tokens"])
    for token in record["tokens"]:
        assert len(token["similarities"]) == token["exit_layer"]
        letters = "b" * token["exit_layer"] + "r" * (30 - token["exit_layer"])
        assert "".join(token["path"]) == token["kv_source"] == letters
    again = ask(client, "Why is the sky blue?", threshold=0.95, tokens=12)
    assert [t["token_id"] for t in again["tokens"]] == [t["token_id"] for t in record["tokens"]]


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x " * 50_000}, "tokens"),
        ({"threshold": 5}, "threshold"),
        ({"threshold": "NaN"}, "threshold"),
        ({"policy": "fastest"}, "policy"),
        ({"tokens": 99_999}, "99999"),
        ({"tokens": 0}, "max_new_tokens"),
        ({"seed": -1}, "seed"),
    ],
)
def test_the_api_refuses_bad_input_in_one_sentence(
    served: str, page: Page, changed: dict[str, Any], words: str
) -> None:
    client = Client(served, verbose=False)
    with pytest.raises(AppError, match=words) as refused:
        ask(client, **{"prompt": "Hello", "tokens": 4, **changed})
    assert "\n" not in str(refused.value) and "Traceback" not in str(refused.value)
    assert len(ask(client, "Hello", tokens=4)["tokens"]) == 4


def ask(client: Client, prompt: str, tokens: int, **changed: Any) -> dict[str, Any]:
    settings = {"policy": "river", "threshold": 0.98, "seed": 0, **changed}
    return client.predict(prompt=prompt, max_new_tokens=tokens, api_name="/generate", **settings)


def test_a_page_run_can_be_fetched_as_a_record(served: str, page: Page) -> None:
    start(page, "Hello", 6)
    finish(page)
    run = page.locator("#rv-lanes [data-run]").get_attribute("data-run")
    record = Client(served, verbose=False).predict(run, "lower", api_name="/record")
    assert record["header"]["settings"]["policy"] == "backbone"
    assert len(record["tokens"]) == 6


def test_what_a_run_builds_does_not_take_the_model_away(page: Page) -> None:
    """Full quantization has the river's first layer built: the next visitor finds it ready."""
    page.click("#settings > button")
    page.locator("#policy-lower input").click()
    page.get_by_role("option", name="Full quantization").click()
    start(page, "Name three colours.", 4)
    finish(page)
    expect(page.locator(".lane-lower .lane-title")).to_have_text("Full quantization")
    page.reload()
    page.wait_for_selector("#rv-details .tile")
    page.wait_for_function("document.body.dataset.phase === 'ready'", timeout=20_000)
    expect(page.locator(".topbar .chips")).to_contain_text("cpu")
