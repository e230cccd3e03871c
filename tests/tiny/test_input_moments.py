"""What the bundled text gives a linear is what transformers' own layers give it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import river_core
from river_core import banks, loading
from river_core.errors import SettingsError
from river_core.input_moments import SEQUENCE, TOKENS, bundled_text, sequences
from river_core.settings import DEFAULT_RIVER, QuantSpec
from tests.tiny.words import TEXT, Words

PARTS = {
    "qkv": ("q_proj", "qkv_proj"),
    "out": ("o_proj",),
    "gate_up": ("gate_proj", "gate_up_proj"),
    "down": ("down_proj",),
}
GPTQ = QuantSpec(method="gptq")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Load a tiny model with that tokenizer and a text of two passages."""
    monkeypatch.setattr("river_core.input_moments.bundled_text", lambda: TEXT)

    def get(tiny: Any, **settings: Any) -> Any:
        words = Words(tiny.config.vocab)
        monkeypatch.setattr(loading._Loader, "_tokenizer", lambda self: words)
        settings = {"river": GPTQ, "dtype": "float32"} | settings
        model = river_core.load(tiny.folder, **settings)
        model.tokenizer = None
        return model

    return get


@pytest.mark.few
def test_moments_are_those_of_transformers(tiny, load, monkeypatch):
    """The sums over all tokens of x x^T in front of each linear."""
    seen: dict[tuple[int, str], torch.Tensor] = {}
    real = banks.quantize_fused
    order: list[str] = []

    def spy(parts, spec, moments):
        order.append("")
        seen[len(order) - 1] = moments
        return real(parts, spec, moments)

    monkeypatch.setattr(banks, "quantize_fused", spy)
    monkeypatch.setenv("RIVER_CACHE", str(tiny.folder / "fresh"))
    load(tiny)
    ids = sequences(Words(tiny.config.vocab))
    inputs: dict[tuple[int, str], list[torch.Tensor]] = {}
    hooks = []
    for n, layer in enumerate(tiny.reference.model.layers, 1):
        for name, kinds in PARTS.items():
            module = next(m for key, m in layer.named_modules() if key.split(".")[-1] in kinds)
            keep = inputs.setdefault((n, name), [])
            hooks.append(module.register_forward_pre_hook(lambda m, a, k=keep: k.append(a[0][0])))
    with torch.no_grad():
        for passage in ids:
            tiny.reference(torch.tensor([passage]))
    for hook in hooks:
        hook.remove()
    wanted = [(n, name) for n in range(2, tiny.config.layers + 1) for name in PARTS]
    assert len(seen) == len(wanted)
    for key, moments in zip(wanted, seen.values(), strict=True):
        x = torch.cat(inputs[key])
        expected = x.T @ x / len(x)
        assert torch.allclose(moments, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def rivers(model: Any) -> list[torch.Tensor]:
    return [linear.dense() for w in model.river if w is not None for linear in w.linears.values()]


def test_a_second_load_reads_what_the_first_stored(one_tiny, load, tmp_path, monkeypatch):
    monkeypatch.setenv("RIVER_CACHE", str(tmp_path))
    first = load(one_tiny)
    monkeypatch.setattr(loading._Loader, "_text", None)  # not asked for again
    again = load(one_tiny)
    assert all(torch.equal(a, b) for a, b in zip(rivers(first), rivers(again), strict=True))
    files = sorted((tmp_path / "rivers").glob("*.safetensors"))
    assert len(files) == one_tiny.config.layers - 1


def test_a_broken_build_goes_on_with_the_same_result(one_tiny, load, tmp_path, monkeypatch):
    """Also from a later entry layer, and with layers that are not resident."""
    monkeypatch.setenv("RIVER_CACHE", str(tmp_path))
    first = load(one_tiny)
    files = sorted((tmp_path / "rivers").glob("*.safetensors"), key=lambda p: p.stat().st_mtime)
    files[2].unlink()
    again = load(one_tiny, resident_layers=1)
    assert all(torch.equal(a, b) for a, b in zip(rivers(first), rivers(again), strict=True))
    files[0].unlink()
    later = load(one_tiny, entry_layer=3)
    assert all(torch.equal(a, b) for a, b in zip(rivers(first)[4:], rivers(later), strict=True))


def test_another_text_makes_another_river(one_tiny, load, tmp_path, monkeypatch):
    monkeypatch.setenv("RIVER_CACHE", str(tmp_path))
    load(one_tiny)
    monkeypatch.setattr(banks, "TEXT", "text-0")
    load(one_tiny)
    files = list((tmp_path / "rivers").glob("*.safetensors"))
    assert len(files) == 2 * (one_tiny.config.layers - 1)


def test_full_quantization_builds_the_layers_below(one_tiny, load):
    model = load(one_tiny)
    run = river_core.generate(model, one_tiny.prompt, policy="full-quant", max_new_tokens=3)
    assert {t.exit_layer for t in run.tokens} == {0}


def test_the_default_looks_at_inputs_where_there_is_a_tokenizer(
    one_tiny, load, tmp_path, monkeypatch
):
    monkeypatch.setenv("RIVER_CACHE", str(tmp_path))
    assert river_core.load(one_tiny.folder).info.quant == QuantSpec(method="hqq")
    monkeypatch.setattr(loading, "has_tokenizer", lambda folder: True)
    assert load(one_tiny, river=None).info.quant == DEFAULT_RIVER == GPTQ
    assert load(one_tiny, river=QuantSpec()).info.quant == QuantSpec(method="hqq")


def test_a_model_without_a_tokenizer_is_refused(one_tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("RIVER_CACHE", str(tmp_path))
    with pytest.raises(SettingsError, match=r"'gptq' runs a text through .* use method 'hqq'"):
        river_core.load(one_tiny.folder, river=GPTQ)


def test_a_chat_template_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("river_core.input_moments.bundled_text", lambda: [("a b", "c")])
    ids = [Words(500)(word)["input_ids"][0] for word in ("user", "a", "b", "assistant", "c")]
    assert sequences(Words(500, "a template")) == [ids]
    assert sequences(Words(500)) == [[ids[1], ids[2], ids[4]]]


class Characters(Words):
    """A character is a number."""

    def __init__(self) -> None:
        super().__init__(0)

    def __call__(
        self, text: str, add_special_tokens: bool = True, **_: Any
    ) -> dict[str, list[int]]:
        return {"input_ids": list(range(len(text)))}


# A word of each report prompt that says what it is about; none of them is in the text.
SUBJECTS = ("rain", "lighthouse", "bottle", "virus", "bacteri", "soup", "python", "roman", "train ")


def test_the_bundled_text_shares_no_subject_with_the_reports_prompts() -> None:
    from river_core.sweep import bundled_prompts

    for subject in SUBJECTS:
        assert any(subject in f"{prompt} ".lower() for prompt in bundled_prompts()), subject
        for prompt, _ in bundled_text():
            assert f" {subject}" not in f" {prompt}".lower(), (subject, prompt)


def test_the_bundled_text() -> None:
    """Prompts of ours and what the packaged model answered; none is a report's prompt."""
    from river_core.sweep import bundled_prompts

    text = bundled_text()
    assert len(text) >= 60 and all(p.strip() and answer.strip() for p, answer in text)
    assert not {prompt for prompt, _ in text} & set(bundled_prompts())
    path = Path(river_core.__file__).parent / "data" / "activations.json"
    assert "SmolLM2-135M-Instruct" in json.loads(path.read_text(encoding="utf-8"))["about"]
    ids = sequences(Characters())
    assert TOKENS <= sum(map(len, ids)) < TOKENS + SEQUENCE
    assert max(map(len, ids)) <= SEQUENCE
