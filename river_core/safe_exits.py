"""How early each pass of a finished run could have left without choosing another token.

For a pass and an exit layer e, the pass runs over the recorded cache with only its own row
replaced: layers 1..e in the backbone, the rest in the river (records.md, Earliest safe exit; paper
Fig. 2). All passes and all e go through a layer together; nothing is written to the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from .bandwidth import ReadBytes
from .block import add_attended, project, rms_norm, run_feed_forward
from .control import Control
from .decode import teacher_forced
from .errors import Cancelled, RecordError, RiverError, SettingsError
from .giving_up import go_on, looking_at
from .kv_error import HELD
from .layer import BlockShape, LayerWeights
from .model import RiverModel
from .records import RunRecord

PASSES = 32  # passes at a time, each with every exit layer
SCORED = 128  # rows of [V] logits at a time
Progress = Callable[[int, int], None]  # passes done, passes in all


@dataclass(frozen=True)
class SafeExits:
    """The earliest safe exit of every pass, and what it bounds.

    `exits[i]` is the smallest exit layer at which pass i chooses the full-depth token, `stable[i]`
    the smallest from which on all deeper ones do too; both L for i = 0, the prompt pass. Over the
    decode passes (None without any): `mean`, `sequence_maximum` (paper: 4.81 and 15.07 of 16) and
    `byte_bound` = bytes(backbone) / bytes(River at the mean), as the model's own kernels store
    them: about 1 where the river's kernels hold dequantised weights.
    """

    exits: tuple[int, ...]
    stable: tuple[int, ...]
    mean: float | None
    sequence_maximum: int | None
    byte_bound: float | None


def earliest_safe_exits(
    model: RiverModel,
    run: RunRecord,
    *,
    progress: Progress | None = None,
    control: Control | None = None,
) -> SafeExits:
    """Earliest safe exits of a run made on `model`, which is replayed into the model's cache.

    The cache is the one at the end of the run: slots written late are read as they became.
    `progress` is told after the replay and after each batch but the last; its errors end the work.
    Raises RecordError where the run is not this model's, left slots out because nothing reads them
    again, or cannot be replayed; SettingsError where a backbone layer is not resident; RiverError
    where `control` was cancelled.
    """
    try:
        return _safe_exits(model, run, progress, control)
    except Cancelled:
        raise RiverError("the search for the earliest safe exits was stopped.") from None


def _safe_exits(
    model: RiverModel, run: RunRecord, progress: Progress | None, control: Control | None
) -> SafeExits:
    look = looking_at(control)
    model.require_whole("earliest_safe_exits")
    model.require_one_device("earliest_safe_exits")
    if any("n" in source for source in run.kv_final):
        raise RecordError(
            "the run wrote no keys and values where its policy never looks again, so what a deeper "
            "pass would choose is undefined; use a run that fills its cache."
        )
    replay(model, run, control)
    layers, first = model.num_layers, model.info.entry_layer - 1
    choices = exit_choices(model, run, progress, look)
    found = [safe_exits_of(chosen, first) for chosen in choices]
    exits, stable = (tuple(pair[n] for pair in found) for n in (0, 1))
    reads = ReadBytes.of_model(model)
    mean = fmean(exits) if exits else None
    return SafeExits(
        exits=(layers, *exits),
        stable=(layers, *stable),
        mean=mean,
        sequence_maximum=max(exits, default=None),
        byte_bound=None if mean is None else reads.at(layers) / reads.at(mean),
    )


def safe_exits_of(chosen: Sequence[int], first: int) -> tuple[int, int]:
    """(earliest, stable) from the tokens chosen at exit layers first..L, the last the full depth's.

    Earliest: the smallest layer that chooses the last one's token. Stable: the smallest such that
    all deeper ones do as well.
    """
    same = [token == chosen[-1] for token in chosen]
    wrong = [n for n, right in enumerate(same) if not right]
    return first + same.index(True), first + (wrong[-1] + 1 if wrong else 0)


def replay(model: RiverModel, run: RunRecord, control: Control | None = None) -> None:
    """Feed the run's own tokens to `model` so that its cache is the recorded one.

    Raises RecordError where the model differs or the KV sources come out differently, Cancelled.
    """
    info, header = model.info, run.header
    ours = (info.name, model.num_layers, info.entry_layer, info.quant.shown)
    theirs = (header.model, header.num_layers, header.entry_layer, header.quantisation)
    if ours != theirs or not run.tokens:
        raise RecordError(f"a run of {theirs} with {len(run.tokens)} tokens is not one of {ours}.")
    ids = [t.token_id for t in run.tokens]
    try:
        fed = list(run.prompt.token_ids)
        again = teacher_forced(model, fed, ids, control=control, **_replay_settings(run))
    except SettingsError as error:
        raise RecordError(f"the run cannot be replayed: {error}") from error
    looking_at(control)()
    if again.kv_final != run.kv_final:
        raise RecordError(
            "replaying the run gave other KV sources than it recorded; it was cancelled, its "
            "threshold was changed while it ran, or it comes from another machine."
        )


def _replay_settings(run: RunRecord) -> dict[str, Any]:
    """What leaves the recorded cache: the backbone, the recorded exits as a schedule, or the run's
    own settings where neither says it all."""
    layers, first = run.header.num_layers, run.header.entry_layer - 1
    exits = [t.exit_layer for t in run.tokens]
    depths = exits[:1] * len(run.prompt.token_ids) + exits[1:]
    filled = tuple("b" * e + "r" * (layers - e) for e in depths)
    quiet = {"full_trace": False, "profile": False, "prompt_trace": False, "stop": ()}
    own = dict(run.header.settings) | quiet
    if any(set(t.path) & set("af") for t in run.tokens):
        pass  # halves left out inside the stack, which the KV sources do not tell
    elif all(set(source) == {"b"} for source in run.kv_final):
        own = quiet | {"policy": "backbone"}  # also rows verified, or recomputed late
    elif run.kv_final == filled and min(exits) >= first and not run.updates:
        own = quiet | {"exit": "schedule", "options": {"exit_layers": exits}, "prefill": "exit"}
    return {name: v for name, v in own.items() if (name, v) != ("exit", "never")}


def exit_choices(
    model: RiverModel,
    run: RunRecord,
    progress: Progress | None = None,
    look: Callable[[], None] = go_on,
) -> list[tuple[int, ...]]:
    """The tokens [decode pass][exit layer entry - 1..L] over the cache as `replay` left it.

    `look` is called before each layer; its errors end the work.
    """
    found: list[tuple[int, ...]] = []
    for start in range(1, len(run.tokens), PASSES):
        if progress is not None:
            progress(len(found), len(run.tokens) - 1)
        passes = range(start, min(start + PASSES, len(run.tokens)))
        states = exit_states(model, run, passes, look)
        best = [_best(model, rows) for rows in states.flatten(0, 1).split(SCORED)]
        found += zip(*torch.cat(best).view(states.shape[:2]).tolist(), strict=True)
    return found


@torch.inference_mode()
def _best(model: RiverModel, x: Tensor) -> Tensor:
    """Ids of the largest logits of final states [n, d]; ties take the lowest id on the CPU."""
    return model.head(rms_norm(x, model.final_norm, model.shape.eps)).argmax(-1)


@torch.inference_mode()
def exit_states(
    model: RiverModel, run: RunRecord, passes: range, look: Callable[[], None] = go_on
) -> Tensor:
    """Residual stream after layer L, fp32 [exit layers entry - 1..L, passes, d].

    Decode pass i feeds token i-1 at position P+i-1 and reads the recorded slots before it.
    """
    before = len(run.prompt.token_ids) - 1
    entry, count = model.info.entry_layer, len(passes)
    fed = torch.tensor([run.tokens[i - 1].token_id for i in passes], device=model.device)
    at = torch.tensor([before + i for i in passes], device=model.device)
    held = _held(run, before + passes[-1], model.device)
    x = model.embed(fed)
    tails = x[:0]  # rows that left already, a group of `count` per exit layer
    for layer in range(1, model.num_layers + 1):
        look()
        both = (model.cache.k, model.cache.v)
        k, v = (side[layer - 1, :, : held.shape[1]].float() for side in both)
        recorded = Recorded(k, v, held[layer - 1], model.cache.dtype)
        if layer >= entry:
            tails = torch.cat([tails, x])
            places = at.repeat(len(tails) // count)
            tails = _layer(tails, model.twin(layer), model, (layer, places), recorded)
        x = _layer(x, model.layer(layer), model, (layer, at), recorded)
    return torch.cat([tails, x]).view(-1, count, x.shape[1])


@dataclass(frozen=True)
class Recorded:
    """A layer's recorded K and V, fp32 [kv_heads, S, D], which of the S slots hold an entry, and
    the cache's dtype, to which a row's own entry is rounded as it would be when written."""

    k: Tensor
    v: Tensor
    held: Tensor
    dtype: torch.dtype


def _held(run: RunRecord, slots: int, device: torch.device) -> Tensor:
    """Whether each of the first `slots` positions holds an entry, bool [L, slots]."""
    rows = [[letter in HELD for letter in source] for source in run.kv_final[:slots]]
    return torch.tensor(rows, device=device).T


def _layer(
    x: Tensor,
    weights: LayerWeights,
    model: RiverModel,
    where: tuple[int, Tensor],
    recorded: Recorded,
) -> Tensor:
    """block.run_block for rows x [n, d] that see no other of them, nor write.

    `where` is the layer and the rows' positions [n].
    """
    layer, at = where
    shape = model.shapes[layer - 1]
    turned, values = project(x, weights, shape, [rope.at(at) for rope in model.ropes])
    own = torch.cat([turned[:, shape.heads :], values], dim=1)
    own = own.to(recorded.dtype).float()
    attended = attend_apart(turned[:, : shape.heads], own, recorded, at, shape)
    return run_feed_forward(add_attended(x, attended, weights, shape), weights, shape)


def attend_apart(
    q: Tensor, own: Tensor, recorded: Recorded, at: Tensor, shape: BlockShape
) -> Tensor:
    """Attention of q [n, H, D] over the recorded slots before `at` [n] and each row's own entry.

    `own` [n, 2 kv_heads, D] holds the rows' own keys, then values; the shape's window counts as in
    block.attend. Returns fp32 [n, H * D].
    """
    n, shared = len(q), shape.heads // shape.kv_heads
    k, v = (side.unsqueeze(2) for side in own.chunk(2, dim=1))  # [n, kv_heads, 1, D]
    scale = shape.head_dim**-0.5 if shape.scale is None else shape.scale
    q = q.reshape(n, shape.kv_heads, shared, shape.head_dim) * scale
    slots = torch.arange(recorded.k.shape[1], device=q.device)
    seen = (slots < at.unsqueeze(1)) & recorded.held
    if shape.window is not None:
        seen &= slots > at.unsqueeze(1) - shape.window
    scores = torch.einsum("nksd,kpd->nksp", q, recorded.k)
    scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
    weights = torch.cat([scores, (q * k).sum(-1, keepdim=True)], dim=-1).softmax(-1)
    out = torch.einsum("nksp,kpd->nksd", weights[..., :-1], recorded.v) + weights[..., -1:] * v
    return out.reshape(n, -1)
