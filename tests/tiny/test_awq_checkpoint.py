"""A river from an AWQ checkpoint equals transformers' layers with its weights and norms."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import river_core
from river_core.awq_checkpoint import unpacked
from river_core.errors import ModelUnavailable, RiverError, SettingsError
from river_core.settings import QuantSpec
from tests.tiny.awq_checkpoints import OwnNormsReference, Written, packed, write
from tests.tiny.tiny_models import GEMMA, LONGROPE, TinyConfig, prompt, save

SIZES = {"hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "ffn": 256, "layers": 3}
LONG = LONGROPE | {name: LONGROPE[name] * 2 for name in ("short_factor", "long_factor")}
PHI = {"rope_parameters": LONG, "original_max_position_embeddings": 256}
GEMMA_3 = GEMMA | {"layer_types": GEMMA["layer_types"][:3]}
CONFIGS = [
    TinyConfig("awq-llama", **SIZES, tied=False),
    TinyConfig("awq-mha", **SIZES | {"kv_heads": 4}, seed=2),
    TinyConfig("awq-qwen2", **SIZES, seed=3, family="qwen2"),
    TinyConfig("awq-qwen3", **SIZES, seed=4, family="qwen3"),
    TinyConfig("awq-phi3", **SIZES, seed=5, family="phi3", window=11, options=PHI),
    TinyConfig("awq-gemma3", **SIZES, seed=6, family="gemma3_text", window=9, options=GEMMA_3),
]
SCHEDULE = [3, 1, 2, 1, 3, 2, 1]


@dataclass
class Made:
    config: TinyConfig
    reference: Any
    folder: Path
    awq: Written

    def load(self, checkpoint: Path | None = None, **settings: Any) -> Any:
        name = str(checkpoint or self.awq.folder)
        river = QuantSpec(4, 128, "awq", {"checkpoint": name})
        return river_core.load(self.folder, dtype="float32", **{"river": river} | settings)


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TinyConfig], Made]:
    made: dict[str, Made] = {}

    def get(config: TinyConfig) -> Made:
        if config.name not in made:
            folder = tmp_path_factory.mktemp(config.name)
            reference = save(config, folder / "own")
            made[config.name] = Made(
                config, reference, folder / "own", write(reference, folder / "awq")
            )
        return made[config.name]

    return get


@pytest.fixture
def llama(make: Callable[[TinyConfig], Made]) -> Made:
    return make(CONFIGS[0])


@pytest.fixture
def copy(llama: Made, tmp_path: Path) -> Callable[..., Path]:
    """The checkpoint once more, with something else in it."""

    def get(config: Any = None, quantisation: Any = None, drop: str = "", **more: Any) -> Path:
        folder = tmp_path / "copy"
        folder.mkdir()
        said = json.loads((llama.awq.folder / "config.json").read_text())
        said |= config or {}
        if quantisation is not None:
            said["quantization_config"] |= quantisation
        said = {name: value for name, value in said.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(said))
        tensors = load_file(llama.awq.folder / "model.safetensors") | more
        save_file({n: t for n, t in tensors.items() if n != drop}, folder / "model.safetensors")
        return folder

    return get


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_mixed_exits_equal_the_slow_reference(make, config):
    """Tokens and logits, with exits at every depth: weights, norms, order of the rows."""
    made = make(config)
    slow = OwnNormsReference(made.reference, made.awq.layers)
    expected, logits = slow.greedy(prompt(config), SCHEDULE)
    model = made.load()
    run = river_core.teacher_forced(
        model,
        prompt(config),
        expected,
        policy="river",
        exit="schedule",
        options={"exit_layers": SCHEDULE},
    )
    assert [t.exit_layer for t in run.tokens] == SCHEDULE
    assert (run.logits - logits).abs().max() < 2e-4
    plain = OwnNormsReference(made.reference, [{} for _ in made.awq.layers])
    assert (plain.greedy(prompt(config), SCHEDULE)[1] - logits).abs().max() > 1e-2


def test_packed_numbers_are_read_back():
    codes = torch.randint(0, 16, (5, 24), generator=torch.Generator().manual_seed(1))
    assert torch.equal(unpacked(packed(codes)), codes.to(torch.uint8))


def test_norms_are_the_checkpoints_and_the_rest_is_shared(make):
    made = make(CONFIGS[2])
    model = made.load()
    own, twin = model.layer(2), model.twin(2)
    stored = load_file(made.awq.folder / "model.safetensors")
    assert torch.equal(twin.attn_norm, stored["model.layers.1.input_layernorm.weight"])
    assert torch.equal(twin.ffn_norm, stored["model.layers.1.post_attention_layernorm.weight"])
    assert not torch.allclose(twin.attn_norm, own.attn_norm)
    assert twin.qkv_bias is own.qkv_bias


def test_the_river_is_named(llama):
    model = llama.load()
    name = str(llama.awq.folder)
    assert model.info.quant.label == f"awq-4bit-g128:{name}"
    assert QuantSpec.parse(model.info.quant.label) == QuantSpec.parse(f"awq:{name}")
    assert model.info.quant.shown == f"awq-4bit-g128:{llama.awq.folder.name}"
    assert any(model.info.quant.shown in note for note in model.info.notes)
    other = QuantSpec(4, 128, "awq", {"checkpoint": "other/model"})
    stems = {model.info.quant.stem, other.stem, QuantSpec(4, 128, "awq").stem}
    assert len(stems) == 3 and not any("/" in stem or ":" in stem for stem in stems)
    assert model.info.calibration.path.parent.name == "rivers"


def test_eviction_and_full_quantization(llama):
    """The backbone comes back with its own norms; the twin below the entry layer is read too."""
    model, ids = llama.load(), prompt(llama.config)
    quiet = {"max_new_tokens": 6, "full_trace": False}
    before = river_core.generate(model, ids, policy="backbone", **quiet).tokens
    kept = {n: dict(model.layer(n).small) for n in (1, 2, 3)}
    model.set_resident(1)
    river_core.generate(model, ids, policy="river", **quiet)
    model.set_resident(3)
    again = river_core.generate(model, ids, policy="backbone", **quiet).tokens
    assert [t.token_id for t in before] == [t.token_id for t in again]
    for n, small in kept.items():
        assert all(torch.equal(t, model.layer(n).small[name]) for name, t in small.items())
    run = river_core.generate(model, ids, policy="full-quant", **quiet)
    assert {t.exit_layer for t in run.tokens} == {0}
    expected = OwnNormsReference(llama.reference, llama.awq.layers).greedy(ids, [0] * 6)[0]
    assert [t.token_id for t in run.tokens] == expected


@pytest.mark.parametrize(
    "quantisation, message",
    [
        ({"version": "gemv"}, r"layout 'gemv'; only AutoAWQ's 'gemm'"),
        ({"version": "marlin"}, r"layout 'marlin'"),
        ({"zero_point": False}, r"layout 'gemm' without zero points"),
        ({"bits": 8}, r"has 8 bits; only AWQ checkpoints of 4 bits"),
        ({"group_size": -1}, r"group_size -1, not 128"),
        ({"group_size": 64}, r"group_size 64, not 128; give it as 'awq-4bit-g64:"),
        ({"quant_method": "gptq"}, r"is no AWQ checkpoint"),
    ],
)
def test_other_layouts_are_one_sentence(llama, copy, quantisation, message):
    with pytest.raises(SettingsError, match=message) as caught:
        llama.load(copy(quantisation=quantisation))
    assert str(caught.value).count(". ") <= 1  # file names aside, one sentence


def test_a_plain_model_is_no_awq_checkpoint(llama):
    with pytest.raises(SettingsError, match=r"is no AWQ checkpoint"):
        llama.load(llama.folder)


@pytest.mark.parametrize(
    "key, value",
    [("hidden_size", 256), ("num_hidden_layers", 4), ("model_type", "qwen2"), ("head_dim", 16)],
)
def test_other_sizes_are_another_model(llama, copy, key, value):
    with pytest.raises(SettingsError, match=f"another model: its {key} is {value!r}"):
        llama.load(copy(config={key: value}))


def test_other_weights_of_the_same_size_are_another_model(llama, make, tmp_path):
    other = save(TinyConfig("other", **SIZES, tied=False, seed=77), tmp_path / "other")
    written = write(other, tmp_path / "awq")
    with pytest.raises(SettingsError, match=r"of another model: qkv of layer 2 is 1\.\d+ away"):
        llama.load(written.folder)


def test_norms_of_another_model_are_another_model(llama, copy):
    """Scales that are not in the norm: every number fits but the product does not."""
    name = "model.layers.1.input_layernorm.weight"
    with pytest.raises(SettingsError, match=r"layer 2"):
        llama.load(copy(**{name: torch.full((128,), 9.0)}))


def test_values_in_other_units_are_refused(make, tmp_path):
    """Scales of o in v: the backbone would read such values from the shared cache."""
    made = make(CONFIGS[1])
    written = write(made.reference, tmp_path / "awq", fold_values=True)
    with pytest.raises(SettingsError, match=r"keys or values of layer 2.*shared cache.*wrong"):
        made.load(written.folder)


def test_missing_and_misplaced_tensors_are_one_sentence(llama, copy):
    missing = "model.layers.2.mlp.down_proj.qzeros"
    with pytest.raises(ModelUnavailable, match=f"lack {missing}"):
        llama.load(copy(drop=missing))


def test_a_linear_in_16_bits_is_refused(llama, copy):
    base = "model.layers.1.mlp.down_proj"
    more = {f"{base}.weight": torch.zeros(128, 256)}
    with pytest.raises(SettingsError, match=f"leaves {base} in 16 bits"):
        llama.load(copy(drop=f"{base}.qweight", **more))


def test_a_matrix_of_another_size_is_refused(llama, copy):
    name = "model.layers.1.mlp.up_proj.qweight"
    with pytest.raises(ModelUnavailable, match=r"up_proj.qweight .* the folder mixes two models"):
        llama.load(copy(**{name: torch.zeros(128, 8, dtype=torch.int32)}))


def test_names_that_lead_nowhere(llama, tmp_path, monkeypatch):
    with pytest.raises(ModelUnavailable, match="does not exist"):
        llama.load(tmp_path / "nowhere")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    river = QuantSpec.parse("awq:some-owner/no-such-model-awq")
    with pytest.raises(RiverError, match="some-owner/no-such-model-awq is not downloaded yet"):
        llama.load(river=river)
