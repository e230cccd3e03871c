"""What the ledger says is what the process weighs, while it loads and when layers are evicted.

Processes of their own at the layer sizes of Llama-3.2-1B; the values of the weights do not matter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[2]
LAYERS, VOCAB, HIDDEN, FFN = 8, 8192, 2048, 8192
GIB, MIB = 1 << 30, 1 << 20
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux only")


def probe(*arguments: object) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "tests.tiny.memory_probe", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Eight layers of Llama-3.2-1B, 960 MiB in bf16."""
    sizes = {"mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN)}
    sizes |= {"mlp.down_proj": (HIDDEN, FFN), "self_attn.o_proj": (HIDDEN, HIDDEN)}
    sizes |= {f"self_attn.{n}_proj": (HIDDEN if n == "q" else HIDDEN // 4, HIDDEN) for n in "qkv"}
    tensors = {
        "model.embed_tokens.weight": torch.zeros(VOCAB, HIDDEN, dtype=torch.bfloat16),
        "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for part, size in sizes.items():
            last = layer == LAYERS - 1  # the one that is quantised
            made = torch.randn(size) if last else torch.full(size, 0.01 + layer / 100)
            tensors[f"{name}.{part}.weight"] = made.bfloat16()
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{norm}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
    made = tmp_path_factory.mktemp("eight-layers")
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
    }
    (made / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return made


def test_the_ledger_is_what_the_process_weighs():
    """The whole of Llama-3.2-1B with its river, then four layers of it resident."""
    found = probe("ledger")
    total = sum(found["memory"].values())
    assert total > 2.5 * GIB
    assert found["process"] == pytest.approx(total, rel=0.1)
    assert found["peak"] < 24 * GIB
    evicted = total - sum(found["evicted"].values())
    assert evicted == 12 * 2 * (HIDDEN * (HIDDEN * 2 + 1024) + 3 * HIDDEN * FFN)
    assert found["fell"] == pytest.approx(evicted, rel=0.1)


@pytest.mark.thorough
def test_loading_peaks_at_the_weights_the_river_and_little_more(folder):
    """With HQQ at work on the last layer, when all others are in memory."""
    found = probe("load", folder, LAYERS, LAYERS, "hqq")
    weights, memory = (folder / "model.safetensors").stat().st_size, found["memory"]
    assert memory["embedding"] + memory["backbone"] == pytest.approx(weights, rel=0.01)
    assert found["peak"] <= weights + memory["river"] + GIB
    assert found["peak"] - found["base"] <= weights + memory["river"] + 512 * MIB


@pytest.mark.thorough
def test_loading_the_offloaded_form_never_holds_the_backbone(folder):
    """One layer of eight resident: no more than one other is in memory at any time."""
    found = probe("load", folder, 2, 1, "none")
    memory = sum(found["memory"].values())
    weights = (folder / "model.safetensors").stat().st_size
    assert memory < 0.45 * weights
    assert found["peak"] - found["base"] <= memory + 560 * MIB < weights
