"""Tiny random models and a writer that makes GGUF files of them as llama.cpp's converter would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

HEADS, KV_HEADS, HIDDEN, FFN, LAYERS = 4, 2, 64, 96, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in kept]
    return [chr(b) for b in kept] + [chr(256 + i) for i in range(len(other))]


LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOKENS = [*SPECIAL, *byte_alphabet(), "he", "ĠĠ"]


def tiny_model(tied: bool) -> LlamaForCausalLM:
    """A random model whose weights all matter to the logits and are exact in fp16."""
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        vocab_size=len(TOKENS),
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 50000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config)
    model.eval()
    for name, weight in model.named_parameters():
        with torch.no_grad():
            if weight.ndim == 1:
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(0, 1.5 / weight.shape[1] ** 0.5 if "embed" not in name else 1.0)
            weight.copy_(weight.half().float())
    return model


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's converter does it."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(rows.shape)


def gguf_tensors(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    found = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
    }
    if not model.config.tie_word_embeddings:
        found["output.weight"] = state["lm_head.weight"]
    for layer in range(LAYERS):
        for short, name in LAYER_NAMES.items():
            value = state[f"model.layers.{layer}.{name}.weight"]
            if short == "attn_q":
                value = permute(value, HEADS)
            elif short == "attn_k":
                value = permute(value, KV_HEADS)
            found[f"blk.{layer}.{short}.weight"] = value
    return found


Value = str | int | float | bool | list[Any]


def write_gguf(
    path: Path,
    tensors: dict[str, np.ndarray],
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F16,
    arch: str = "llama",
    pre: str | None = "smollm",
    extra: Mapping[str, Value] | None = None,
    layers: int = LAYERS,
) -> Path:
    """Write `tensors` as GGUF: matrices in `kind`, vectors in fp32; `extra` wins over the rest."""
    writer = gguf.GGUFWriter(path, arch)
    for name, value in _settings(arch, layers, extra or {}).items():
        _add(writer, name, value)
    own = {key: value for key, value in (extra or {}).items() if key.startswith("tokenizer.")}
    if not own:
        _add_byte_level(writer, pre)
    for name, value in own.items():
        _add(writer, name, value)
    for name, tensor in tensors.items():
        one = gguf.GGMLQuantizationType.F32 if tensor.ndim == 1 else kind
        data = gguf.quantize(np.ascontiguousarray(tensor, dtype=np.float32), one)
        writer.add_tensor(name, data, raw_dtype=one)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _settings(arch: str, layers: int, extra: Mapping[str, Value]) -> dict[str, Value]:
    plain: dict[str, Value] = {
        f"{arch}.block_count": layers,
        f"{arch}.context_length": 512,
        f"{arch}.embedding_length": HIDDEN,
        f"{arch}.feed_forward_length": FFN,
        f"{arch}.attention.head_count": HEADS,
        f"{arch}.attention.head_count_kv": KV_HEADS,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 50000.0,
    }
    if arch == "llama":
        plain["llama.rope.dimension_count"] = HIDDEN // HEADS
    return plain | {key: value for key, value in extra.items() if not key.startswith("tokenizer.")}


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(name, value)
        return
    kinds = {str: "string", bool: "bool", int: "uint32", float: "float32"}
    getattr(writer, f"add_{kinds[type(value)]}")(name, value)


def _add_byte_level(writer: gguf.GGUFWriter, pre: str | None) -> None:
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(["h e", "Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}")
