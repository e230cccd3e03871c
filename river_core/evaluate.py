"""Scoring on our loop: the log-likelihood of a continuation, greedy text up to a stop string.

What an evaluation harness asks of a model, with the exits that answering took. A consumer of the
loop; knows no harness, and of a task no more than how it is asked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from .block import rms_norm
from .cache import Rows
from .control import Control
from .decode import generate, teacher_forced
from .errors import SettingsError
from .model import RiverModel
from .passes import Passes
from .planning import Plan, resolve
from .prompts import check_ids
from .recorder import Pass
from .settings import DecodeSettings
from .thresholds import threshold_of

SCORINGS = ("sequence", "token")


@dataclass(frozen=True)
class Order:
    """What one evaluation is: a task's name and how it is asked. None takes the task's own."""

    task: str
    limit: int | None = None
    shots: int | None = None
    seed: int = 0
    chat: bool = False
    allow_code: bool = False
    include: str | None = None


@dataclass(frozen=True)
class Scored:
    """A continuation's log-likelihood in nats, and whether greedy decoding would have chosen it.

    `mean_exit_layer` is over the `counted` rows that were scored at an exit of their own ("token")
    or that shared the one pass ("sequence"); `prompt_depth` is the prompt pass's exit layer;
    `tokens` those of the continuation; `truncated` how many of the context did not fit.
    """

    loglikelihood: float
    greedy: bool
    tokens: int
    mean_exit_layer: float
    counted: int
    prompt_depth: int
    truncated: int
    seconds: float


@dataclass(frozen=True)
class Written:
    """Text up to a stop string, the stop string left out; the rest as Scored.

    `mean_exit_layer` is over the decode passes, the prompt's depth where there are none;
    `decode_seconds` are those of the `counted` tokens after the first, by the engine's own clock.
    """

    text: str
    tokens: int
    mean_exit_layer: float
    counted: int
    prompt_depth: int
    truncated: int
    seconds: float
    decode_seconds: float


@dataclass(frozen=True)
class Scorer:
    """Answers for one model under one policy; `settings` are DecodeSettings' fields.

    `scoring` "sequence": context and continuation are one prompt pass, so all of it leaves after
    the same layer, where the policy's prompts leave at all (paper, prefill rule). "token": all of
    the context but its last token is the prompt; that token and the continuation are fed one by
    one, so each scored token has an exit of its own. Raises SettingsError for an unknown scoring
    and for what the policy cannot use.
    """

    model: RiverModel
    settings: Mapping[str, Any]
    scoring: str = "sequence"

    def __post_init__(self) -> None:
        if self.scoring not in SCORINGS:
            raise SettingsError(f"scoring is {self.scoring!r}; use one of {', '.join(SCORINGS)}.")
        if self.plan.draft and self.scoring == "token":
            raise SettingsError(
                f"policy {self.settings.get('policy')!r} verifies its own drafts, so its tokens "
                "cannot be forced; use scoring 'sequence'."
            )

    @property
    def plan(self) -> Plan:
        """What the settings come to on this model; SettingsError where they cannot be used."""
        info = self.model.info
        return resolve(self._checked(), self.model.num_layers, info.entry_layer)

    def _checked(self, **more: Any) -> DecodeSettings:
        return DecodeSettings.from_keywords({"full_trace": False, **self.settings, **more})

    def loglikelihood(self, context: Sequence[int], continuation: Sequence[int]) -> Scored:
        """ln P(continuation | context), both token ids; a context that is too long loses its start.

        Raises SettingsError where either is empty or out of the vocabulary, and where the policy
        cannot be scored this way; CacheFull where the continuation alone does not fit.
        """
        if not context or not continuation:
            raise SettingsError("scoring needs a context and a continuation of a token or more.")
        kept, truncated = self._fit(context, len(continuation))
        begun = time.perf_counter()
        with torch.inference_mode():
            score = self._sequence if self.scoring == "sequence" else self._token
            found = score(kept, tuple(continuation))
        return Scored(**found, truncated=truncated, seconds=time.perf_counter() - begun)

    def _sequence(self, context: Sequence[int], wanted: tuple[int, ...]) -> dict[str, Any]:
        """One prompt pass over context and continuation but its last token."""
        model, plan, settings = self.model, self.plan, self._checked()
        if plan.lens:
            raise SettingsError("sequence scoring takes head 'river'; use scoring 'token'.")
        fed = check_ids(model, (*context, *wanted[:-1]))
        check_ids(model, wanted)
        if plan.full_river:
            model.ensure_full_river()
        passes = Passes(model, plan, Control())
        passes.begin()
        threshold = threshold_of(model, settings, plan).value
        now = Pass(0, Rows(fed, tuple(range(len(fed)))), threshold)
        passes.run(now, plan.prefill == "exit")
        states = passes.engine.state()[-len(wanted) :]  # [n, d], at the end of whatever ran
        logits = model.head(rms_norm(states, model.final_norm, model.shape.eps)).float()
        ids = torch.tensor(wanted, device=logits.device).unsqueeze(1)
        logprobs = logits.log_softmax(-1).gather(1, ids)
        return {
            "loglikelihood": float(logprobs.sum()),
            "greedy": bool((logits.argmax(-1, keepdim=True) == ids).all()),
            "tokens": len(wanted),
            "mean_exit_layer": float(now.exit_layer),
            "counted": len(fed),
            "prompt_depth": now.exit_layer,
        }

    def _token(self, context: Sequence[int], wanted: tuple[int, ...]) -> dict[str, Any]:
        """Teacher-forced: the record of each scored token has its own exit."""
        split = max(1, len(context) - 1)
        forced = (*context[split:], *wanted)
        run = teacher_forced(
            self.model, tuple(context[:split]), forced, **{"full_trace": False, **self.settings}
        )
        scored = run.tokens[-len(wanted) :]
        return {
            "loglikelihood": sum(t.logprob for t in scored),
            "greedy": all(t.alternatives[0][0] == t.token_id for t in scored),
            "tokens": len(wanted),
            "mean_exit_layer": fmean(t.exit_layer for t in scored),
            "counted": len(scored),
            "prompt_depth": run.prompt.exit_layer,
        }

    def generate_until(
        self,
        context: Sequence[int],
        until: Sequence[str] = (),
        max_new_tokens: int = 256,
        **sampling: Any,
    ) -> Written:
        """Text after the context (token ids) until a stop string, a stop token or the length.

        `sampling` are DecodeSettings' temperature, top_p and seed; greedy without them. Special
        tokens are left out of the text. Raises SettingsError, CacheFull.
        """
        kept, truncated = self._fit(context, max_new_tokens)
        begun = time.perf_counter()
        more = {"max_new_tokens": max_new_tokens, "stop": tuple(until), "chat": False, **sampling}
        run = generate(self.model, kept, **{"full_trace": False, **self.settings, **more})
        ids = [t.token_id for t in run.tokens if t.token_id not in self.model.eos_ids]
        exits = [t.exit_layer for t in run.tokens[1:]]
        return Written(
            text=cut(self._text(ids), until),
            tokens=len(run.tokens),
            mean_exit_layer=fmean(exits) if exits else float(run.prompt.exit_layer),
            counted=len(exits),
            prompt_depth=run.prompt.exit_layer,
            truncated=truncated,
            seconds=time.perf_counter() - begun,
            decode_seconds=run.summary.decode_seconds,
        )

    def _text(self, ids: Sequence[int]) -> str:
        if self.model.tokenizer is None:
            raise SettingsError("this model has no tokenizer; text cannot be evaluated with it.")
        return str(self.model.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _fit(self, context: Sequence[int], room: int) -> tuple[tuple[int, ...], int]:
        """The end of the context that leaves `room` tokens in the cache; how many were dropped."""
        most = max(1, self.model.capacity - room)
        self.model.cache.check(1, room)
        return tuple(context[-most:]), max(0, len(context) - most)


def joined(scores: Sequence[Scored]) -> Scored:
    """The scores of a text's windows as one; `prompt_depth` is the first one's."""
    counted = [score.counted for score in scores]
    return Scored(
        loglikelihood=sum(score.loglikelihood for score in scores),
        greedy=all(score.greedy for score in scores),
        tokens=sum(score.tokens for score in scores),
        mean_exit_layer=fmean((score.mean_exit_layer for score in scores), counted),
        counted=sum(counted),
        prompt_depth=scores[0].prompt_depth,
        truncated=sum(score.truncated for score in scores),
        seconds=sum(score.seconds for score in scores),
    )


def cut(text: str, until: Sequence[str]) -> str:
    """`text` up to the first of the stop strings that it holds."""
    for stop in until:
        text = text.partition(stop)[0] if stop else text
    return text


def sequence_note(scorer: Scorer) -> str:
    """What sequence scoring means for this policy, in one sentence; "" where there is nothing."""
    plan = scorer.plan
    if scorer.scoring != "sequence" or (plan.exit_name == "never" and plan.skip is None):
        return ""
    if plan.prefill == "exit":
        return (
            "log-likelihoods are of one prompt pass, whose tokens all leave after the same layer "
            "(prefill rule 'exit')"
        )
    if plan.skip is not None:
        return "log-likelihoods are of one prompt pass, as the policy runs its prompts"
    return "log-likelihoods are of one prompt pass in full, so they are the backbone's"


def describe(scorer: Scorer) -> dict[str, Any]:
    """What a score depends on, for a file's header: weights, dtype, river, kernels, settings."""
    model, info = scorer.model, scorer.model.info
    return {
        "model": info.name,
        "origin": info.origin,
        "revision": info.revision,
        "num_layers": model.num_layers,
        "dtype": str(model.cache.k.dtype).removeprefix("torch."),
        "quantisation": info.quant.shown,
        "kernels": dict(info.kernels),
        "settings": {k: v for k, v in scorer.settings.items() if v not in (None, {})},
        "scoring": scorer.scoring,
        "note": sequence_note(scorer),
    }
