"""lm-evaluation-harness on our loop: the only file that imports lm_eval, an optional extra.

RiverLM answers the harness's requests by evaluate.py and keeps every answer in a JSON Lines file,
so that a run that was stopped goes on where it was. Importing this file without the extra raises
SettingsError.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from .errors import RiverError, SettingsError
from .eval_report import RUNS_CODE
from .evaluate import Order, Scorer, joined
from .resumable import Lines

try:
    from lm_eval import simple_evaluate
    from lm_eval.api.model import TemplateLM
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:
    raise SettingsError(
        f"evaluate needs lm-evaluation-harness, which is not whole here ({error}); install it "
        "with pip install 'lm-eval[math]>=0.4.13,<0.5'."
    ) from error

HARNESS_VERSION = version("lm_eval")
OWN_TASKS = Path(__file__).parent / "tasks"
LOCAL = ("river_math", "river_choice", "river_code")
MAX_NEW_TOKENS = 256  # the harness's own default
# The metric that a table shows, by the paper's tables; of any other task its first one.
METRICS = (
    *("exact_match,strict-match", "math_verify,none", "exact_match,none"),
    *("acc,none", "pass_at_1,none"),
)

Say = Callable[[str, float | None], None]
Answer = dict[str, Any]


class RiverLM(TemplateLM):  # type: ignore[misc]
    """A RiverModel as the harness knows models; one request at a time.

    `kept` is the file and `part` what of it this run is: items that it holds are not computed
    again. `say` hears how far a run is.
    """

    def __init__(self, scorer: Scorer, kept: Lines, part: str, seed: int, say: Say) -> None:
        super().__init__()
        if scorer.model.tokenizer is None:
            raise SettingsError("this model has no tokenizer; the harness asks in text.")
        self.tokenizer = scorer.model.tokenizer
        self.scorer, self._kept, self._part = scorer, kept, part
        self._seed, self._say = seed, say
        found = kept.of(part, "item")
        self._known = {(x["task"], x["doc"], x["asked"]): x["answers"] for x in found}

    @property
    def eot_token_id(self) -> int:
        """The id that ends a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """What stands for an empty context: the beginning of a text, else its end."""
        own = self.tokenizer.bos_token_id
        return self.eot_token_id if own is None else int(own)

    @property
    def max_length(self) -> int:
        """Tokens that the cache holds."""
        return self.scorer.model.capacity

    @property
    def tokenizer_name(self) -> str:
        """Names the model in the harness's own caches."""
        return self.scorer.model.info.name.replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Token ids as the harness's Hugging Face model takes them."""
        given = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        if not given and string.startswith(self.tokenizer.decode([self.prefix_token_id])):
            given = {"add_special_tokens": False}
        return list(self.tokenizer.encode(string, **given))

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Messages as one text by the model's own template; SettingsError where it has none."""
        if not self.tokenizer.chat_template:
            raise SettingsError("this model has no chat template; leave --chat out.")
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """(ln P(continuation | context) in nats, whether greedy decoding would say it) of each."""
        return [(a["loglikelihood"], a["greedy"]) for a in self._answers(requests, self._score)]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Text of each up to its stop strings."""
        return [answer["text"] for answer in self._answers(requests, self._write)]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """ln P of whole texts in nats, in windows of as much context as the cache holds."""
        return [answer["loglikelihood"] for answer in self._answers(requests, self._roll)]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        found = [self.scorer.loglikelihood(context, wanted) for _, context, wanted in requests]
        return [(score.loglikelihood, score.greedy) for score in found]

    def _answers(
        self, requests: Sequence[Any], ask: Callable[[Any, int], Answer]
    ) -> Iterator[Answer]:
        """Each request's answer: from the file, or computed and written, an item at a time."""
        items = groupby(requests, key=lambda request: (request.task_name, request.doc_id))
        done = 0
        for (task, doc), group in items:
            asked = list(group)
            key = (task, doc, digest([request.args for request in asked]))
            self._say(f"{self._part}: {task} {doc}", done / len(requests))
            answers = self._known.get(key)
            if answers is None:
                answers = [ask(request.args, n) for n, request in enumerate(asked)]
                line = {"part": self._part, "type": "item", "task": task, "doc": doc}
                self._kept.append(line | {"asked": key[2], "answers": answers})
            done += len(asked)
            yield from answers

    def _score(self, args: tuple[str, str], _: int) -> Answer:
        return _rounded(asdict(self.scorer.loglikelihood(*self._pair(*args))))

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Token ids of both, split where the context's own end."""
        if context:
            found: tuple[list[int], list[int]] = self._encode_pair(context, continuation)
            return found
        ids = self.tok_encode(continuation, add_special_tokens=False)
        own = ids[:1] == [self.prefix_token_id]
        return (ids[:1], ids[1:]) if own else ([self.prefix_token_id], ids)

    def _write(self, args: tuple[str, Mapping[str, Any]], n: int) -> Answer:
        context, wanted = args
        until = wanted.get("until") or []
        until = [until] if isinstance(until, str) else until
        until = [*until, self.tokenizer.decode([self.eot_token_id])]
        names = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
        most = next((wanted[name] for name in names if wanted.get(name)), MAX_NEW_TOKENS)
        sampling: dict[str, Any] = {}
        if wanted.get("do_sample"):
            heat, top = wanted.get("temperature", 1.0), wanted.get("top_p", 1.0)
            sampling = {"temperature": float(heat), "top_p": float(top), "seed": self._seed + n}
        asked = (self.tok_encode(context), until, int(most))
        return _rounded(asdict(self.scorer.generate_until(*asked, **sampling)))

    def _roll(self, args: tuple[str], _: int) -> Answer:
        windows = get_rolling_token_windows(
            token_list=self.tok_encode(args[0]),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length - 1,
            context_len=1,
        )
        found = [self.scorer.loglikelihood(*make_disjoint_window(window)) for window in windows]
        return _rounded(asdict(joined(found)))


def digest(values: Any) -> str:
    """Short and stable name of what was asked."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def _rounded(answer: Answer) -> Answer:
    """As the file keeps it: exits to 4 decimals, seconds to milliseconds, scores as they are."""
    short = {"mean_exit_layer": 4, "seconds": 3, "decode_seconds": 4}
    return {k: round(v, short[k]) if k in short else v for k, v in answer.items()}


def evaluate_task(lm: RiverLM, order: Order) -> dict[str, Any]:
    """Run one task, or a group of them, by `simple_evaluate`; its scores as a line of the file.

    `right` holds the shown metric of every item, in order. Raises SettingsError for a task that
    is unknown, whose data cannot be had, or that runs code without leave.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    folders = [str(OWN_TASKS), *([order.include] if order.include else [])]
    try:
        manager = TaskManager(include_path=folders, include_defaults=order.task not in LOCAL)
        found = simple_evaluate(
            model=lm,
            tasks=[order.task],
            num_fewshot=order.shots,
            limit=order.limit,
            bootstrap_iters=1000,
            apply_chat_template=order.chat,
            task_manager=manager,
            random_seed=order.seed,
            numpy_random_seed=order.seed,
            torch_random_seed=order.seed,
            fewshot_random_seed=order.seed,
            confirm_run_unsafe_code=order.allow_code and order.task in RUNS_CODE,
        )
    except RiverError:
        raise
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise SettingsError(_reason(order, error)) from error
    return _result(found, order.task)


def _reason(order: Order, error: Exception) -> str:
    """One sentence of what went wrong in the harness."""
    if "unsafe" in str(error):
        if order.task in RUNS_CODE:
            return (
                f"{order.task} runs code that the model wrote; --help says what --allow-code does."
            )
        return f"{order.task} runs code outside our sandbox; {', '.join(RUNS_CODE)} run inside it."
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, ConnectionError):
        return (
            f"{order.task} cannot be run: its data is not here and the Hugging Face hub does not "
            "answer; use river_math, river_choice, river_code, or --include a folder of task files "
            "whose data is here."
        )
    return (
        f"{order.task} cannot be run ({type(error).__name__}: {first[:200]}); see `lm-eval ls "
        "tasks` for names, use the local river_math, river_choice, river_code, or give --include "
        "a folder of task files whose data is here."
    )


def _result(found: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Scores of a task or group, and the shown metric of each item.

    A group that does not say how its tasks count is the mean over all items, without an error.
    """
    scores = _scores(found["results"].get(task, {}))
    first = scores or _scores(next(found["results"][name] for name in found["samples"]))
    shown = next((name for name in METRICS if name in first), None)
    shown = shown or next(name for name in first if "_stderr" not in name)
    metric, kind = shown.split(",")
    items = [
        float(sample[metric])
        for samples in found["samples"].values()
        for sample in samples
        if sample["filter"] == kind and metric in sample
    ]
    return {
        "metric": shown,
        "score": scores[shown] if scores else fmean(items),
        "stderr": scores.get(f"{metric}_stderr,{kind}"),
        "n": len(items),
        "right": items,
        "shots": sorted({int(found["n-shot"][name]) for name in found["samples"]}),
        "scores": scores,
    }


def _scores(results: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a task's results, by "metric,filter"."""
    return {
        name: float(value)
        for name, value in results.items()
        if isinstance(value, int | float) and "," in name
    }
