"""Bad input to the API: one clear sentence each, and the next request works."""

from __future__ import annotations

import math

import pytest

import river_core
from river_core.errors import CacheFull, KernelUnavailable, ModelUnavailable, SettingsError


def refused(error, words, call, *arguments, **settings):
    with pytest.raises(error, match=words) as caught:
        call(*arguments, **settings)
    text = str(caught.value)
    assert text.endswith(".")
    assert "\n" not in text
    assert len(text) < 400


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "prompt is empty"),
        ("  \n\t", "prompt is empty"),
        ([], "prompt is empty"),
        ("hello", "no tokenizer"),
        ([{"role": "user", "content": "x"}], "no tokenizer"),
        ([{"role": "user"}], "needs 'role' and 'content'"),
        ([{"role": "user", "content": 3}], "needs 'role' and 'content'"),
        ([1, 2, -1], "token id -1 is outside"),
        ([1, 2, 97], "token id 97 is outside"),
        ([1, 2.5], "must be a string, a list"),
        ([True, 1], "must be a string, a list"),
        (b"bytes", "must be a string, a list"),
        (None, "must be a string, a list"),
        (7, "must be a string, a list"),
    ],
    ids=repr,
)
def test_bad_prompts(one_tiny, prompt, words):
    model = one_tiny.load()
    refused(SettingsError, words, river_core.generate, model, prompt)
    assert len(river_core.generate(model, one_tiny.prompt, max_new_tokens=2).tokens) == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threshold": math.nan}, "threshold is nan"),
        ({"threshold": 5}, "threshold is 5"),
        ({"policy": "none"}, "unknown policy 'none'"),
        ({"tempreture": 1}, "unknown setting 'tempreture'"),
        ({"exit": "schedule"}, "needs options"),
        ({"exit": "fixed", "options": {"exit_layer": 99}}, "exit layer 99"),
        ({"policy": "backbone", "exit": "fixed"}, "cannot use exit='fixed'"),
    ],
    ids=str,
)
def test_bad_settings(one_tiny, settings, words):
    model = one_tiny.load()
    for call in (river_core.generate, river_core.stream):
        refused(SettingsError, words, call, model, one_tiny.prompt, **settings)


def test_more_tokens_than_capacity(one_tiny):
    model = one_tiny.load()
    room = model.capacity - len(one_tiny.prompt)
    words = rf"7 tokens and {room + 1} new ones .* holds {model.capacity}"
    call = river_core.stream
    refused(CacheFull, words, call, model, one_tiny.prompt, max_new_tokens=room + 1)
    long = [1] * (model.capacity + 1)
    refused(CacheFull, f"{len(long)} tokens", call, model, long, max_new_tokens=1)
    exact = [1] * (model.capacity - 3)
    assert len(river_core.generate(model, exact, max_new_tokens=3, threshold=0.3).tokens) == 3


def test_bad_forced_tokens(one_tiny):
    model = one_tiny.load()
    for ids, words in (([], "token_ids is empty"), ([500], "token id 500"), ("ab", "token id 'a'")):
        refused(SettingsError, words, river_core.teacher_forced, model, one_tiny.prompt, ids)


def test_bad_control():
    control = river_core.Control()
    for value in (math.nan, 2, "high"):
        with pytest.raises(SettingsError, match="threshold"):
            control.threshold = value
    assert control.threshold is None


def test_bad_loads(one_tiny, tmp_path):
    folder = str(one_tiny.folder)
    refused(SettingsError, "capacity is 9999", river_core.load, folder, capacity=9999)
    refused(SettingsError, "entry_layer is 50", river_core.load, folder, entry_layer=50)
    refused(SettingsError, "does not know", river_core.load, folder, quality=1)
    refused(ModelUnavailable, "config.json", river_core.load, str(tmp_path))
    refused(ModelUnavailable, "no-such-model", river_core.load, "no-such-model")
    spec = river_core.QuantSpec(group_size=128)
    if one_tiny.config.hidden % 128:
        refused(SettingsError, "128 does not divide", river_core.load, folder, river=spec)


def test_cuda_without_a_gpu(one_tiny):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    refused(KernelUnavailable, "no CUDA GPU", river_core.load, str(one_tiny.folder), device="cuda")


def test_weights_that_do_not_fit_their_configuration(one_tiny, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    def changed(name, change):
        folder = tmp_path / name
        shutil.copytree(one_tiny.folder, folder)
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return str(folder)

    key = "model.layers.1.mlp.down_proj.weight"
    missing = changed("missing", lambda t: t.pop(key))
    refused(ModelUnavailable, f"lack {key}", river_core.load, missing)
    extra = changed("extra", lambda t: t.update({"model.vision.weight": t[key].clone()}))
    refused(ModelUnavailable, "model.vision.weight", river_core.load, extra)
    wrong = changed("wrong", lambda t: t.update({key: t[key][:8].clone()}))
    refused(ModelUnavailable, "mixes two models", river_core.load, wrong)
    cut = tmp_path / "cut"
    shutil.copytree(one_tiny.folder, cut)
    whole = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refused(ModelUnavailable, "damaged", river_core.load, str(cut))
