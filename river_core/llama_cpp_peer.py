"""llama.cpp through llama-cpp-python, an optional extra: greedy, timed step by step.

The only file that imports llama_cpp, when a peer is made. Calls llama.h itself, since a benchmark
wants neither a chat format nor a sampler in Python. Knows nothing of our engine.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .errors import ModelUnavailable
from .gguf_export import BITS
from .peers import PeerRun

MISSING = (
    "llama.cpp is left out: llama-cpp-python is not installed; install it with "
    "python -m pip install llama-cpp-python."
)
BATCH = 512  # tokens of a prompt that one call runs, llama.cpp's own default


def installed() -> bool:
    """Whether llama-cpp-python is here; importing it is left to LlamaCpp."""
    return find_spec("llama_cpp") is not None


class LlamaCpp:
    """The GGUF file `path`, whose matrices are of `kind`, with room for `positions` tokens.

    On a GPU where `gpu` asks for it and llama.cpp was built for one. Raises ModelUnavailable where
    llama-cpp-python is missing or cannot read the file.
    """

    library = "llama.cpp"

    def __init__(self, path: Path, kind: str, threads: int, positions: int, gpu: bool) -> None:
        if not installed():
            raise ModelUnavailable(MISSING)
        try:
            import llama_cpp
        except (ImportError, OSError, RuntimeError) as error:
            raise ModelUnavailable(
                f"llama.cpp is left out: llama-cpp-python cannot be loaded ({error})."
            ) from error
        self._lib: Any = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        on_gpu = gpu and llama_cpp.llama_supports_gpu_offload()
        self.name = f"llama.cpp, {kind}" + (", on the CPU" if gpu and not on_gpu else "")
        self.bits = BITS[kind]
        self.weight_bytes = path.stat().st_size
        self._model = self._load(path, on_gpu)
        self._context = self._open(threads, positions, path)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def _load(self, path: Path, on_gpu: bool) -> Any:
        wanted = self._lib.llama_model_default_params()
        wanted.n_gpu_layers = 999 if on_gpu else 0
        model = self._lib.llama_model_load_from_file(str(path).encode(), wanted)
        if not model:
            raise ModelUnavailable(
                f"llama.cpp is left out: it does not read {path.name}; update llama-cpp-python."
            )
        return model

    def _open(self, threads: int, positions: int, path: Path) -> Any:
        wanted = self._lib.llama_context_default_params()
        wanted.n_ctx = positions
        wanted.n_batch = wanted.n_ubatch = BATCH
        wanted.n_threads = wanted.n_threads_batch = threads
        context = self._lib.llama_init_from_model(self._model, wanted)
        if not context:
            self._lib.llama_model_free(self._model)
            raise ModelUnavailable(
                f"llama.cpp is left out: no context of {positions} positions for {path.name}."
            )
        return context

    @property
    def versions(self) -> dict[str, str]:
        """The version of llama-cpp-python."""
        return {"llama-cpp-python": self._lib.__version__}

    def close(self) -> None:
        """Give its memory back."""
        if self._context:
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)
            self._context = self._model = None

    def generate(self, prompt_ids: Sequence[int], new_tokens: int) -> PeerRun:
        """Exactly `new_tokens` greedy tokens; ModelUnavailable where llama.cpp fails."""
        lib = self._lib
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        start = time.perf_counter()
        ids = list(prompt_ids)
        for first in range(0, len(ids), BATCH):
            self._feed(ids[first : first + BATCH])
        chosen = [self._best()]
        begun = time.perf_counter()
        while len(chosen) < new_tokens:
            self._feed(chosen[-1:])
            chosen.append(self._best())
        return PeerRun(tuple(chosen), begun - start, time.perf_counter() - begun)

    def _feed(self, ids: list[int]) -> None:
        lib = self._lib
        tokens = (lib.llama_token * len(ids))(*ids)  # the batch only points to them
        status = lib.llama_decode(self._context, lib.llama_batch_get_one(tokens, len(ids)))
        if status:
            raise ModelUnavailable(f"llama.cpp stopped with status {status}; leave it out.")

    def _best(self) -> int:
        """The likeliest token of the last position."""
        import numpy as np

        scores = self._lib.llama_get_logits_ith(self._context, -1)
        return int(np.ctypeslib.as_array(scores, shape=(self._vocab,)).argmax())
