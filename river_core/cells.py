"""One setting on one prompt: agreement with the backbone, or speed.

A consumer of the loop. A study is a file of such lines (resumable.py): what is in it is not
measured again. Knows nothing of which settings are worth comparing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from .compare import compare
from .control import Control, refuse_stopped
from .decode import generate, teacher_forced
from .devices import processor
from .errors import SettingsError
from .model import RiverModel
from .records import RunRecord
from .resumable import Lines
from .sweep import Say
from .sweep import header as sweep_header

BASELINE = "backbone"
WARM_UP_TOKENS = 16
WHAT = "the measurement"


@dataclass(frozen=True)
class Setting:
    """What is measured: a policy under a head, at a threshold or a fixed exit layer.

    None means the policy's or the model's own value. `draft` and `fill` are the policy's options.
    """

    policy: str
    head: str | None = None
    threshold: float | None = None
    exit_layer: int | None = None
    draft: int | None = None
    fill: str | None = None
    prefill: str | None = None

    def keywords(self) -> dict[str, Any]:
        """As DecodeSettings takes it."""
        options = {name: getattr(self, name) for name in ("exit_layer", "draft", "fill")}
        options = {name: value for name, value in options.items() if value is not None}
        exit_rule = None if self.exit_layer is None else "fixed"
        names = ("policy", "head", "threshold", "prefill")
        given = {name: getattr(self, name) for name in names}
        return {**given, "exit": exit_rule, "options": options, "full_trace": False}

    def named(self) -> dict[str, Any]:
        """What is set, as a line of the file holds it."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Setting:
        """The setting that a line names."""
        return cls(**{f.name: line[f.name] for f in fields(cls) if f.name in line})

    @property
    def label(self) -> str:
        """Policy and point, for a line of progress."""
        return f"{self.policy} {self.point}".strip()

    @property
    def point(self) -> str:
        """Where it leaves and how it drafts, for a table."""
        words = []
        if self.threshold is not None:
            words.append(f"threshold {self.threshold:g}")
        if self.exit_layer is not None:
            words.append(f"exit layer {self.exit_layer}")
        if self.draft is not None:
            words.append(f"draft {self.draft}")
        return ", ".join(words)


@dataclass(frozen=True)
class Reference:
    """The backbone's greedy run for a prompt, and the same tokens fed back with logits kept."""

    free: RunRecord
    forced: RunRecord

    @classmethod
    def of(
        cls,
        model: RiverModel,
        prompt: str | list[int],
        tokens: int,
        *,
        control: Control | None = None,
    ) -> Reference:
        """Decode at most `tokens` tokens (fewer where the backbone ends), then feed them.

        Raises RiverError within a pass once `control` was cancelled; so do `quality` and `timed`.
        """
        own: dict[str, Any] = {"policy": BASELINE, "full_trace": False, "control": control}
        free = generate(model, prompt, max_new_tokens=tokens, **own)
        refuse_stopped(control, WHAT)
        forced = teacher_forced(model, prompt, [t.token_id for t in free.tokens], **own)
        refuse_stopped(control, WHAT)
        return cls(free, forced)


def quality(
    model: RiverModel,
    prompt: str | list[int],
    reference: Reference,
    setting: Setting,
    *,
    control: Control | None = None,
) -> dict[str, Any]:
    """Agreement of `setting` with the reference: teacher-forced, or where that is refused free.

    `mode` says which, `note` why; free runs have no KL and match up to the first difference.
    Raises SettingsError where the policy refuses the setting either way.
    """
    ids = [t.token_id for t in reference.forced.tokens]
    given = setting.keywords() | {"max_new_tokens": len(ids), "control": control}
    mode, note, base = "forced", "", reference.forced
    try:
        run = teacher_forced(model, prompt, ids, **given)
    except SettingsError as error:
        mode, note, base = "free", str(error), reference.free
        run = generate(model, prompt, **given)
    refuse_stopped(control, WHAT)
    found, counters, depth = compare(base, run), run.summary.counters, run.summary.mean_exit_layer
    return {
        "mode": mode,
        **({"note": note} if note else {}),
        "tokens": found.compared,
        "match": round(found.match, 6),
        "kl": None if found.kl is None else round(found.kl, 6),
        "top5_overlap": round(found.top5_overlap, 6),
        "first_difference": found.first_difference,
        "mean_exit_layer": round(float(run.prompt.exit_layer if depth is None else depth), 4),
        "prompt_depth": run.prompt.exit_layer,
        **{name: counters[name] for name in ("slots_missing", "extra_rows", "drafted", "accepted")},
    }


def timed(
    model: RiverModel,
    prompt: str | list[int],
    tokens: int,
    setting: Setting,
    *,
    control: Control | None = None,
) -> dict[str, Any]:
    """One greedy run by its own clock: tokens per second after the first, and what it did.

    `text` is a digest of its token ids: two runs with the same one said the same.
    """
    run = generate(model, prompt, control=control, max_new_tokens=tokens, **setting.keywords())
    refuse_stopped(control, WHAT)
    said, done = ",".join(str(t.token_id) for t in run.tokens), run.summary
    rate, depth = done.tokens_per_second, done.mean_exit_layer
    if rate is None or depth is None:
        raise SettingsError("a run of one token has no speed; use 2 tokens or more.")
    return {
        "tokens_per_second": round(rate, 3),
        "mean_exit_layer": round(depth, 4),
        "drafted": done.counters["drafted"],
        "accepted": done.counters["accepted"],
        "text": hashlib.sha256(said.encode()).hexdigest()[:12],
        "execution": done.kernels["execution"],
    }


@dataclass(frozen=True)
class Study:
    """A part of a file, measured for one model over some prompts, `tokens` tokens each.

    Once `control` is cancelled, RiverError is raised within a pass; no line is written of it.
    """

    file: Lines
    part: str
    model: RiverModel
    prompts: Sequence[Any]  # texts, or lists of token ids
    tokens: int
    say: Say
    control: Control | None = None

    def begin(self) -> None:
        """The part's header: model, kernels, machine, prompts. SettingsError where it differs."""
        head = sweep_header(self.model, self.prompts, self.tokens)
        head |= {"type": "header", "threads": torch.get_num_threads()}
        self.file.begin(self.part, head | {"processor": processor(self.model.device)})

    def quality(self, settings: Sequence[Setting]) -> None:
        """Agreement of every setting on every prompt; a refused one is kept with the reason."""
        done = {(Setting.of(x), x["prompt"]) for x in self.file.of(self.part, "cell", "skipped")}
        cells = [(n, s) for n in range(len(self.prompts)) for s in settings if (s, n) not in done]
        reference, of = None, -1
        for at, (n, setting) in enumerate(cells):
            self.say(f"prompt {n + 1}: {setting.label}", at / len(cells))
            if reference is None or of != n:
                prompt, of = self.prompts[n], n
                reference = Reference.of(self.model, prompt, self.tokens, control=self.control)
            try:
                found = quality(self.model, prompt, reference, setting, control=self.control)
            except SettingsError as error:
                self._write("skipped", setting, {"prompt": n, "reason": str(error)})
            else:
                self._write("cell", setting, {"prompt": n, **found})

    def speed(self, settings: Sequence[Setting], rounds: int) -> None:
        """Greedy runs, interleaved after a warm-up; round r decodes prompt r, and so round again.

        Stop ids are decoded through. Every round starts one setting later than the one before.
        """
        model = replace(self.model, eos_ids=())
        done = {(Setting.of(x), x["round"]) for x in self.file.of(self.part, "time")}
        refused = {Setting.of(x) for x in self.file.of(self.part, "skipped")}
        todo = [s for s in settings if s not in refused]
        todo = [s for s in todo if any((s, r) not in done for r in range(rounds))]
        runs = [s for n, s in enumerate(todo) if self._warm(model, s, n / len(todo))]
        for r in range(rounds):
            first = r % max(1, len(runs))
            for at, setting in enumerate([*runs[first:], *runs[:first]]):
                if (setting, r) in done:
                    continue
                share = (r + at / len(runs)) / rounds
                self.say(f"round {r + 1} of {rounds}: {setting.label}", share)
                prompt = r % len(self.prompts)
                given = self.prompts[prompt], self.tokens, setting
                found = timed(model, *given, control=self.control)
                self._write("time", setting, {"round": r, "prompt": prompt, **found})

    def _warm(self, model: RiverModel, setting: Setting, share: float) -> bool:
        """Run it once for a few tokens; False where the policy refuses it, which is written."""
        self.say(f"warming up {setting.label}", share)
        try:
            tokens = max(2, min(self.tokens, WARM_UP_TOKENS))
            timed(model, self.prompts[0], tokens, setting, control=self.control)
        except SettingsError as error:
            self._write("skipped", setting, {"prompt": None, "reason": str(error)})
            return False
        return True

    def _write(self, kind: str, setting: Setting, found: Mapping[str, Any]) -> None:
        self.file.append({"part": self.part, "type": kind, **setting.named(), **found})
