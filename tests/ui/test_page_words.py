"""The page in another language: no English word of its own is left, and what stays is marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from app.theme import launch_options
from app.ui import build
from app.views.wording import choose_language, dictionary, languages
from tests.ui.synthetic import EMPTY, StubSource
from tests.unit.english_words import ENGLISH

OpenPage = Callable[..., Page]
OTHERS = [code for code in languages() if code != "en"]
REGIONS = {"zh": "zh-CN", "ko": "ko-KR"}  # Gradio takes the words of its own parts by the browser's

LANGUAGE_RULES = ["html-has-lang", "html-lang-valid", "valid-lang"]

# [where, text] of what is seen or spoken; not what a model or a person wrote (`lang=""`), marked
# English, command lines, Gradio's footer, the example and recorded prompts, and the paper's terms
# in the lesson.
SEEN = """() => {
  const out = 'script, style, footer, code, [lang=""], [lang="en"], #examples button, '
    + '#rv-bar select, [role=listbox], .lane-different, .lesson-term';
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const {parentElement: at, data} = walk.currentNode;
    if (at && !at.closest(out)) found.push([at.tagName + '.' + at.className, data]);
  }
  for (const name of ['title', 'aria-label', 'placeholder', 'aria-valuetext']) {
    for (const at of document.querySelectorAll(`[${name}]`)) {
      if (!at.closest(out)) found.push([name, at.getAttribute(name)]);
    }
  }
  return found.filter(([, text]) => /[A-Za-z]/.test(text));
}"""
QUOTED = r"[‘“][^’”]*[’”]|·\S+|<[^>]*>|--[a-z-]+|\u2068[^\u2069]*\u2069"  # tokens, options, marked


@pytest.fixture(scope="module", params=OTHERS)
def spoken(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """(language, address) of the page over the stub source."""
    choose_language(request.param)
    page = build(StubSource())
    _, url, _ = page.launch(
        prevent_thread_lock=True, run_history=False, ssr_mode=False, quiet=True, **launch_options()
    )
    yield request.param, url
    page.close()
    choose_language("en")


def english_words(page: Page) -> list[str]:
    """Where and what, for each text with a word of `ENGLISH` outside of tokens."""
    return page.evaluate(
        """([seen, quoted, words]) => {
          const word = new RegExp(`(^|[^\\\\w.-])(${words.join('|')})($|[^\\\\w.-])`, 'i');
          return eval(seen)().filter(([, text]) =>
            word.test(text.replace(new RegExp(quoted, 'g'), ''))).map((one) => one.join(': '));
        }""",
        [SEEN, QUOTED, ENGLISH],
    )


def test_no_english_word_is_left(open_page: OpenPage, spoken: tuple[str, str]) -> None:
    code, url = spoken
    page = open_page(url, locale=REGIONS[code])
    assert page.evaluate("document.documentElement.lang") == code
    assert english_words(page) == []  # the recorded run
    page.click("#run")
    page.wait_for_function("document.body.dataset.phase === 'done'", timeout=30_000)
    page.locator("#settings button").first.click()
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    expect(page.locator("#settings")).to_contain_text(dictionary()["policy.river.about"])
    page.locator(".lane-upper .tok").nth(9).click()
    assert english_words(page) == []
    page.locator(".lesson-button, #rv-bar header button").first.click()
    assert english_words(page) == []
    page.evaluate("document.querySelector('.tagline').textContent = 'which layers'")
    assert len(english_words(page)) == 1  # it would be found
    assert page.locator(".origin [lang=en]").count() == 1  # a version's name
    assert page.locator(".lane-upper .tok .txt").first.get_attribute("lang") == ""


@pytest.mark.thorough
def test_an_error_of_the_engine_is_introduced(open_page: OpenPage, spoken: tuple[str, str]) -> None:
    code, url = spoken
    page = open_page(url, width=390)
    assert page.evaluate("document.documentElement.lang") == code  # whatever the browser's
    page.fill("#prompt textarea", " ")
    page.click("#run")
    lead = dictionary()["english.says"].partition("{")[0]
    expect(page.locator(".alert")).to_have_text(f"{lead}{EMPTY}")
    expect(page.locator(".alert [lang=en]")).to_have_text(EMPTY)
    assert page.locator("#prompt textarea").get_attribute("lang") == ""
    page.locator("#settings button").first.click()
    page.locator("#resident input").fill("99")
    page.locator("#resident-apply").click()
    expect(page.locator("#resident-said [lang=en]")).to_contain_text("resident_layers is 99")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert Axe().run(page, options={"runOnly": LANGUAGE_RULES}).violations_count == 0
