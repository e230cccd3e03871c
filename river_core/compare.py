"""Two runs side by side: what the records say, and KL where both kept their logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .metrics import Agreement, agreement
from .records import RunRecord


@dataclass(frozen=True)
class Comparison(Agreement):
    """Agreement, and `kl` = mean KL(reference || other) in nats over the passes, raw logits.

    `kl` is None without logits; `kl_note` says why.
    """

    kl: float | None
    kl_note: str


def compare(reference: RunRecord, other: RunRecord) -> Comparison:
    """Compare `other` with `reference`; both free or both teacher-forced on the same tokens.

    Raises RecordError where they cannot be compared.
    """
    found = agreement(reference, other)
    kl, note = None, ""
    if not reference.header.forced_tokens:
        note = "KL is taken only on teacher-forced runs: on free runs the texts part."
    elif reference.logits is None or other.logits is None:
        note = "KL needs the logits, which exist only in memory: run teacher_forced again."
    else:
        kl = float(kl_divergence(reference.logits, other.logits).mean())
    return Comparison(**vars(found), kl=kl, kl_note=note)


def kl_divergence(reference: Tensor, other: Tensor) -> Tensor:
    """KL(reference || other) of each row of logits [n, V], in nats, fp32 [n], never below 0."""
    p, q = (logits.double().log_softmax(-1) for logits in (reference, other))
    return (p.exp() * (p - q)).sum(-1).clamp_min(0.0).to(torch.float32)
