"""What each matrix of the river costs by itself: KL at the output, measured on a text.

Only that matrix is the twin's, all others are the backbone's, so every number is of one matrix.
Runs the layers of a model that is loaded; knows nothing of what is made of the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .block import BlockRows, rms_norm, run_block
from .cache import Rows, SharedCache
from .input_moments import TEXT
from .layer import LayerWeights
from .mixed_bits import Matrix
from .model import Progress, RiverModel

SEQUENCES = 2  # of the bundled text, the first ones
MEASURED_ON = f"{TEXT}-of-{SEQUENCES}"


@torch.inference_mode()
def measure(
    model: RiverModel, sequences: Sequence[Sequence[int]], progress: Progress
) -> dict[Matrix, float]:
    """KL(backbone || the same with one matrix of a twin) in nats, by that matrix, mean over tokens.

    `sequences` of token ids do not see each other. Twins that are there are measured. Raises
    SettingsError where the layers stand on several devices, RiverError where one is evicted.
    """
    model.require_one_device("measuring which matrices need 8 bits")
    text = _Text(model, sequences)
    streams = text.start()
    expected = [logits.log_softmax(-1) for logits in text.logits(streams, 1)]
    found: dict[Matrix, float] = {}
    for n in range(1, model.num_layers + 1):
        own, twin = model.layer(n), model.river[n - 1]
        for name, coded in twin.linears.items() if twin is not None else ():
            progress(f"measuring layer {n} of {model.num_layers}: {name}", n / model.num_layers)
            changed = own.with_linears({**own.linears, name: coded})
            logits = text.logits(text.layer(streams, n, changed), n + 1)
            lost = [
                F.kl_div(x.log_softmax(-1), p, reduction="none", log_target=True).sum(-1)
                for x, p in zip(logits, expected, strict=True)
            ]
            found[n, name] = max(0.0, float(torch.cat(lost).double().mean()))
        streams = text.layer(streams, n, own)
    return found


class _Text:
    """Sequences of a text on their way through a model's layers, fp32 [rows, d] each."""

    def __init__(self, model: RiverModel, sequences: Sequence[Sequence[int]]) -> None:
        self.model, self._sequences = model, sequences
        rows = [Rows(tuple(ids), tuple(range(len(ids)))) for ids in sequences]
        self._at = [BlockRows.of(one, model.ropes) for one in rows]
        heads = (model.shape.kv_heads, model.shape.head_dim)
        longest = max(len(ids) for ids in sequences)
        self._scratch = SharedCache(1, longest, heads, torch.float32, model.device)

    def start(self) -> list[Tensor]:
        """As they enter the first layer."""
        device = self.model.device
        return [self.model.embed(torch.tensor(ids, device=device)) for ids in self._sequences]

    def layer(self, streams: Sequence[Tensor], n: int, weights: LayerWeights) -> list[Tensor]:
        """Through 1-based layer `n`, with these weights."""
        shape = self.model.shapes[n - 1]
        return [
            run_block(x, weights, shape, at, self._scratch, 1)
            for x, at in zip(streams, self._at, strict=True)
        ]

    def logits(self, streams: Sequence[Tensor], first: int) -> list[Tensor]:
        """Scores fp32 [rows, V] after the backbone's layers from `first` on."""
        model, found = self.model, list(streams)
        for n in range(first, model.num_layers + 1):
            found = self.layer(found, n, model.layer(n))
        return [model.head(rms_norm(x, model.final_norm, model.shape.eps)) for x in found]
