"""How far a policy's cached keys and values lie from the backbone's (paper Fig. 5 and 6a).

The backbone and the policy are fed the same tokens; what each left in the cache is compared row by
row. A consumer of the loop: knows no policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from .control import Control, refuse_stopped
from .decode import generate, teacher_forced
from .errors import SettingsError
from .metrics import pearson
from .model import RiverModel
from .planning import resolve
from .prompts import Prompt
from .records import RunRecord, TokenRecord
from .settings import DecodeSettings

WHAT = "the comparison with the backbone's cache"
HELD = "brp"  # KV source letters of slots that hold an entry


@dataclass(frozen=True)
class KvCosine:
    """Mean cosine of `count` cached keys and values of one layer with the backbone's.

    Of the rows whose pass left after `exit_layer`; of all rows where that is None.
    """

    exit_layer: int | None
    layer: int
    key: float
    value: float
    count: int


@dataclass(frozen=True)
class KvError:
    """Cosines of one run's cache, decode rows only; plain values throughout, `asdict` is JSON-able.

    `cells` per (exit layer, layer), ascending (paper Fig. 5), `layers` per layer. `pairs` holds
    (similarity after layer 1, value cosine at layer L) of each row whose layer L the backbone did
    not run, `correlation` is their Pearson r (paper Fig. 6a: 0.5536; None where undefined).
    """

    policy: str
    cells: tuple[KvCosine, ...]
    layers: tuple[KvCosine, ...]
    pairs: tuple[tuple[float, float], ...]
    correlation: float | None


def kv_error(
    model: RiverModel, prompt: Prompt, token_ids: Sequence[int] | None = None, **settings: Any
) -> KvError:
    """Feed `token_ids` (default: the backbone's greedy answer) to the backbone and to a policy.

    `settings` are DecodeSettings' fields and name the policy. The prompt's rows are not compared,
    but decode rows read them: with prefill "exit" they are the policy's own. Leaves the policy's
    run in the model's cache. Raises SettingsError for fewer than two tokens (no row is cached),
    for a policy that verifies its own drafts and, as CacheFull, for whatever the runs refuse.
    """
    checked = check_policy(model, settings)
    tokens, chat = checked.max_new_tokens, checked.chat
    reference = CacheReference.of(model, prompt, token_ids, max_new_tokens=tokens, chat=chat)
    return reference.against(model, **settings)[1]


def check_policy(model: RiverModel, settings: Mapping[str, Any]) -> DecodeSettings:
    """The settings of a policy whose cache can be compared, checked before any work."""
    checked = DecodeSettings.from_keywords(settings)
    if resolve(checked, model.num_layers, model.info.entry_layer, model.resident).draft:
        raise SettingsError(
            f"policy {checked.policy!r} verifies its own drafts, so what stays in the cache is the "
            "backbone's and has no error to measure; use another policy."
        )
    return checked


@dataclass(frozen=True)
class CacheReference:
    """The backbone's run over a prompt and its decode rows' keys and values, fp32."""

    run: RunRecord
    kept: tuple[Tensor, Tensor]

    @classmethod
    def of(
        cls,
        model: RiverModel,
        prompt: Prompt,
        token_ids: Sequence[int] | None = None,
        *,
        max_new_tokens: int = 128,
        chat: bool = True,
        control: Control | None = None,
    ) -> CacheReference:
        """Feed the tokens to the backbone; None: let it decode greedily.

        Raises SettingsError for fewer than two tokens and where a layer is not resident,
        RiverError within a pass once `control` was cancelled; so does `against`.
        """
        model.require_whole("a comparison with the backbone's cache")
        model.require_one_device("a comparison with the backbone's cache")
        own: dict[str, Any] = {"policy": "backbone", "full_trace": False, "chat": chat}
        if token_ids is None:
            own |= {"max_new_tokens": max_new_tokens}
            run = generate(model, prompt, control=control, **own)
        else:
            run = teacher_forced(model, prompt, token_ids, control=control, **own)
        refuse_stopped(control, WHAT)
        if len(run.tokens) < 2:
            raise SettingsError("one token leaves no row in the cache; compare two or more.")
        return cls(run, _copy(model, run))

    def against(
        self, model: RiverModel, *, control: Control | None = None, **settings: Any
    ) -> tuple[RunRecord, KvError]:
        """A policy's run over the same tokens, and how far its keys and values lie."""
        ids, settings = [t.token_id for t in self.run.tokens], settings | {"full_trace": False}
        fed = list(self.run.prompt.token_ids)
        run = teacher_forced(model, fed, ids, control=control, **settings)
        refuse_stopped(control, WHAT)
        both = zip(self.kept, _copy(model, run), strict=True)
        keys, values = (cosines(a, b).tolist() for a, b in both)
        return run, kv_error_of(run, keys, values)


def _copy(model: RiverModel, run: RunRecord) -> tuple[Tensor, Tensor]:
    """K and V of a run's decode rows, fp32 [L, kv_heads, n, D] each."""
    first = len(run.prompt.token_ids)
    rows = slice(first, first + len(run.tokens) - 1)
    return model.cache.k[:, :, rows].float().clone(), model.cache.v[:, :, rows].float().clone()


def cosines(reference: Tensor, other: Tensor) -> Tensor:
    """Cosine per layer and row of [L, kv_heads, n, D] over all heads together, fp32 [L, n]."""
    a, b = (x.float().transpose(1, 2).flatten(2) for x in (reference, other))
    return F.cosine_similarity(a, b, dim=-1).clamp(-1.0, 1.0)


Grid = Sequence[Sequence[float]]


def kv_error_of(run: RunRecord, keys: Grid, values: Grid) -> KvError:
    """Means over a run's cosines [layer][row], row n being the one that decode pass n + 1 wrote.

    Slots that hold no entry at the end of the run are left out.
    """
    sources = run.kv_final[len(run.prompt.token_ids) :]
    rows = list(zip(run.tokens[1:], sources, strict=True))
    exits = sorted({t.exit_layer for t in run.tokens[1:]})
    cells = [cell for e in exits for cell in _means(rows, keys, values, e)]
    pairs = tuple(
        (token.similarities[0], values[-1][n])
        for n, (token, source) in enumerate(rows)
        if token.similarities and source[-1] in HELD and source[-1] != "b"
    )
    return KvError(
        policy=str(run.header.settings["policy"]),
        cells=tuple(cells),
        layers=tuple(_means(rows, keys, values, None)),
        pairs=pairs,
        correlation=pearson([s for s, _ in pairs], [c for _, c in pairs]),
    )


def _means(
    rows: Sequence[tuple[TokenRecord, str]], keys: Grid, values: Grid, exit_layer: int | None
) -> Iterator[KvCosine]:
    """A cell per layer that has an entry among the rows that left after `exit_layer`."""
    for layer in range(1, len(keys) + 1):
        chosen = [
            n
            for n, (token, source) in enumerate(rows)
            if exit_layer in (None, token.exit_layer) and source[layer - 1] in HELD
        ]
        if chosen:
            key, value = (
                sum(grid[layer - 1][n] for n in chosen) / len(chosen) for grid in (keys, values)
            )
            yield KvCosine(exit_layer, layer, key, value, len(chosen))
