"""`evaluate`: benchmarks by lm-evaluation-harness on our loop, resumable, beside the paper's."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .cli_run import add_model_arguments, load_model
from .cli_study import numbers, study_file, write_table
from .cli_terminal import ProgressLine
from .errors import SettingsError

if TYPE_CHECKING:
    from .evaluate import Scorer
    from .harness import Order
    from .model import RiverModel
    from .resumable import Lines

CODE_WARNING = (
    "WARNING: --allow-code runs programs that the model wrote. They run in a separate process with "
    "limits on time, memory and files and without network, which keeps mistakes in but is no wall "
    "against harm; do not use it on a machine that holds what you cannot lose, and prefer a "
    "container."
)


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    """Arguments of `evaluate`."""
    add_model_arguments(parser)
    parser.add_argument(
        "--tasks",
        default="river_math,river_choice",
        help="comma-separated: the paper's names (GSM8K, MATH, BoolQ, HellaSwag, ARC-c, ARC-e, "
        "MMLU, HumanEval; data from the hub) or paper for all eight, river_math, river_choice, "
        "river_code (shipped), any task of the harness (default river_math,river_choice)",
    )
    parser.add_argument("--policy", default="river", help="comma-separated (default river)")
    parser.add_argument(
        "--threshold", default=None, help="comma-separated, -1 to 1 (default: the model's)"
    )
    parser.add_argument("--prefill", default=None, help="exit or full (default: the policy's)")
    parser.add_argument(
        "--scoring",
        default="sequence",
        help="of log-likelihood tasks: sequence (one pass, one exit for all tokens), token (each "
        "scored token fed by itself, with its own exit), or both with a comma (default sequence)",
    )
    parser.add_argument("--limit", type=int, default=None, help="items per task (default: all)")
    parser.add_argument(
        "--shots", type=int, default=None, help="worked examples (default: the task's own number)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of examples and sampling (default 0)")
    parser.add_argument("--chat", action="store_true", help="apply the model's chat template")
    parser.add_argument("--allow-code", action="store_true", help=CODE_WARNING)
    parser.add_argument(
        "--include", default=None, metavar="FOLDER", help="a folder of the harness's task files"
    )
    parser.add_argument(
        "--report",
        default="evaluate",
        metavar="STEM",
        help="append each item to STEM.jsonl as it is answered, going on with what is there; then "
        "write the tables between the markers of STEM.md (default evaluate)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON line per row")


def run_evaluate(args: argparse.Namespace) -> int:
    """Score benchmarks under a policy by lm-evaluation-harness (an extra: pip install lm-eval).

    Every answer is kept as it comes, so a run that was stopped goes on. Prints score, interval,
    exits, tokens and seconds per task; STEM.md has them beside the paper's tables.
    """
    from . import eval_report, paper_tables

    settings = list(_settings(args))
    tasks, scorings = _tasks(args.tasks), _names(args.scoring)
    if not scorings or not {*scorings} <= {"sequence", "token"}:
        raise SettingsError(f"--scoring is {args.scoring!r}; use sequence, token, or both.")
    if args.limit is not None and args.limit < 1:
        raise SettingsError(f"--limit is {args.limit}; use 1 or more.")
    from . import harness  # noqa: F401  # says what is missing before a model is loaded

    if args.allow_code:
        print(CODE_WARNING, file=sys.stderr)
    stem, file = study_file(args.report)
    model = load_model(args)
    progress = ProgressLine()
    try:
        for setting in settings:
            for task in tasks:
                for scoring in scorings:
                    _run_part(args, file, model, (setting, task, scoring), progress)
    finally:
        progress.done()
    found = eval_report.rows(file)
    lines = list(eval_report.table(file))
    beside = ["", "### The paper's tables, and ours beside them", "", *paper_tables.tables(found)]
    write_table(stem.with_suffix(".md"), [*lines, *beside])
    print("\n".join(map(json.dumps, found) if args.json else lines))
    return 0


def _run_part(
    args: argparse.Namespace,
    file: Lines,
    model: RiverModel,
    what: tuple[dict[str, Any], str, str],
    progress: ProgressLine,
) -> None:
    """One task under one setting: its header, the items that the file lacks, its result."""
    from .evaluate import Scorer
    from .harness import Order, RiverLM, evaluate_task
    from .sandbox import network_off

    setting, task, scoring = what
    name = _part(setting, task, "sequence")
    if scoring != "sequence":
        if any("text" in answer for item in file.of(name, "item") for answer in item["answers"]):
            return  # text has token-level exits whatever the scoring
        name = _part(setting, task, scoring)
    if file.of(name, "skipped"):
        return
    try:
        scorer = Scorer(model, setting, scoring)
    except SettingsError as error:
        if scoring == "sequence":
            raise
        file.append({"part": name, "type": "skipped", "reason": str(error)})
        return
    order = Order(
        task=task,
        limit=args.limit,
        shots=args.shots,
        seed=args.seed,
        chat=args.chat,
        allow_code=args.allow_code,
        include=args.include,
    )
    file.begin(name, _header(scorer, order))
    if file.of(name, "result"):
        return
    network = network_off() if args.allow_code else ""
    result = evaluate_task(RiverLM(scorer, file, name, args.seed, progress), order)
    file.append({"part": name, "type": "result", "task": task, **result, "network": network})


def _part(setting: dict[str, Any], task: str, scoring: str) -> str:
    """The name of a part of the file."""
    words = [task, setting["policy"]]
    words += [f"{name} {setting[name]}" for name in ("threshold", "prefill") if name in setting]
    return ", ".join([*words, *([f"scoring {scoring}"] if scoring != "sequence" else [])])


def _header(scorer: Scorer, order: Order) -> dict[str, Any]:
    """What the part's answers depend on; leave to run code is none of it."""
    from .evaluate import describe
    from .harness import HARNESS_VERSION

    names = ("task", "limit", "shots", "seed", "chat")
    asked = {name: getattr(order, name) for name in names}
    return {**describe(scorer), "harness": f"lm-eval {HARNESS_VERSION}", **asked}


def _settings(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """DecodeSettings' fields of every policy at every threshold, each once."""
    from .grid import NO_THRESHOLD
    from .policies import find_policy
    from .settings import check_threshold

    given = [check_threshold(number) for number in numbers(args.threshold, "--threshold")]
    policies = _names(args.policy)
    if not policies:
        raise SettingsError("--policy is empty; name one, such as river.")
    for policy in policies:
        find_policy(policy)
        fixed = {"policy": policy, **({"prefill": args.prefill} if args.prefill else {})}
        if policy in NO_THRESHOLD or not given:
            yield fixed
        else:
            yield from (fixed | {"threshold": threshold} for threshold in given)


def _tasks(text: str) -> list[str]:
    """The harness's names; the paper's own become those."""
    from .paper_tables import BENCHMARKS

    known = {name.lower(): about.task for name, about in BENCHMARKS.items()}
    found: list[str] = []
    for name in _names(text):
        every = list(known.values())
        found += every if name.lower() == "paper" else [known.get(name.lower(), name)]
    if not found:
        raise SettingsError("--tasks is empty; name one, such as river_choice.")
    return list(dict.fromkeys(found))


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
