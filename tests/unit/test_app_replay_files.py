"""Replay files from anywhere: one sentence of refusal, or a view that can be drawn."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from app.recorded import parse, view
from app.views.snapshot import pack
from river_core.errors import RecordError
from tests.unit.made_records import run

LINES = [
    *run([1, 2, 3]).lines(),
    '{"type":"full_trace","similarities":[[0.1,0.2,0.3,0.4],[0.1,0.2,0.3,0.4],[0.1,0.2,0.3,1]]}',
]
OTHER = list(run([1, 2, 4]).lines())
TEXT = "\n".join([*LINES, *OTHER])
WRONG: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 3, 4, 5, 2**53 + 1, 10**400, -0.5, 1.5, 1e-300, 1e300, 5e-324),
    *(float("nan"), float("inf"), "", "b", "bbbb", "x" * 5000, "</script>", "\ud800", "\x00", "00"),
    *([], [[]], [1], [0.1] * 4, ["b"], {}, {"a": 1}, {"0": "zz"}, {"a": {"a": {"a": {"a": 1}}}}),
)


def changed(kind: str, **values: Any) -> str:
    lines = [json.loads(line) for line in TEXT.split("\n")]
    for line in lines:
        if line["type"] == kind:
            line.update(values)
    return "\n".join(map(json.dumps, lines))


def test_the_unchanged_file_is_shown() -> None:
    assert len(parse(TEXT, "made")) == 2


@pytest.mark.parametrize(
    "text, reason",
    [
        (changed("token", similarities=[0.1, 1.2]), "similarity that is not from -1 to 1"),
        (changed("token", similarities=[0.1, 0.2, 0.3]), "3 similarities"),
        (changed("token", kv_source="bbxx"), "letter"),
        (changed("token", path="bb"), "path of 4 letters"),
        (changed("token", path="bbb?"), "letter"),
        (changed("token", forced="no"), "forced"),
        (changed("token", text="\ud800"), "token 0 has no text"),
        (changed("update", position=5), "position that is not in the cache"),
        (changed("update", layers=[5]), "layers that are not in the model"),
        (changed("update", layers=[2, 2]), "layers that are not in the model"),
        (changed("update", source="bb"), "no source letter"),
        (changed("update", pass_index=4), "pass_index that is not in the run"),
        (changed("full_trace", similarities=[[0.1] * 4]), "one row for each token"),
        (changed("full_trace", similarities=[[0.1] * 3] * 3), "not its layers"),
        (changed("prompt", kv_source=["bbrr"] * 2), "one kv_source of 4 letters for each"),
        (changed("prompt", raw={"9": "ff"}), "raw bytes"),
        (changed("header", settings={"a": [[[[1]]]]}), "settings"),
        (changed("header", seed=2**70), "seed"),
        (changed("summary", tokens_per_second=1e-300), "rate"),
        ("\n".join([*LINES, LINES[-1], *OTHER]), "more than one full_trace"),
        ("\n".join([*LINES[:3], *LINES[4:], *OTHER]), "token 1 is missing"),
        ("\n".join([*LINES[:3], LINES[2], *LINES[3:]]), "token 1 is missing, doubled"),
        ("\n".join([LINES[0], *LINES[2:]]), "0 prompt lines"),
        ("\n".join([*LINES, *(line.replace("bbrr", "bbr") for line in OTHER)]), "kv_source"),
        (LINES[0].replace('"settings":{', '"settings":{"a":' + "[" * 5000), "not"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(text: str, reason: str) -> None:
    with pytest.raises(RecordError, match=reason) as caught:
        parse(text, "made")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 450


def test_two_records_of_different_models_are_refused() -> None:
    other = [line.replace('"num_layers":4', '"num_layers":5') for line in OTHER]
    shorter = [other[0], *(line.replace("bbrr", "bbrrr") for line in other[1:])]
    with pytest.raises(RecordError, match="4 and 5 layers"):
        parse("\n".join([*LINES, *shorter]), "made")


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, item in inside:
        found.append((*at, key))
        if isinstance(item, dict | list):
            found += places(item, (*at, key))
    return found


def mutated(rng: random.Random) -> str:
    lines = [json.loads(line) for line in TEXT.split("\n")]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        *way, last = rng.choice(places(lines))
        target: Any = lines
        for key in way:
            target = target[key]
        deed = rng.random()
        if deed < 0.7:
            target[last] = copy.deepcopy(rng.choice(WRONG))
        elif deed < 0.85:
            del target[last]
        elif isinstance(target, list):
            target.append(copy.deepcopy(target[last]))
        else:
            target[f"{last}_"] = 1
        if not lines:
            break
    text = "\n".join(map(json.dumps, lines))
    if rng.random() < 0.1:
        cut = rng.randrange(len(text) + 1)
        text = text[:cut] + rng.choice(("", "\n", "}", "\x00", "[" * 2000)) + text[cut + 1 :]
    return text


@pytest.mark.parametrize("seed", range(8))
def test_any_change_of_a_file_is_refused_in_a_sentence_or_can_be_drawn(seed: int) -> None:
    rng, refused = random.Random(seed), list[str]()
    for _ in range(250):
        text = mutated(rng)
        try:
            records = parse(text, "made")
        except RecordError as error:
            refused.append(str(error))
            continue
        drawn = view(records, "made")
        json.dumps(drawn, allow_nan=False, ensure_ascii=False).encode("utf-8")
        assert pack(drawn)
    assert 100 < len(refused) < 250
    assert [r for r in refused if "\n" in r or not r.endswith((".", "…"))] == []
