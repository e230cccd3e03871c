"""What River is compared with: Hugging Face's own `generate`, greedy, timed step by step.

With families.py and loading.py the only file that imports transformers, when a peer is made. Knows
nothing of our engine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .devices import settle
from .errors import ModelUnavailable, SettingsError

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


class HFGenerate:
    """`generate` of transformers on the model in `path` (hub layout), as a user would call it.

    `threads` None leaves torch's own number. Raises SettingsError for an unknown dtype and
    ModelUnavailable where transformers cannot read the folder.
    """

    name = "Hugging Face generate"

    def __init__(
        self,
        path: Path,
        dtype: str = "bfloat16",
        threads: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise SettingsError(f"dtype is {dtype!r}; use one of {', '.join(DTYPES)}.")
        self.dtype = DTYPES[dtype]
        self.bits = torch.finfo(self.dtype).bits
        self.threads = threads
        self._model = _load(path, self.dtype).to(device or torch.device("cpu"))

    @property
    def versions(self) -> dict[str, str]:
        """Versions that its speed depends on, beside torch's."""
        from transformers import __version__

        return {"transformers": __version__}

    def generate(self, prompt_ids: Sequence[int], new_tokens: int) -> PeerRun:
        """Exactly `new_tokens` greedy tokens after `prompt_ids`; stop ids are decoded through."""
        from transformers import GenerationConfig, LogitsProcessorList

        clock = _Stamps()
        wanted = GenerationConfig(
            max_new_tokens=new_tokens, do_sample=False, num_beams=1, use_cache=True
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
