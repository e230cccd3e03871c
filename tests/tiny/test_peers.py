"""Hugging Face as a peer: the same greedy tokens as our backbone, in fp32, and its own clock."""

from __future__ import annotations

import pytest
import torch

import river_core
from river_core import bench
from river_core.errors import ModelUnavailable, SettingsError
from river_core.peers import HFGenerate
from tests.tiny.tiny_models import save

TOKENS = 24


@pytest.mark.few
def test_the_peer_gives_our_backbones_tokens(tiny):
    run = river_core.generate(
        tiny.load(), tiny.prompt, policy="backbone", max_new_tokens=TOKENS, full_trace=False
    )
    found = HFGenerate(tiny.folder, "float32").generate(tiny.prompt, TOKENS)
    assert found.token_ids == tuple(t.token_id for t in run.tokens)


def test_the_peers_clock(one_tiny):
    peer = HFGenerate(one_tiny.folder, "float32", threads=1)
    many, one = peer.generate(one_tiny.prompt, 8), peer.generate(one_tiny.prompt, 1)
    assert many.tokens_per_second == pytest.approx(7 / many.decode_seconds)
    assert many.prefill_seconds > 0
    assert one.tokens_per_second is None
    assert one.token_ids == many.token_ids[:1]


def test_the_peer_decodes_through_its_stop_ids(one_tiny, tmp_path):
    model = save(one_tiny.config, tmp_path)
    model.generation_config.eos_token_id = list(range(one_tiny.config.vocab))
    model.save_pretrained(tmp_path)
    assert len(HFGenerate(tmp_path, "float32").generate(one_tiny.prompt, 9).token_ids) == 9


def test_the_peer_uses_its_threads_and_puts_ours_back(one_tiny):
    before = torch.get_num_threads()
    peer = HFGenerate(one_tiny.folder, "float32", threads=before + 1)
    seen = []
    forward = peer._model.forward

    def counting(*args, **kwargs):
        seen.append(torch.get_num_threads())
        return forward(*args, **kwargs)

    peer._model.forward = counting
    peer.generate(one_tiny.prompt, 2)
    assert set(seen) == {before + 1}
    assert torch.get_num_threads() == before


def test_what_cannot_be_a_peer_is_one_sentence(one_tiny, tmp_path):
    with pytest.raises(ModelUnavailable, match="leave the peer out"):
        HFGenerate(tmp_path)
    with pytest.raises(SettingsError, match="dtype is 'int8'"):
        HFGenerate(one_tiny.folder, "int8")


def test_a_benchmark_over_a_loaded_model(one_tiny, monkeypatch):
    monkeypatch.setattr(bench, "read_bandwidth", lambda device: 20.0)
    model = one_tiny.load(bits=4)
    prompt = tuple(one_tiny.prompt)
    peer = HFGenerate(one_tiny.folder, "float32", threads=1)
    rows = [bench.Peer("peer", peer, model, prompt), *bench.engines(model, prompt, 6, [0.3], 2.5)]
    head, found = bench.measure(rows, 6, 2, bench.header(model, len(prompt), peer))
    assert head["read_gigabytes_per_second"] == [20.0, 20.0]
    assert head["peer"] == "Hugging Face generate, float32"
    by_name = {row.name: row for row in found}
    names = ["peer", "backbone", "full quantization", "River, threshold 0.3", "River, forced exits"]
    assert list(by_name) == names
    assert by_name["peer"].to_peer == 1
    assert by_name["peer"].bytes_per_token == by_name["backbone"].bytes_per_token
    assert by_name["River, forced exits"].mean_exit_layer == pytest.approx(2.4)
    assert {row.rounds for row in found} == {2}
