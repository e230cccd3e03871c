"""Two runs side by side: what the records say, and KL where both kept their logits.

Saved runs have no logits, so comparing those needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .metrics import Agreement, RunNumbers, agreement, run_numbers
from .records import RunRecord

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Comparison(Agreement):
    """Agreement, `kl` = mean KL(reference || other) in nats over the passes, and each run's own.

    `kl` is of raw logits and None without them; `kl_note` says why. `reference` and `other` are
    the two runs' depth, speed, extra work and cost of deciding.
    """

    kl: float | None
    kl_note: str
    reference: RunNumbers
    other: RunNumbers


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
    numbers = run_numbers(reference), run_numbers(other)
    return Comparison(**vars(found), kl=kl, kl_note=note, reference=numbers[0], other=numbers[1])


def kl_divergence(reference: Tensor, other: Tensor) -> Tensor:
    """KL(reference || other) of each row of logits [n, V], in nats, fp32 [n], never below 0."""
    p, q = (logits.double().log_softmax(-1) for logits in (reference, other))
    return (p.exp() * (p - q)).sum(-1).clamp_min(0.0).float()
