"""Logits to a token, with an explicit generator; and what is recorded about the choice.

Knows nothing of models. Logits are fp32 [V], raw: temperature and top-p touch only the sampling.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import RiverError


@dataclass(frozen=True)
class Choice:
    """What a pass says about its next token: natural-log units, raw logits."""

    token_id: int
    logprob: float
    entropy: float
    alternatives: tuple[tuple[int, float], ...]  # the five most likely: id, logprob


def greedy(logits: Tensor) -> int:
    """The id of the largest logit of fp32 [V]; ties take the lowest id."""
    return int(torch.nonzero(logits == logits.max())[0])


def sample(logits: Tensor, temperature: float, top_p: float, generator: torch.Generator) -> int:
    """Draw an id from softmax(logits / temperature) of fp32 [V], cut to the top-p nucleus.

    temperature 0 is `greedy`. The nucleus is the smallest set of most likely ids whose
    probability reaches `top_p`. Draws on the CPU, so a seed gives the same ids on every device.
    """
    if temperature == 0:
        return greedy(logits)
    scores = logits.cpu() / temperature
    probabilities, order = torch.sort(scores.softmax(-1), descending=True, stable=True)
    before = probabilities.cumsum(-1) - probabilities
    probabilities = torch.where(before < top_p, probabilities, torch.zeros_like(probabilities))
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])


def describe(logits: Tensor, token_id: int, count: int = 5) -> Choice:
    """Log-probability of `token_id`, entropy and the `count` best of fp32 [V].

    Raises RiverError where logits are not finite.
    """
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum()
    values, ids = torch.topk(logprobs, min(count, logits.numel()))
    row = torch.cat([logprobs[token_id].reshape(1), entropy.reshape(1), values]).tolist()
    if any(value != value for value in row[:3]):
        raise RiverError(
            "the logits are not finite; the model's weights or its dtype overflowed, try "
            "dtype='float32'."
        )
    best = sorted(zip(ids.tolist(), row[2:], strict=True), key=lambda pair: (-pair[1], pair[0]))
    return Choice(token_id, row[0], row[1], tuple(best))
