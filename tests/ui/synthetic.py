"""Made-up runs for the page tests: hostile tokens, split emoji, a long answer, both lanes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

from app.views.english import told
from app.views.packing import pack_trace
from app.views.run import Lane, Run
from app.views.snapshot import append, card_view, snapshot
from app.views.window import Window
from app.views.wording import say
from river_core.errors import RiverError, SettingsError
from river_core.records import CacheUpdate, PromptRecord, RunSummary, TokenRecord
from tests.ui.made_studies import StubStudies
from tests.ui.made_tasks import play_task
from tests.ui.synthetic_records import lines_of, made_card

LAYERS = 30
TAU = 0.98
EMPTY = "prompt is empty; type at least one word."
HOSTILE = (
    "${1+1}",
    "${",
    "`",
    "```",
    "{{value}}",
    "</script>",
    "<img src=x onerror=\"window.pwned=1;alert('x')\">",
    "<script>window.pwned=1</script>",
    " &lt;b&gt;",
    "\\u003c",
    "'\"",
    "\n",
    "\n\n",
    "\t",
    " ",
    "   ",
    " \u05e9\u05dc\u05d5\u05dd",
    " \u0645\u0631\u062d\u0628\u0627",
    "\u202eevil\u202c",
    "\u200b",
    "\u0301",
    "\x00",
    " __proto__",
    " " + "W" * 180,
)
EMOJI = (("", "20f09f"), ("", "8c"), (" \U0001f30a", "8a"))  # one character over three tokens
EVERY_SOURCE = "b" * 6 + "r" * 5 + "p" * 5 + "m" * 5 + "d" * 5 + "n" * 4  # no policy does this


LATER = CacheUpdate(11, (22, 23, 24, 25, 26), "b", 3)  # its deferred slots, by the pass of token 4


def _words(text: str) -> list[str]:
    return text.split()


WORDS = _words(
    "Rain is made up of water , which is a liquid . When it rains , water is collected in a place "
    "called a river or a lake . This water can come from many things , like a river , a lake , or "
    "even a small stream . The water can also come from the ground , and"
)
OTHER = _words(
    "Rain is made by water . It 's a big part of the world , and it 's made of water molecules . "
    "Water molecules are tiny little things , and they 're made up of two parts : one part is "
    "water and"
)


def spoken(words: list[str]) -> list[tuple[str, str]]:
    """(text, raw) pairs: words with their leading space, punctuation without."""
    tight = (".", ",", ":", "'s", "'re")
    return [((w if i == 0 or w in tight else f" {w}"), "") for i, w in enumerate(words)]


def trace(rng: random.Random, exit_layer: int) -> tuple[float, ...]:
    """Similarities of one pass that left after `exit_layer` at threshold TAU."""
    values = [rng.uniform(0.1, 0.45), rng.uniform(0.8, 0.9)]
    values += [rng.uniform(0.88, 0.9795) for _ in range(LAYERS)]
    values = values[:exit_layer]
    if 2 < exit_layer < LAYERS:
        values[-1] = rng.uniform(0.981, 0.99)
    if exit_layer == LAYERS:
        values[-1] = rng.uniform(0.7, 0.9)
    return tuple(values)


def whole(token: TokenRecord, rng: random.Random) -> tuple[float, ...]:
    """The token's similarities with those of the layers that it did not run."""
    rest = [rng.uniform(0.9, 0.995) for _ in range(LAYERS - token.exit_layer)]
    return (*token.similarities, *rest)


def token(
    index: int, text: str, raw: str, exit_layer: int, prompt: int, rng: random.Random
) -> TokenRecord:
    """One TokenRecord whose path and KV source are River's."""
    path = "b" * exit_layer + "r" * (LAYERS - exit_layer)
    source = EVERY_SOURCE if text in HOSTILE[:2] else path
    return TokenRecord(
        index=index,
        position=prompt + index,
        token_id=abs(hash((text, raw))) % 49152,
        text=text,
        exit_layer=exit_layer,
        forced=False,
        threshold=TAU,
        similarities=trace(rng, exit_layer),
        path=path,
        kv_source=source,
        logprob=-0.4,
        entropy=1.3,
        alternatives=(
            (abs(hash((text, raw))) % 49152, text, -0.4),
            (5, " river", -1.9),
            (6, HOSTILE[6], -2.6),
            (7, "\n", -3.4),
            (8, "\ufffd", -4.0),
        ),
        seconds=0.029 * index,
        raw=raw,
    )


def prompt_record(depth: int) -> PromptRecord:
    """A chat prompt of eleven tokens, all at `depth`."""
    texts = ("<|im_start|>", "user", "\n", "Explain", " to", " a", " child", " how", " rain", " is",
             " made.")  # fmt: skip
    return PromptRecord(
        token_ids=tuple(range(len(texts))),
        texts=texts,
        exit_layer=depth,
        similarities=tuple(0.5 for _ in range(depth)),
        kv_source=("b" * depth + "r" * (LAYERS - depth),) * len(texts),
        seconds=0.214,
        chat=True,
    )


def summary(mean: float, rate: float, reason: str = "length") -> RunSummary:
    """A summary with a memory ledger and kernels."""
    return RunSummary(
        stop_reason=reason,
        prefill_seconds=0.214,
        decode_seconds=1.9,
        tokens_per_second=rate,
        mean_exit_layer=mean,
        layers_saved=1 - mean / LAYERS,
        decision_microseconds=41.2 if mean < LAYERS else None,
        memory={
            "embedding": 56_623_104, "head": 0, "backbone": 212_000_000, "river": 57_700_000,
            "norms": 140_000, "kv": 94_371_840, "buffers": 1_048_576,
        },
        counters={},
        kernels={"execution": "eager", "1536x576": "int4 aten", "576x576": "bf16 mkldnn"},
        device="cpu",
        versions={"torch": "2.13.0", "river": "0.1.0"},
    )  # fmt: skip


def answers(kind: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(River's, the backbone's) texts for kind "plain", "hostile", "long" or "huge"."""
    if kind == "hostile":
        texts = [(t, "") for t in HOSTILE] + list(EMOJI) + [(" end", ""), ("", "")]
        return texts, [*texts[:5], *spoken(OTHER)]
    if kind == "huge":
        return spoken(WORDS * 40)[:2000], spoken(OTHER)
    if kind == "long":
        return spoken(WORDS * 8)[:400], spoken(OTHER * 9)[:400]
    return spoken(WORDS), spoken(OTHER)


class StubSource(StubStudies):
    """Plays synthetic runs through the interface that the page has to the runner."""

    def __init__(self, pause: float = 0.03) -> None:
        super().__init__()
        self.pause = pause
        self.live: list[Any] = []
        self.asked: dict[str, Any] = {}
        self.kept: dict[str, str] = {}
        self.shown: Run | None = None
        self.card = made_card(LAYERS, TAU)

    def cards(self) -> Iterator[dict[str, Any]]:
        """Ready at once."""
        yield card_view(self.card)

    def run(self, values: Mapping[str, Any], session: str) -> Iterator[dict[str, Any]]:
        """Snapshots of a made-up run; the prompt "long", "huge" or "hostile" chooses the answer."""
        self.stopped.clear()
        self.asked = dict(values)
        prompt = values["prompt"]
        run = Run(f"run{time.monotonic_ns()}", "prompt", notes=self.card.notes)
        run.upper.policy, run.lower.policy = values["upper"], values["lower"]
        if not prompt.strip():
            run.error, run.phase = told(RiverError(EMPTY)), "failed"
            yield snapshot(run, self.card)
            return
        kind = prompt if prompt in ("long", "hostile", "huge") else "plain"
        rng, window = random.Random(7), Window()
        for lane, texts in zip(run.lanes, answers(kind), strict=True):
            lane.num_layers = LAYERS
            run.phase = lane.phase = "prompt"
            yield snapshot(run, self.card)
            deep = lane.name == "lower"
            lane.prompt = prompt_record(LAYERS if deep else 5)
            yield from self._decode(run, lane, texts, rng, window)
            if self.stopped.is_set():
                break
        if not self.stopped.is_set():
            run.upper.trace = [pack_trace(whole(t, rng)) for t in run.upper.tokens]
        self.keep(run)
        run.phase = "stopped" if self.stopped.is_set() else "done"
        self.shown = run
        self.kept[run.id] = lines_of(run, self.card, self.asked)
        yield snapshot(run, self.card)

    def _decode(
        self,
        run: Run,
        lane: Lane,
        texts: list[tuple[str, str]],
        rng: random.Random,
        window: Window,
    ) -> Iterator[dict[str, Any]]:
        deep = lane.name == "lower"
        run.phase = lane.phase = "decoding"
        often = 40 if len(texts) > 1000 else 5
        for index, (text, raw) in enumerate(texts):
            if self.stopped.is_set():
                break
            exits = LAYERS if deep else rng.choice((3, 4, 4, 8, 13, 14, 15, 22, 26, 30, 30, 30))
            append(lane, token(index, text, raw, exits, 11, rng))
            if index == LATER.pass_index and texts[0][0] == HOSTILE[0] and not deep:
                lane.updates.append(LATER)
            if index % often == often - 1:
                time.sleep(self.pause)
                yield snapshot(run, self.card, window.starts(run.counts))
        mean = sum(t.exit_layer for t in lane.tokens) / max(1, len(lane.tokens))
        eos = bool(texts) and texts[-1] == ("", "")
        lane.summary = summary(mean, 27.1 if deep else 33.9, "eos" if eos else "length")
        lane.phase = "done"

    def stop(self, session: str) -> None:
        """Stop the run on show."""
        self.stopped.set()

    def task(self, kind: str, run_id: str, session: str) -> Iterator[dict[str, Any]]:
        """Work on the made-up run, over in a few views; stopped like a run."""
        yield from play_task(self, kind, run_id)

    def set_threshold(self, value: Any, session: str) -> None:
        """Note it."""
        self.live.append(value)

    def set_resident(self, layers: int | str) -> None:
        """Take 1 to all."""
        if layers not in range(1, LAYERS + 1):
            raise SettingsError(f"resident_layers is {layers!r}; use 1 to {LAYERS}.")
        self.card.resident = int(layers)

    def generate(self, prompt: str, **settings: Any) -> dict[str, Any]:
        """Echo, or refuse an empty prompt."""
        if not prompt:
            raise SettingsError(EMPTY)
        return {"text": prompt, **settings}

    def compare(self, prompt: str, upper: str, lower: str, **settings: Any) -> dict[str, Any]:
        """Echo."""
        return {"text": prompt, "upper": upper, "lower": lower, **settings}

    def lines(self, run_id: str) -> str:
        """What was kept, or the runner's refusal."""
        if run_id not in self.kept:
            raise RiverError(say("error.no_record", kept=16))
        return self.kept[run_id]

    def record(self, run_id: str, lane: str) -> dict[str, Any]:
        """Echo."""
        return {"run_id": run_id, "lane": lane}
