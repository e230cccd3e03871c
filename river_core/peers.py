"""What River is compared with: Hugging Face's own `generate`, greedy, timed step by step.

With families.py and loading.py the only file that imports transformers, when a peer is made. Knows
nothing of our engine; llama.cpp is llama_cpp_peer.py's.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from .devices import settle
from .errors import ModelUnavailable, SettingsError
from .shapes import ShapeSpec

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class PeerRun:
    """A peer's answer; seconds from the call to its first choice, and from there to its last."""

    token_ids: tuple[int, ...]
    prefill_seconds: float
    decode_seconds: float

    @property
    def tokens_per_second(self) -> float | None:
        """Rate of the tokens after the first; None where there is only one."""
        steps = len(self.token_ids) - 1
        return steps / self.decode_seconds if steps and self.decode_seconds > 0 else None


class Decoder(Protocol):
    """Another engine with a model in it."""

    name: str
    library: str  # what it is built on, as the kernels' column says it

    @property
    def bits(self) -> float:
        """Stored bits of a weight."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights that it holds."""
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions that its speed depends on, beside torch's."""
        ...

    def generate(self, prompt_ids: Sequence[int], new_tokens: int) -> PeerRun:
        """Exactly `new_tokens` greedy tokens after `prompt_ids`; stop ids are decoded through."""
        ...


class HFGenerate:
    """`generate` of transformers on the model in `path` (hub layout), as a user would call it.

    `threads` None leaves torch's own number. Raises SettingsError for an unknown dtype and
    ModelUnavailable where transformers cannot read the folder.
    """

    library = "transformers"

    def __init__(
        self,
        path: Path,
        dtype: str = "bfloat16",
        threads: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise SettingsError(f"dtype is {dtype!r}; use one of {', '.join(DTYPES)}.")
        self._take(_load(path, DTYPES[dtype]).to(device or torch.device("cpu")), dtype, threads)

    def _take(self, model: Any, dtype: str, threads: int | None) -> None:
        self.name = f"Hugging Face generate, {dtype}"
        self.dtype, self.threads = DTYPES[dtype], threads
        self._cache: str | None = None
        self._model = model

    @classmethod
    def random(
        cls, spec: ShapeSpec, dtype: str, device: torch.device, positions: int
    ) -> HFGenerate:
        """Random weights at a Llama model's shape, made on the device; ImportError without
        transformers."""
        made = cls.__new__(cls)
        made._take(_random(spec, DTYPES[dtype], device, positions), dtype, None)
        return made

    @property
    def bits(self) -> float:
        """Bits of the dtype."""
        return torch.finfo(self.dtype).bits

    @property
    def weight_bytes(self) -> int:
        """Bytes of the parameters, tied ones once."""
        return sum(p.numel() * p.element_size() for p in self._model.parameters())

    @property
    def versions(self) -> dict[str, str]:
        """The version of transformers."""
        from transformers import __version__

        return {"transformers": __version__}

    def compiled(self, prompt_ids: Sequence[int]) -> HFGenerate:
        """The same weights with a static cache and a compiled forward pass, tried on `prompt_ids`.

        On CUDA `generate` compiles the decode step for a static cache itself; on the CPU it does
        not, so torch.compile is called on it, which takes minutes. Raises ModelUnavailable where
        that does not work here.
        """
        other = copy.copy(self)
        other.name = f"{self.name}, static cache + compile"
        other._cache, other._model = "static", copy.copy(self._model)
        if self._model.device.type != "cuda":
            other._model.forward = _compiled_decoding(self._model.forward)
        try:
            other.generate(prompt_ids, 3)
        except (RuntimeError, ValueError, TypeError, AttributeError, ImportError) as error:
            raise ModelUnavailable(
                f"Hugging Face with a static cache and compilation is left out: {_line(error)}"
            ) from error
        return other

    def generate(self, prompt_ids: Sequence[int], new_tokens: int) -> PeerRun:
        """Exactly `new_tokens` greedy tokens after `prompt_ids`; stop ids are decoded through."""
        from transformers import GenerationConfig, LogitsProcessorList

        clock = _Stamps()
        own = {} if self._cache is None else {"cache_implementation": self._cache}
        wanted = GenerationConfig(
            max_new_tokens=new_tokens, do_sample=False, num_beams=1, use_cache=True, **own
        )
        ids = torch.tensor([list(prompt_ids)], device=self._model.device)
        with _threads(self.threads), torch.inference_mode():
            start = time.perf_counter()
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=wanted,
                logits_processor=LogitsProcessorList([clock]),
            )
        chosen = tuple(out[0, ids.shape[1] :].tolist())
        times = clock.times
        return PeerRun(chosen, times[0] - start, times[-1] - times[0])


def _compiled_decoding(forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward` for a prompt, and compiled for one token."""
    step = torch.compile(forward)

    @wraps(forward)  # generate looks at the arguments' names
    def either(input_ids: Tensor | None = None, **more: Any) -> Any:
        one = input_ids is not None and input_ids.shape[1] == 1
        return (step if one else forward)(input_ids=input_ids, **more)

    return either


class _Stamps:
    """A logits processor that changes nothing and notes when each step's scores were there."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        settle(scores.device)
        self.times.append(time.perf_counter())
        return scores


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Run with that many torch threads, then put the old number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if number is None else number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _line(error: BaseException) -> str:
    """The first line of an error's text, at most 120 characters, as the end of a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:120].rstrip(". ") + "."


def _random(spec: ShapeSpec, dtype: torch.dtype, device: torch.device, positions: int) -> Any:
    """transformers' Llama of these sizes with its own random weights."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    block = spec.block
    config = LlamaConfig(
        hidden_size=block.hidden,
        intermediate_size=block.ffn,
        num_hidden_layers=spec.layers,
        num_attention_heads=block.heads,
        num_key_value_heads=block.kv_heads,
        head_dim=block.head_dim,
        vocab_size=spec.vocab,
        max_position_embeddings=positions,
        tie_word_embeddings=spec.tied,
        dtype=dtype,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # never twice the memory for a moment
    try:
        with torch.device(device):
            model: Any = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    model.generation_config = GenerationConfig()
    return model


def _load(path: Path, dtype: torch.dtype) -> Any:
    """The folder's causal language model, set to stop at nothing but the wanted length."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(path), dtype=dtype, local_files_only=True, trust_remote_code=False
        ).eval()
    except (OSError, ValueError, TypeError, KeyError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelUnavailable(
            f"Hugging Face's own model cannot be loaded from {path} ({lines[0][:120]}); leave the "
            "peer out."
        ) from error
    finally:
        if bars:
            logging.enable_progress_bar()
    model.generation_config = GenerationConfig()
    return model
