"""What programs and MCP clients may call: everything else on the page is private.

The docstrings here are the descriptions that they read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import gradio as gr

from river_core.errors import RiverError


class Answers(Protocol):
    """What the endpoints need from behind them; each raises RiverError."""

    def generate(self, prompt: str, **settings: Any) -> dict[str, Any]:
        """A whole run."""

    def compare(self, prompt: str, upper: str, lower: str, **settings: Any) -> dict[str, Any]:
        """Two whole runs."""

    def record(self, run_id: str, lane: str) -> dict[str, Any]:
        """A kept run of the page."""


class Endpoints:
    """The public functions over a source."""

    def __init__(self, source: Answers) -> None:
        self._source = source

    def generate(
        self,
        prompt: str,
        policy: str = "river",
        threshold: float | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
    ) -> dict:
        """
        Answer a prompt with the language model and return, per token, the layer after which it
        left, its similarity at each layer, and who wrote its KV cache entries.

        Args:
            prompt: the text to answer; the model's chat template is applied.
            policy: river (default), backbone, full-quant, kv-mask, state-propagation,
                batch-recompute, mono-decreasing, fixed-exit, self-speculative, adaskip, ffn-skip
                or river-verified.
            threshold: a token leaves after the first layer whose similarity is greater, -1 to 1;
                null is the model's default.
            max_new_tokens: length of the answer at most.
            seed: of sampling; greedy decoding does not use it.

        Returns:
            The run record: header, prompt, tokens, updates, full_trace, summary and text.
        """
        settings = {"policy": policy, "threshold": threshold, "seed": seed}
        return _told(
            lambda: self._source.generate(prompt, max_new_tokens=max_new_tokens, **settings)
        )

    def compare(
        self,
        prompt: str,
        upper: str = "river",
        lower: str = "backbone",
        threshold: float | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
    ) -> dict:
        """
        Answer a prompt under two policies, one after the other, and say how far they agree, how
        many layers each ran and how fast each was.

        Args:
            prompt: the text to answer; the model's chat template is applied.
            upper: the policy that is looked at, as in generate.
            lower: the policy that it is compared with.
            threshold: of both, -1 to 1; null is the model's default.
            max_new_tokens: length of each answer at most.
            seed: of sampling; greedy decoding does not use it.

        Returns:
            upper and lower, two run records, and comparison: match (0 to 1, up to and including
            the first difference), first_difference (index of a token or null), top5_overlap, and
            each run's numbers (reference is lower, other is upper).
        """
        settings = {"threshold": threshold, "max_new_tokens": max_new_tokens, "seed": seed}
        return _told(lambda: self._source.compare(prompt, upper, lower, **settings))

    def record(self, run_id: str, lane: str = "upper") -> dict:
        """
        The run record of one lane of a run made on the page, while the server keeps it.

        Args:
            run_id: the run's id, as the page knows it.
            lane: upper or lower.

        Returns:
            The run record, as generate returns it.
        """
        return _told(lambda: self._source.record(run_id, lane))


def wire_api(source: Answers, compute: str, waiting: int) -> None:
    """Add `/generate`, `/compare` and `/record` to the Blocks in whose context this is called.

    The first two wait in the queue `compute` with the page's runs, `waiting` at most.
    """
    public = Endpoints(source)
    options: dict[str, Any] = {"concurrency_id": compute, "concurrency_limit": waiting}
    gr.api(public.generate, api_name="generate", **options)
    gr.api(public.compare, api_name="compare", **options)
    gr.api(public.record, api_name="record", concurrency_limit=None)


def _told(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return call()
    except RiverError as error:
        raise gr.Error(str(error), print_exception=False) from error
