"""What is different on a Hugging Face Space: a GPU that is lent by the call, a larger model.

Read from the environment when the app starts, never at import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

GPU_MODEL = "HuggingFaceTB/SmolLM2-1.7B-Instruct"  # ungated; 135M is bound by launches on a GPU
TRUE = ("1", "true", "yes", "on")


def lends_gpu(environment: Mapping[str, str]) -> bool:
    """Whether the Space lends its GPU by the call (ZeroGPU)."""
    return environment.get("SPACES_ZERO_GPU", "").lower() in TRUE


def suggested_model(environment: Mapping[str, str], usual: str, has_gpu: Callable[[], bool]) -> str:
    """The model where none was asked for: RIVER_MODEL, or a larger one on a Space with a GPU."""
    if named := environment.get("RIVER_MODEL"):
        return named
    if "SPACE_ID" not in environment:
        return usual
    return GPU_MODEL if lends_gpu(environment) or has_gpu() else usual


def lent(
    function: Callable[..., Iterator[Any]], seconds: Callable[..., int]
) -> Callable[..., Iterator[Any]]:
    """`function` with a GPU lent to each call for `seconds(...)` of the same arguments.

    Raises ModuleNotFoundError where the Space's own package is missing.
    """
    import spaces

    wrapped: Callable[..., Iterator[Any]] = spaces.GPU(duration=seconds)(function)
    return wrapped
