"""`compare` and `sweep`: saved runs side by side; settings against agreement."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .cli_run import add_model_arguments, load_model
from .cli_terminal import ProgressLine
from .errors import SettingsError

if TYPE_CHECKING:
    from .metrics import RunNumbers
    from .resumable import Lines


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Arguments of `compare`."""
    parser.add_argument("reference", help="a saved run (JSON Lines)")
    parser.add_argument("other", help="another run of the same prompt")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_compare(args: argparse.Namespace) -> int:
    """Compare two saved runs by what their records hold."""
    from .compare import compare
    from .records import RunRecord

    found = compare(RunRecord.load(args.reference), RunRecord.load(args.other))
    if args.json:
        exits = {"exits": [found.reference.exits, found.other.exits]}
        print(json.dumps(asdict(found) | exits))
        return 0
    first = "none" if found.first_difference is None else str(found.first_difference)
    print(f"match {found.match:.3f} over {found.compared} tokens, first difference {first}")
    print(f"top-5 overlap {found.top5_overlap:.3f}")
    print(found.kl_note if found.kl is None else f"KL {found.kl:.4f} nats")
    for name, numbers in (("reference", found.reference), ("other", found.other)):
        print(f"{name}: {numbers.policy}")
        for line in _number_lines(numbers):
            print(f"  {line}")
    return 0


def _number_lines(n: RunNumbers) -> Iterator[str]:
    """A run's numbers, a line per subject; a dash for what the record does not hold."""
    saved = None if n.layers_saved is None else 100 * n.layers_saved
    depth = _shown(n.mean_exit_layer, ".2f")
    yield f"mean exit layer {depth}, layers saved {_shown(saved, '.1f')} %"
    yield "exits " + (", ".join(f"{layer}: {count}" for layer, count in n.exits.items()) or "-")
    yield (
        f"tok/s {_shown(n.tokens_per_second, '.1f')}, "
        f"with prefill {_shown(n.tokens_per_second_with_prefill, '.1f')}"
    )
    parts = (n.milliseconds or {}).items()
    shown = ", ".join(f"{name} {ms:.3f}" for name, ms in parts) or "- (needs profile mode)"
    yield f"ms per token: {shown}"
    yield (
        f"decision {_shown(n.decision_microseconds, '.1f')} microseconds, "
        f"{_shown(n.decision_percent, '.3f')} % of a token's time"
    )
    yield f"extra rows computed {n.extra_rows}, slots missing {n.slots_missing}"


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """Arguments of `sweep`."""
    add_model_arguments(parser)
    parser.set_defaults(dtype="float32")
    parser.add_argument("--tokens", type=int, default=96, help="tokens per prompt (default 96)")
    parser.add_argument("--thresholds", default=None, help="comma-separated (default: a table's)")
    parser.add_argument("--prompts", type=int, default=8, help="how many of the bundled prompts")
    parser.add_argument(
        "--report",
        default=None,
        metavar="STEM",
        help="write STEM.jsonl and the table between the markers of STEM.md",
    )
    grid = parser.add_argument_group("policies and heads beside thresholds, and speed; resumable")
    grid.add_argument(
        "--save",
        default=None,
        metavar="STEM",
        help="append to STEM.jsonl as it is measured, going on with what is there; then write "
        "STEM.csv, STEM.md, STEM.html and STEM.json",
    )
    grid.add_argument("--policies", default=None, help="comma-separated (default: all)")
    grid.add_argument("--heads", default=None, help="comma-separated: river, lens (default river)")
    grid.add_argument(
        "--rounds", type=int, default=None, help="timed runs per setting (default 3; 0: no speed)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON Lines")


def run_sweep(args: argparse.Namespace) -> int:
    """Measure thresholds, teacher-forced: River with both prefill rules, or with --save any policy.

    With --save the speed of free greedy runs too. Long runs say on standard error how far they are.
    """
    from . import sweep as study

    thresholds = numbers(args.thresholds) or list(study.THRESHOLDS)
    if args.tokens < 2 or not 1 <= args.prompts <= len(study.bundled_prompts()):
        raise SettingsError("sweep needs --tokens of 2 or more and --prompts from 1 to 8.")
    if args.save is not None:
        return _run_grid(args, thresholds)
    if any(value is not None for value in (args.policies, args.heads, args.rounds)):
        raise SettingsError("--policies, --heads and --rounds need --save STEM.")
    model = load_model(args)
    prompts = study.bundled_prompts()[: args.prompts]
    progress = ProgressLine()
    try:
        rows = study.sweep(model, prompts, thresholds, args.tokens, progress)
    finally:
        progress.done()
    head = study.header(model, prompts, args.tokens)
    if args.report is not None:
        stem = Path(args.report)
        study.save_lines(stem.with_suffix(".jsonl"), head, rows)
        write_table(stem.with_suffix(".md"), list(study.table(rows)))
    for line in study.table(rows) if not args.json else [json.dumps(asdict(r)) for r in rows]:
        print(line)
    return 0


def _run_grid(args: argparse.Namespace, thresholds: list[float]) -> int:
    """`sweep --save`: every policy, head and threshold on every prompt."""
    from . import figures, grid
    from . import sweep as study
    from .cells import Study
    from .policies import POLICIES

    rounds = 3 if args.rounds is None else args.rounds
    if args.report is not None or rounds < 0:
        raise SettingsError("--save goes without --report, and with --rounds of 0 or more.")
    policies = _names(args.policies) or list(POLICIES)
    settings = grid.settings(policies, _names(args.heads) or ["river"], thresholds)
    stem, file = study_file(args.save)
    model = load_model(args)
    progress = ProgressLine()
    prompts = study.bundled_prompts()[: args.prompts]
    part = Study(file, grid.PART, model, prompts, args.tokens, progress)
    try:
        part.begin()
        part.quality(settings)
        part.speed(settings, rounds)
    finally:
        progress.done()
    study.save_csv(stem.with_suffix(".csv"), file.of(grid.PART, "cell", "skipped", "time"))
    lines, rows = list(grid.table(file)), grid.rows(file)
    write_table(stem.with_suffix(".md"), lines)
    figures.save_figure(figures.sweep_figure(rows, f"{model.info.name}: sweep"), stem)
    print("\n".join(map(json.dumps, rows) if args.json else lines))
    return 0


def study_file(stem: str) -> tuple[Path, Lines]:
    """The stem as a path, and its JSON Lines file, read."""
    from .resumable import Lines

    path = Path(stem)
    if not path.resolve().parent.is_dir():
        raise SettingsError(f"{stem}: that folder does not exist.")
    return path, Lines(path.with_suffix(".jsonl"))


BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def write_table(path: Path, lines: list[str]) -> None:
    """Put the lines between the markers of a Markdown file, which is made where it is missing."""
    text = path.read_text(encoding="utf-8") if path.is_file() else f"{BEGIN}\n{END}\n"
    if BEGIN not in text or END not in text:
        raise SettingsError(f"{path} has no {BEGIN} ... {END} to put the table between.")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    body = "\n".join(lines)
    path.write_text(f"{before}{BEGIN}\n{body}\n{END}{after}", encoding="utf-8", newline="\n")


def numbers(text: str | None, name: str = "--thresholds") -> list[float]:
    """Comma-separated numbers; none for None. Raises SettingsError with the option's name."""
    if text is None:
        return []
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise SettingsError(f"{name} is {text!r}; give numbers with commas between.") from error


def whole_numbers(text: str | None, name: str) -> list[int]:
    """As `numbers`, of whole ones."""
    found = numbers(text, name)
    if any(not number.is_integer() for number in found):
        raise SettingsError(f"{name} is {text!r}; give whole numbers.")
    return [int(number) for number in found]


def _names(text: str | None) -> list[str]:
    return [] if text is None else [part.strip() for part in text.split(",") if part.strip()]
