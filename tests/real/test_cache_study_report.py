"""docs/cache-study.jsonl is what the command writes: one prompt's lines, computed again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from river_core import cache_study
from river_core.cells import Setting
from river_core.cli_study import BEGIN, END
from river_core.kv_error import CacheReference
from river_core.sweep import bundled_prompts

STEM = Path(__file__).parents[2] / "docs" / "cache-study"


@pytest.fixture(scope="module")
def study():
    text = STEM.with_suffix(".jsonl").read_text(encoding="utf-8")
    head, *lines = [json.loads(line) for line in text.splitlines()]
    return head, lines


def test_the_report_is_as_large_as_it_says(study):
    head, lines = study
    assert head["dtype"] == "float32"
    assert head["tokens_per_prompt"] >= 48
    assert head["prompts"] == bundled_prompts()[:4]
    points = {s.exit_layer or s.threshold for s in cache_study.pooled(lines)}
    assert points == {2, 16, head["default_threshold"]}
    kinds = ["trace", *["cache"] * 3, "safe"]
    assert [line["type"] for line in lines] == kinds * 4


def test_the_tables_in_the_document_are_the_files(study):
    text = STEM.with_suffix(".md").read_text(encoding="utf-8")
    assert text.split(BEGIN)[1].split(END)[0].strip() == "\n".join(cache_study.report(*study))


def test_one_line_again(study, load_packaged):
    head, lines = study
    model, setting = load_packaged("float32"), Setting("river", exit_layer=16, prefill="full")
    stored = next(x for x in lines if x.get("exit_layer") == 16 and x["prompt"] == 0)
    tokens = head["tokens_per_prompt"]
    reference = CacheReference.of(model, head["prompts"][0], max_new_tokens=tokens)
    again = cache_study.cache_line(model, reference, setting)
    assert [c[:2] + c[4:] for c in again["cells"]] == [c[:2] + c[4:] for c in stored["cells"]]
    for ours, theirs in zip(again["cells"], stored["cells"], strict=True):
        assert ours[2:4] == pytest.approx(theirs[2:4], abs=2e-4)
    trace = cache_study.trace_line(model, reference)["similarity"]
    assert trace == pytest.approx(lines[0]["similarity"], abs=2e-4)


def test_what_the_text_says(study):
    """The sentences of the page, as inequalities."""
    head, lines = study
    found = cache_study.pooled(lines)
    two, sixteen, own = found.values()
    for p, value in ((two, 0.970), (sixteen, 0.981)):
        assert p.skipped[1] == pytest.approx(value, abs=6e-4)
        assert min(key for key, _ in p.layers.values()) > 0.99
    assert two.skipped[2] == pytest.approx(0.959, abs=6e-4)
    assert max(value for layer, (_, value) in two.layers.items() if layer > 2) == two.layers[3][1]
    assert [p.pairs for p in (two, sixteen, own)] == [188, 188, 107]
    for p in found.values():
        assert abs(p.r) < 1.96 / p.pairs**0.5
    assert abs(own.rho) < 1.96 / 188**0.5
    similarity = cache_study.mean_similarity(lines)
    assert min(similarity[2:20]) > 0.95
    assert sorted(range(3, 31), key=lambda layer: similarity[layer - 1])[:2] == [30, 25]
    safe = cache_study.Safe.of(head, lines)
    assert (safe.counts[1], sum(safe.counts.values()), safe.stable_counts[30]) == (160, 188, 16)
    assert [round(x, 1) for x in (safe.mean, safe.stable_mean, safe.maximum)] == [3.7, 6.5, 30.0]
    assert safe.byte_bound == pytest.approx(1.99, abs=6e-3)
