"""Hugging Face as a peer: the same greedy tokens as our backbone, in fp32, and its own clock."""

from __future__ import annotations

import pytest
import torch

import river_core
from river_core import bench
from river_core.contenders import Peer, engines
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
    ours = engines(model, prompt, 6, [0.3], [2.5], verified=0.3, judged=True)
    rows = [Peer(peer, model, prompt, ours[0].answer), *ours]
    head, found = bench.measure(rows, 6, 2, bench.header(model, len(prompt), [peer]), detailed=True)
    assert head["read_gigabytes_per_second"] == [20.0, 20.0]
    assert head["peers"] == [peer.name] == ["Hugging Face generate, float32"]
    by_name = {row.name: row for row in found}
    names = ["backbone", "full quantization", "River, threshold 0.3", "River, forced exits 2.5"]
    assert list(by_name) == [peer.name, *names, "river-verified, threshold 0.3"]
    assert by_name[peer.name].to_peer == 1
    assert by_name[peer.name].bytes_per_token == by_name["backbone"].bytes_per_token
    assert by_name["River, forced exits 2.5"].mean_exit_layer == pytest.approx(2.4)
    assert {row.rounds for row in found} == {2}
    agreements = [row.agreement for row in found]
    assert agreements[0] == agreements[1] == agreements[-1] == 1  # all of them greedy backbones
    assert all(0 <= a <= 1 for a in agreements)
    assert by_name["river-verified, threshold 0.3"].bytes_per_token is None
    check_parts_and_memory(model, by_name)


def check_parts_and_memory(model, rows):
    parts = {name: row.parts for name, row in rows.items() if row.parts is not None}
    assert len(parts) == 5  # all rows of ours
    assert parts["backbone"]["river"] == parts["full quantization"]["backbone"] == 0
    assert parts["backbone"]["backbone"] > 0 < parts["full quantization"]["river"]
    assert parts["River, threshold 0.3"]["decision"] > 0
    ledger = model.memory()
    assert rows["backbone"].memory == sum(ledger.values()) - ledger["river"]
    assert rows["full quantization"].memory == sum(ledger.values()) - ledger["backbone"]
    twin = ledger["river"] / model.num_layers  # full quantization has built all of them
    assert rows["River, threshold 0.3"].memory == pytest.approx(sum(ledger.values()) - twin)


def test_an_answer_is_judged_by_the_backbones(one_tiny):
    model, prompt = one_tiny.load(bits=4), tuple(one_tiny.prompt)
    answer = engines(model, prompt, 8, [], [], judged=True)[0].answer
    ids = answer.ids(8)
    assert answer.common(ids) == 1
    assert answer.common([*ids[:3], (ids[3] + 1) % one_tiny.config.vocab, *ids[4:]]) == 3 / 8
    forced = {"policy": "river", "exit": "fixed", "options": {"exit_layer": 1}}
    run = river_core.teacher_forced(model.endless(), list(prompt), ids, **forced)
    own = [token.alternatives[0][0] for token in run.tokens]
    assert answer.match(8, forced) == sum(a == b for a, b in zip(own, ids, strict=True)) / 8


@pytest.mark.thorough  # compiling takes minutes on a slow machine
def test_the_compiled_peer_gives_the_same_tokens(one_tiny):
    peer = HFGenerate(one_tiny.folder, "float32", threads=1)
    try:
        compiled = peer.compiled(one_tiny.prompt)
    except ModelUnavailable as error:
        pytest.skip(str(error))
    assert compiled.name == f"{peer.name}, static cache + compile"
    assert (
        compiled.generate(one_tiny.prompt, 9).token_ids
        == peer.generate(one_tiny.prompt, 9).token_ids
    )
