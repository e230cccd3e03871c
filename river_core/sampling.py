"""Logits to a token, with an explicit generator; and what is recorded about the choice.

Knows nothing of models. Logits are fp32 [V], raw: temperature and top-p touch only the sampling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import RiverError

BLOCK = 128
ALTERNATIVES = 5
COLDEST = 1e-30  # a temperature that fp32 can divide by
LOWEST = -1e30  # a logit of -inf weighs nothing, and 0 x -inf would be NaN


@dataclass(frozen=True)
class Choice:
    """What a pass says about its next token: natural-log units, raw logits."""

    token_id: int
    logprob: float
    entropy: float
    alternatives: tuple[tuple[int, float], ...]  # the five most likely: id, logprob


def _blocks(logits: Tensor) -> Tensor:
    """fp32 [V] -> [blocks, BLOCK], padded with -inf: the best ids are in the best blocks."""
    return F.pad(logits, (0, -logits.numel() % BLOCK), value=-torch.inf).view(-1, BLOCK)


def greedy(logits: Tensor) -> int:
    """The id of the largest logit of fp32 [V]; ties take the lowest id."""
    blocks = _blocks(logits)
    block = int(blocks.amax(1).argmax())  # argmax takes the first of equals
    return block * BLOCK + int(blocks[block].argmax())


def sample(logits: Tensor, temperature: float, top_p: float, generator: torch.Generator) -> int:
    """Draw an id from softmax(logits / temperature) of fp32 [V], cut to the top-p nucleus.

    temperature 0 is `greedy`. The nucleus is the smallest set of most likely ids whose
    probability reaches `top_p`. Draws on the CPU, so a seed gives the same ids on every device.
    Raises RiverError where logits are not finite.
    """
    if temperature == 0:
        return greedy(logits)
    scores = logits.cpu()
    scores = (scores - scores.max()) / max(temperature, COLDEST)
    probabilities, order = torch.sort(scores.softmax(-1), descending=True, stable=True)
    before = probabilities.cumsum(-1) - probabilities
    nucleus = before < top_p
    nucleus[0] = True  # however small top_p is
    probabilities = torch.where(nucleus, probabilities, torch.zeros_like(probabilities))
    check_logits(float(probabilities[0]))
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])


def describe(logits: Tensor, token_id: int, count: int = ALTERNATIVES) -> Choice:
    """Log-probability of `token_id`, entropy and the `count` best of fp32 [V].

    Raises RiverError where logits are not finite.
    """
    blocks = _blocks(logits)
    found = blocks.amax(1).topk(min(count, blocks.shape[0])).indices.sort().values
    values, places = blocks[found].flatten().topk(min(count, logits.numel()))
    ids = found[places // BLOCK] * BLOCK + places % BLOCK
    below = (blocks - values[0]).clamp_(min=LOWEST)
    weights = below.exp()
    total = weights.sum(1).sum()  # by blocks: as one sum it would depend on the number of threads
    entropy = total.log() - (weights * below).sum(1).sum() / total
    chosen = torch.cat([logits[token_id].reshape(1), values]) - values[0] - total.log()
    row = torch.cat([chosen[:1], entropy.reshape(1), chosen[1:]]).tolist()
    best = sorted(zip(ids.tolist(), row[2:], strict=True), key=lambda pair: (-pair[1], pair[0]))
    return checked(Choice(token_id, row[0], row[1], tuple(best)))


def checked(choice: Choice) -> Choice:
    """The choice itself; raises RiverError where the logits behind it are not finite."""
    check_logits(choice.logprob, choice.entropy, choice.alternatives[0][1])
    return choice


def check_logits(*values: float) -> None:
    """Raise RiverError where one of the values made of logits is NaN."""
    if any(map(math.isnan, values)):
        raise RiverError(
            "the logits are not finite; the model's weights or its dtype overflowed, try "
            "dtype='float32'."
        )
