"""Runs of one model in a Python process of their own, as JSON: `python -m tests.tiny.repeated`.

Everything a run leaves behind that a clock has no part in, each number in full.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import river_core
from river_core.execution import open_execution
from river_core.model import RiverModel
from river_core.records import RunRecord

ROOT = Path(__file__).parents[2]
THREADS = 2  # kernels are chosen and stored for a number of threads
SAMPLED = {"temperature": 0.9, "top_p": 0.9, "seed": 5}


def left(run: RunRecord, model: RiverModel) -> dict[str, Any]:
    """What a run said and what it left in the cache."""
    rows, cache = len(run.kv_final), hashlib.sha256()
    for side in (model.cache.k, model.cache.v):
        cache.update(side[:, :, :rows].contiguous().view(torch.uint8).numpy().tobytes())
    return {
        "tokens": [t.token_id for t in run.tokens],
        "exits": [t.exit_layer for t in run.tokens],
        "similarities": [run.prompt.similarities, *(t.similarities for t in run.tokens)],
        "logits": [(t.logprob, t.entropy, t.alternatives) for t in run.tokens],
        "full_trace": run.full_trace,
        "text": run.text,
        "paths": [t.path for t in run.tokens],
        "counters": run.summary.counters,
        "kv": (run.kv_final, cache.hexdigest()),
    }


def cases(threshold: float | None) -> dict[str, dict[str, Any]]:
    """Name -> settings: greedy under four policies, and sampled under two."""
    river = {"policy": "river", "threshold": threshold}
    verified = {"policy": "river-verified", "threshold": threshold}
    plain = {"policy": "backbone"}
    return {
        "river": river,
        "backbone": plain,
        "full-quant": {"policy": "full-quant"},
        "river-verified": verified,
        "river, sampled": river | SAMPLED,
        "backbone, sampled": plain | SAMPLED,
        "backbone, another seed": plain | SAMPLED | {"seed": 6},
    }


def in_a_process(*arguments: str) -> dict[str, Any]:
    """What `main` prints in a fresh Python."""
    command = [sys.executable, "-m", __name__, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def could_differ(found: dict[str, Any]) -> bool:
    """Whether the runs of each dtype left at several layers, and drew other tokens than greedy."""
    for dtype in {name.partition(": ")[0] for name in found}:
        runs = {name: found[f"{dtype}: {name}"] for name in cases(None)}
        exits = {e for run in runs.values() for e in run["exits"]}
        drawn = ("backbone", "backbone, sampled", "backbone, another seed")
        if len(exits) <= 2 or len({tuple(runs[name]["tokens"]) for name in drawn}) < 3:
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("prompt", help="text, or token ids as a JSON list")
    parser.add_argument("dtypes", nargs="+")
    parser.add_argument("--threshold", type=float)
    parser.add_argument("--backwards", action="store_true", help="the cases in reverse order")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    prompt = json.loads(args.prompt) if args.prompt.startswith("[") else args.prompt
    found = {}
    order = slice(None, None, -1 if args.backwards else 1)
    for dtype in args.dtypes[order]:
        model = river_core.load(args.model, device="cpu", dtype=dtype, capacity=512)
        engine = {"engine": open_execution(model).name, "kernels": dict(model.info.kernels)}
        for name, settings in list(cases(args.threshold).items())[order]:
            run = river_core.generate(model, prompt, max_new_tokens=24, **settings)
            found[f"{dtype}: {name}"] = left(run, model) | engine
    print(json.dumps(found))


if __name__ == "__main__":
    main()
