"""Folders as transformers reads them: configuration, tokenizer, stop ids, one sentence each."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.utils import logging

from river_core import hub_folder
from river_core.errors import ModelUnavailable, UnsupportedModel


@pytest.mark.parametrize(
    "content, error, words",
    [
        (None, ModelUnavailable, "has no config.json"),
        ("{", ModelUnavailable, "cannot be read"),
        ("[]", ModelUnavailable, "not a JSON object"),
        ('{"model_type": "mamba"}', UnsupportedModel, "'mamba'"),
        ("{}", UnsupportedModel, "None"),
        ('{"model_type": "own", "auto_map": {"a": "b"}}', UnsupportedModel, "never run"),
        (
            '{"model_type": "llama", "quantization_config": {"quant_method": "awq"}}',
            UnsupportedModel,
            "'awq'",
        ),
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
