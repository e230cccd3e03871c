"""What configurations mean to River: sizes, RoPE tables, stop ids, and what is refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from river_core import families, hub_folder
from river_core.errors import ModelUnavailable, UnsupportedModel

ROOT = Path(families.__file__).parents[1]


def _config(family: str = "llama", **changes: Any) -> Any:
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 4}
    return AutoConfig.for_model(family, **(sizes | {"num_key_value_heads": 2} | changes))


def test_sizes() -> None:
    shape = families.block_shape(_config(rms_norm_eps=1e-5))
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (48, 4, 2, 12)
    assert (shape.ffn, shape.eps) == (80, 1e-5)
    assert families.block_shape(_config(head_dim=32)).head_dim == 32


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "already quantised"),
        ({"auto_map": {"AutoConfig": "x.Y"}}, "own code"),
        ({"num_key_value_heads": 3}, "4 query heads over 3"),
        ({"head_dim": 11}, "11 values"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"sliding_window": 16}, "sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ],
)
def test_what_the_block_lacks_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    config = _config()
    for name, value in changes.items():
        setattr(config, name, value)
    with pytest.raises(UnsupportedModel) as caught:
        families.block_shape(config)
    assert words in str(caught.value) and str(caught.value).endswith(".")


def test_another_family_is_refused_with_the_list() -> None:
    assert families.supported() == ("llama", "mistral", "qwen2", "qwen3")
    with pytest.raises(UnsupportedModel, match=r"'gemma3'.*type llama, mistral, qwen2, qwen3"):
        families.block_shape(SimpleNamespace(model_type="gemma3"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "family, changes, expected",
    [
        ("llama", {}, (False, False, None)),
        ("mistral", {"sliding_window": None}, (False, False, None)),
        ("mistral", {"sliding_window": 16}, (False, False, 16)),
        ("qwen2", {"sliding_window": 16}, (True, False, None)),  # transformers ignores it, too
        ("qwen3", {"head_dim": 32}, (False, True, None)),
    ],
)
def test_options_of_each_family(
    family: str, changes: dict[str, Any], expected: tuple[bool, bool, int | None]
) -> None:
    shape = families.block_shape(_config(family, **changes))
    assert (shape.qkv_bias, shape.qk_norm, shape.window) == expected
    assert shape.options == () or len(shape.options) == 1
    assert shape.within(16).window is None and shape.within(17).window == expected[2]


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_windows_of_some_layers_are_refused(family: str) -> None:
    config = _config(family, use_sliding_window=True, max_window_layers=2)
    with pytest.raises(UnsupportedModel, match="use_sliding_window"):
        families.block_shape(config)


@pytest.mark.parametrize(
    "content, error, words",
    [
        (None, ModelUnavailable, "has no config.json"),
        ("{", ModelUnavailable, "cannot be read"),
        ("[]", ModelUnavailable, "not a JSON object"),
        ('{"model_type": "mamba"}', UnsupportedModel, "'mamba'"),
        ("{}", UnsupportedModel, "None"),
        ('{"model_type": "llama", "auto_map": {"a": "b"}}', UnsupportedModel, "own code"),
        ('{"model_type": "llama", "hidden_size": "x"}', ModelUnavailable, "cannot be used"),
    ],
)
def test_reading_a_configuration(
    tmp_path: Path, content: str | None, error: type[Exception], words: str
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(error, match=words):
        hub_folder.read_config(tmp_path)


def test_reading_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelUnavailable, match="no tokenizer"):
        hub_folder.read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelUnavailable, match="no tokenizer"):
        hub_folder.read_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["x.Y"]}}')
    with pytest.raises(UnsupportedModel, match="own code"):
        hub_folder.read_tokenizer(tmp_path)


ROPE = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("family", families.supported())
@pytest.mark.parametrize("kind", ROPE)
def test_rope_tables_are_those_of_the_model(kind: str, family: str) -> None:
    rope = {"rope_type": kind, "rope_theta": 5000.0, **ROPE[kind]}
    sizes = {"max_position_embeddings": 256, "num_hidden_layers": 1, "head_dim": 12}
    sizes |= {"vocab_size": 100, "pad_token_id": None}
    config = _config(family, rope_parameters=rope, **sizes)
    cos, sin = families.rope_tables(config, 100)
    assert cos.shape == sin.shape == (100, 12)
    assert cos.dtype == sin.dtype == torch.float32 and cos.is_contiguous()
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    model = AutoModelForCausalLM.from_config(config)
    model.model.rotary_emb.register_forward_hook(lambda *call: seen.append(call[2]))
    with torch.no_grad():
        model(torch.arange(100).unsqueeze(0))
    assert torch.equal(seen[0][0][0], cos) and torch.equal(seen[0][1][0], sin)
    plain = families.rope_tables(_config(rope_parameters=rope | {"rope_type": "default"}), 100)
    assert torch.allclose(plain[0], cos) is (kind == "default")


def test_rope_that_changes_with_the_length_is_refused() -> None:
    config = _config(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    with pytest.raises(UnsupportedModel, match="'dynamic'"):
        families.rope_tables(config, 10)


@pytest.mark.parametrize(
    "generation, config, tokenizer, expected",
    [
        (None, 2, 2, (2,)),
        (7, 2, None, (7, 2)),
        ([128001, 128008, 128009], 128001, 128009, (128001, 128008, 128009)),
        (None, [1, 106], 50, (1, 106, 50)),
        (None, None, None, ()),
        (0, None, None, (0,)),
    ],
)
def test_every_stop_id_is_found(
    tmp_path: Path, generation: Any, config: Any, tokenizer: Any, expected: tuple[int, ...]
) -> None:
    if generation is not None:
        text = json.dumps({"eos_token_id": generation})
        (tmp_path / "generation_config.json").write_text(text)
    config, tokenizer = (SimpleNamespace(eos_token_id=ids) for ids in (config, tokenizer))
    assert hub_folder.eos_ids(tmp_path, config, tokenizer) == expected


def test_advice_is_silenced_only_inside() -> None:
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    with hub_folder._quiet():
        assert not logging.is_progress_bar_enabled()
        assert logging.get_verbosity() > before[0]
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_importing_stays_cheap() -> None:
    code = "import sys, river_core.sources; print('transformers' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
