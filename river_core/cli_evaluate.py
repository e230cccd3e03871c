"""`evaluate`: benchmarks by lm-evaluation-harness on our loop, resumable, beside the paper's."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

from .cli_run import add_model_arguments, load_model
from .cli_study import numbers, study_file, write_table
from .cli_terminal import ProgressLine
from .errors import SettingsError
from .settings import DecodeSettings, QuantSpec, check_threshold

if TYPE_CHECKING:
    from .resumable import Lines

Setting = tuple[dict[str, Any], str | None]  # DecodeSettings' fields, and the back end compared
TABLE_4 = "hqq-4bit-g64,gptq-4bit-g64"
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
        default=None,
        help="comma-separated: the paper's names (GSM8K, MATH, BoolQ, HellaSwag, ARC-c, ARC-e, "
        "MMLU, HumanEval; data from the hub) or paper for all eight, river_math, river_choice, "
        "river_code (shipped), any task of the harness (default river_math,river_choice; with "
        "--table4 river_math)",
    )
    parser.add_argument("--policy", default=None, help="comma-separated (default river)")
    parser.add_argument(
        "--threshold",
        default=None,
        help="comma-separated, -1 to 1, or auto by the stored calibration (default: the model's)",
    )
    parser.add_argument(
        "--target-match", type=float, default=0.98, help="of --threshold auto (default 0.98)"
    )
    parser.add_argument(
        "--table4",
        action="store_true",
        help="the rows of the paper's Table 4 instead of --policy: the backbone, River and full "
        "quantization with each of --back-ends",
    )
    parser.add_argument(
        "--back-ends",
        default=None,
        help=f"of --table4, comma-separated as --river has one (default {TABLE_4})",
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
    from . import eval_report, paper_table4, paper_tables

    orders = _orders(args)
    default = "river_math" if args.table4 else "river_math,river_choice"
    tasks = _tasks(default if args.tasks is None else args.tasks)
    scorings = _names(args.scoring)
    if not scorings or not {*scorings} <= {"sequence", "token"}:
        raise SettingsError(f"--scoring is {args.scoring!r}; use sequence, token, or both.")
    if args.limit is not None and args.limit < 1:
        raise SettingsError(f"--limit is {args.limit}; use 1 or more.")
    from . import harness  # noqa: F401  # says what is missing before a model is loaded

    if args.allow_code:
        print(CODE_WARNING, file=sys.stderr)
    stem, file = study_file(args.report)
    for river, settings in orders:
        _run_model(args, file, river, settings, (tasks, scorings))
    found = eval_report.rows(file)
    lines = list(eval_report.table(file))
    whole = [*lines, "", "### The paper's tables, and ours beside them", ""]
    own = [row for row in found if row["back_end"] is None]
    beside = list(paper_tables.tables(own)) if own else []
    table_4 = list(paper_table4.tables(found)) if len(own) < len(found) else []
    write_table(stem.with_suffix(".md"), [*whole, *table_4, *([""] if table_4 else []), *beside])
    print("\n".join(map(json.dumps, found) if args.json else [*lines, *_after(table_4)]))
    return 0


def _after(table_4: list[str]) -> list[str]:
    return ["", *table_4] if table_4 else []


def _run_model(
    args: argparse.Namespace,
    file: Lines,
    river: str | None,
    settings: list[Setting],
    what: tuple[list[str], list[str]],
) -> None:
    """Load the model with one river and run every setting, task and scoring of it."""
    from .eval_parts import Part, in_force, run_part
    from .evaluate import Order
    from .harness import HARNESS_VERSION  # noqa: F401 (no library: said before a model loads)

    model = load_model(argparse.Namespace(**{**vars(args), "river": river}))
    names = ("limit", "shots", "seed", "chat", "allow_code", "include")
    asked = {name: getattr(args, name) for name in names}
    found: list[Part] = []
    for (setting, back_end), task, scoring in product(settings, *what):
        now, auto = in_force(model, setting, args.target_match)
        part = Part(now, task, scoring, back_end, auto)
        if part.name() not in [other.name() for other in found]:  # "auto" beside its own number
            found.append(part)
    progress = ProgressLine()
    try:
        for part in found:
            run_part(file, model, part, Order(task=part.task, **asked), progress)
    finally:
        progress.done()


def _orders(args: argparse.Namespace) -> list[tuple[str | None, list[Setting]]]:
    """Each river to load, and what to run with it."""
    from .paper_table4 import NONE

    if not args.table4:
        if args.back_ends is not None:
            raise SettingsError("--back-ends belongs to --table4; --river names one.")
        return [(args.river, [(setting, None) for setting in _settings(args)])]
    if args.policy is not None or args.river is not None:
        raise SettingsError("--table4 has its own policies and --back-ends; leave out the others.")
    labels = [QuantSpec.parse(x).label for x in _names(args.back_ends or TABLE_4)]
    if not labels or "16bit" in labels:
        raise SettingsError("--back-ends is empty or 16bit; name one, such as hqq-4bit-g64.")
    fixed = {"prefill": args.prefill} if args.prefill else {}
    thresholds: list[float | str | None] = [*_thresholds(args)] or [None]
    rivers = [{"policy": "river", "threshold": threshold, **fixed} for threshold in thresholds]
    found: list[tuple[str | None, list[Setting]]] = []
    for label in dict.fromkeys(labels):
        first: list[Setting] = [] if found else [({"policy": "backbone"}, NONE)]
        rows = [*rivers, {"policy": "full-quant"}]
        found.append((label, [*first, *((row, label) for row in rows)]))
    return found


def _settings(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """DecodeSettings' fields of every policy at every threshold, each once."""
    from .grid import NO_THRESHOLD
    from .policies import find_policy

    given = _thresholds(args)
    policies = _names("river" if args.policy is None else args.policy)
    if not policies:
        raise SettingsError("--policy is empty; name one, such as river.")
    for policy in policies:
        find_policy(policy)
        fixed = {"policy": policy, **({"prefill": args.prefill} if args.prefill else {})}
        if policy in NO_THRESHOLD or not given:
            yield fixed
        else:
            yield from (fixed | {"threshold": threshold} for threshold in given)


def _thresholds(args: argparse.Namespace) -> list[float | str]:
    """--threshold's numbers, and "auto" as it stands; SettingsError for anything else."""
    words = [] if args.threshold is None else args.threshold.split(",")
    found: list[float | str] = []
    for word in map(str.strip, words):
        found += [word] if word == "auto" else map(check_threshold, numbers(word, "--threshold"))
    DecodeSettings(target_match=args.target_match)
    return found


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
