"""Links and command lines: what comes back is what was asked, and nothing else ever runs."""

from __future__ import annotations

import random
import shlex
import shutil
import subprocess
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

from app.asked import DEFAULTS
from app.command import command, quote, typed_prompt
from app.recipe import LONGEST_PROMPT, read_recipe, recipe_of
from app.recorded import read
from app.shipped import RUNS
from river_core.__main__ import parser
from river_core.records import PromptRecord, RunRecord
from tests.unit.made_records import run

HOSTILE = (
    "plain words",
    'it\'s "two" $(touch pwned) `touch pwned` ; & | > x',
    "-",
    "--help",
    "-1",
    "two\nlines\\",
    "\x1b[201~\ntouch pwned\n",
    "\u202egnp.exe ! !! \u2028",
    "été 日本 🌊",
)


def record(policy: str = "river", prompt: str = "", **settings: Any) -> RunRecord:
    made = run([1, 2, 3])
    return replace(made, header=replace(made.header, settings={"policy": policy, **settings}))


def after_shell(line: str) -> list[str]:
    """The words that a shell makes of the line."""
    shell = shutil.which("bash")
    assert shell is not None
    script = f"python() {{ printf '%s\\0' python \"$@\"; }}\n{line}"
    found = subprocess.run([shell, "-c", script], capture_output=True, check=True, cwd="/")
    return found.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("prompt", HOSTILE)
def test_a_shell_gives_the_words_back(prompt: str) -> None:
    made = record(threshold=-0.5, stop=["-x", prompt], seed=7, options={"exit_layer": 2})
    line, reason = command(made, prompt)
    assert reason == "" and "\x1b" not in line and "\u202e" not in line
    words = after_shell(line)
    assert words[:4] == ["python", "-m", "river_core", "generate"]
    asked = parser().parse_args(words[3:])
    assert asked.prompt == prompt
    assert (asked.threshold, asked.seed, asked.stop) == (-0.5, 7, ["-x", prompt])
    assert asked.options == '{"exit_layer": 2}'


@pytest.mark.parametrize("prompt", HOSTILE[:6])
def test_quoting_is_what_posix_reads(prompt: str) -> None:
    assert shlex.split(quote(prompt)) == [prompt]


def test_a_prompt_of_one_dash_is_given_as_input() -> None:
    line, _ = command(record(), "-")
    assert line.startswith("printf %s - | python ")


def test_shipped_runs_give_their_own_settings_back() -> None:
    for path in RUNS.glob("*.jsonl"):
        for made in read(path):
            prompt = typed_prompt(made.prompt)
            line, _ = command(made, prompt)
            asked = parser().parse_args(after_shell(line)[3:])
            settings = made.header.settings
            assert asked.prompt == prompt and asked.model == made.header.model
            for name in ("policy", "threshold", "max_new_tokens", "seed", "temperature"):
                assert getattr(asked, name) == settings[name]


@pytest.mark.parametrize(
    "made, prompt, words",
    [
        (run([1, 2], forced=True), "a", "given, not chosen"),
        (record(), None, "does not hold the prompt"),
        (record(), "a\0b", "does not hold the prompt"),
        (record("no-such-policy"), "a", "not known to this version"),
        (record(temperature="hot"), "a", "not known to this version"),
    ],
)
def test_where_there_is_no_command_one_sentence_says_why(
    made: RunRecord, prompt: str | None, words: str
) -> None:
    line, reason = command(made, prompt)
    assert line == "" and words in reason


def test_a_threshold_that_was_moved_has_no_command() -> None:
    made = record()
    tokens = (*made.tokens[:2], replace(made.tokens[2], threshold=0.5))
    assert "moved" in command(replace(made, tokens=tokens), "a")[1]


def test_the_typed_prompt_is_read_from_the_chat_template_only() -> None:
    texts = ("<|im_start|>", "user", "\n", "Hi", " you", "<|im_end|>", "\n")
    made = PromptRecord(tuple(range(7)), texts, 1, (), ("b",) * 7, 0.1, True)
    assert typed_prompt(made) == "Hi you"
    assert typed_prompt(replace(made, texts=(*texts[:5], "", ""))) is None
    assert typed_prompt(replace(made, chat=False)) is None


PAIRS = [
    ("river", "backbone", {}),
    ("kv-mask", "state-propagation", {"head": "lens"}),
    ("river", "river", {"exit": "fixed", "exit_layer": 4}),
    ("batch-recompute", "full-quant", {"temperature": 0.7, "seed": 5}),
]


@pytest.mark.parametrize("upper, lower, more", PAIRS)
@pytest.mark.parametrize("prompt", HOSTILE)
def test_a_recipe_comes_back_from_a_link(
    upper: str, lower: str, more: dict[str, Any], prompt: str
) -> None:
    values = {"prompt": prompt, "upper": upper, "lower": lower, "threshold": 0.9875, **more}
    query = dict(parse_qsl(urlencode({**values, "model": "made"})))
    recipe = read_recipe(query, "made")
    assert recipe.values == values
    assert len(recipe.sentences) == 1 and "Press Run" in recipe.sentences[0]


def test_a_recorded_run_has_a_recipe_only_where_the_page_can_ask_for_it() -> None:
    shipped = read(min(RUNS.glob("*.jsonl")))
    query = recipe_of(shipped, "Why?")
    assert query is not None
    recipe = read_recipe(query, "smollm2-135m-packaged")
    assert recipe.values["threshold"] == 0.98 and len(recipe.sentences) == 1
    assert recipe_of(shipped, None) is None
    assert recipe_of(shipped, "x" * (LONGEST_PROMPT + 1)) is None
    odd = replace(shipped[0].header, settings={**shipped[0].header.settings, "top_p": 0.5})
    assert recipe_of([replace(shipped[0], header=odd), shipped[1]], "Why?") is None


@pytest.mark.parametrize(
    "query, kept, words",
    [
        ({"prompt": "a", "upper": "nothing"}, {"prompt": "a"}, "upper, “nothing”"),
        ({"prompt": "a", "threshold": "2"}, {"prompt": "a"}, "threshold, “2”"),
        ({"prompt": "a", "threshold": "nan"}, {"prompt": "a"}, "threshold, “nan”"),
        ({"prompt": "a", "seed": "1" * 400}, {"prompt": "a"}, "seed, “111"),
        ({"prompt": "a", "seed": "١"}, {"prompt": "a"}, "seed, “١”"),
        ({"prompt": "x" * 4001, "seed": "1"}, {"seed": 1}, "prompt, “xxx"),
        ({"prompt": "a", "<b>": "1"}, {"prompt": "a"}, "“<b>” is not known"),
        ({"prompt": "a", "model": "other"}, {"prompt": "a"}, "made with other"),
        ({"upper": "backbone", "head": "lens"}, {"upper": "backbone", "head": "lens"}, "neither"),
        ({"upper": "bad"}, {}, "upper, “bad”"),
    ],
)
def test_what_is_wrong_is_told_and_the_rest_is_kept(
    query: dict[str, str], kept: dict[str, Any], words: str
) -> None:
    recipe = read_recipe(query, "made")
    assert recipe.values == kept
    told = [sentence for sentence in recipe.sentences if words in sentence]
    assert len(told) == 1 and len(told[0]) < 250
    assert ("Press Run" in recipe.sentences[0]) == bool(kept)


def test_other_queries_are_no_recipe() -> None:
    for query in ({}, {"__theme": "dark"}, {"view": "api"}, {"model": "x"}):
        assert read_recipe(query, "made").sentences == ()


def test_any_query_is_read_without_an_error() -> None:
    rng = random.Random(3)
    names = ["prompt", "upper", "threshold", "max_new_tokens", "exit", "exit_layer", "seed", "x"]
    texts = [
        "",
        "-",
        "1",
        "-0",
        ".",
        "e-1",
        "1e-1",
        "9" * 30,
        "river",
        "fixed",
        "\0",
        "\ud800",
        *HOSTILE,
    ]
    for _ in range(2000):
        query = {rng.choice(names): rng.choice(texts) for _ in range(rng.randrange(6))}
        recipe = read_recipe(query, "made")
        assert set(recipe.values) <= set(query)


def test_every_value_of_the_page_can_stand_in_a_link() -> None:
    texts = {name: str(value) for name, value in DEFAULTS.items() if value not in (None, "")}
    found = read_recipe(texts | {"prompt": "Hello"}, "m")
    assert found.values == {name: DEFAULTS[name] for name in texts} | {"prompt": "Hello"}
    assert len(found.sentences) == 1  # "Press Run"
    assert "profile" not in read_recipe({"prompt": "a", "profile": "perhaps"}, "m").values
