"""The GPU report on decoding: a first look, the large shape interleaved, a profile, Hugging Face.

Random weights: similarities mean nothing, so exits are forced by a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .bench import interleave, rows
from .bench_report import Row, shown
from .contenders import Engine, engines
from .decode import generate, teacher_forced
from .errors import ModelUnavailable, RiverError
from .gpu_bench import MEAN_EXIT, Bench, Facts, built
from .model import RiverModel
from .peers import HFGenerate
from .records import RunRecord
from .settings import LAYER_GRAPHS

EXITS = (MEAN_EXIT, 8.0)
CLOSE = 0.05  # of the norm of the logits: another order of sums in 16 bits, not another result
TOP = 12  # operations of a profile
PROFILED = 8  # tokens


def smoke(bench: Bench) -> Iterator[Facts]:
    """The small shape: twice the same, the fast way equal to eager torch, and a first headline."""
    model = bench.model()
    yield {"shape": bench.spec.name, "kernels": dict(model.info.kernels)}
    engine = engines(model, bench.prompt, bench.tokens, [], [MEAN_EXIT])[-1]
    first, second = (_run(model, engine, bench) for _ in range(2))
    same = _ids(first) == _ids(second)
    yield {"notes": [*first.header.notes]}
    yield {"twice identical": same, "execution": first.summary.kernels["execution"]}
    yield from _against_eager(model, engine, first, bench)
    if not same:
        raise RiverError("the same settings gave other tokens the second time.")
    contenders = engines(model, bench.prompt, bench.tokens, [], [MEAN_EXIT])
    found = rows(contenders, interleave(contenders, bench.tokens, 2))
    yield {"headline": [_line(row) for row in found]}


def _run(model: RiverModel, engine: Engine, bench: Bench) -> RunRecord:
    settings = {**engine.settings, "max_new_tokens": bench.tokens, "full_trace": False}
    return generate(model, list(bench.prompt), **settings)


def _ids(run: RunRecord) -> list[int]:
    return [token.token_id for token in run.tokens]


def _against_eager(
    model: RiverModel, engine: Engine, run: RunRecord, bench: Bench
) -> Iterator[Facts]:
    """Logits of the same tokens by the engine's own way and operation by operation."""
    forced = {**engine.settings, "full_trace": False}
    ways = model, model.eagerly()
    own, eager = (teacher_forced(m, list(bench.prompt), _ids(run), **forced) for m in ways)
    assert own.logits is not None
    assert eager.logits is not None
    off = float((own.logits - eager.logits).norm() / eager.logits.norm())
    yield {"logits against eager torch, relative": round(off, 6)}
    if "graph" not in own.summary.kernels["execution"]:
        yield {"CUDA graphs": "not used here: the comparison is of the way named above"}
    if not off < CLOSE:
        raise RiverError(f"the logits differ from eager torch's by {off:.3f} of their norm.")


def decode(bench: Bench) -> Iterator[Facts]:
    """The large shape: backbone, full quantization and River in one loop, interleaved.

    The row at threshold 1 reads every layer's similarity and never leaves: what deciding costs.
    Backbone and River stand in further rows by graphs of one layer each, and by graphs of all the
    layers that follow as well, which the other rows have too.
    """
    spec, sentence = bench.largest()
    if sentence is not None:
        yield {"note": sentence}
    model = bench.model(spec)
    yield {"shape": spec.name, "layers": spec.layers, "capacity": model.capacity}
    yield {"prompt": len(bench.prompt), "tokens": bench.tokens, "rounds": bench.rounds}
    yield {"kernels": dict(model.info.kernels), "notes": [*model.info.notes]}
    usual = engines(model, bench.prompt, bench.tokens, [1.0], EXITS)
    contenders = [*usual, *_by_graphs(usual[0]), *_by_graphs(usual[3])]
    quick = rows(contenders, interleave(contenders, bench.tokens, 1))
    yield {"one round": [_line(row) for row in quick]}
    found = rows(contenders, interleave(contenders, bench.tokens, bench.rounds))
    yield {"rows": [_line(row) for row in found[: len(usual)]]}
    yield {"graphs": [_line(row) | {"kernels": row.kernels} for row in found[len(usual) :]]}
    yield from _spans(model)


def _by_graphs(engine: Engine) -> list[Engine]:
    """An engine by graphs of one layer each, and by graphs of all layers that follow as well."""
    ways = {"per-layer graphs": LAYER_GRAPHS, "suffix graphs": "auto"}
    return [
        replace(engine, name=f"{engine.name}, {name}", model=engine.model.running(way))
        for name, way in ways.items()
    ]


def _spans(model: RiverModel) -> Iterator[Facts]:
    """How many graphs serve the steps by now: one per layer, and suffixes that are asked often."""
    stores = [store for store in getattr(model, "kept", {}).values() if hasattr(store, "captures")]
    if built("execution.graph_store") is None or not stores:
        yield {"per-layer against suffix graphs": "no graphs served these steps"}
        return
    yield {"graphs captured, suffixes among them": sum(store.captures for store in stores)}


def _line(row: Row) -> Facts:
    decision = row.decision_microseconds
    return {
        "name": row.name,
        "ms/token": round(row.ms_per_token, 3),
        "tok/s": round(row.tokens_per_second, 1),
        "min..max": f"{row.slowest:.1f}..{row.fastest:.1f}",
        "exit layer": round(row.mean_exit_layer, 2),
        "GB/s": shown(row.gigabytes_per_second, ".1f"),
        "byte bound": shown(row.byte_bound, ".2f"),
        "x backbone": round(row.to_backbone, 2),
        "decision us": None if decision is None else round(decision, 1),
    }


def profile(bench: Bench) -> Iterator[Facts]:
    """Where a token's time goes: by part, and the operations that take most of it."""
    spec, sentence = bench.largest()
    if sentence is not None:
        yield {"note": sentence}
    model = bench.model(spec)
    forced = engines(model, bench.prompt, PROFILED, [], [MEAN_EXIT])
    for engine in (forced[0], forced[-1]):
        engine.run(PROFILED)
        parts = engine.detail(PROFILED).parts or {}
        yield {f"{engine.name}, ms": {part: round(spent, 3) for part, spent in parts.items()}}
    yield {"operations": _operations(bench, forced[-1])}


def _operations(bench: Bench, engine: Engine) -> list[Facts]:
    """The slowest operations of a few tokens, by the profiler, which slows them."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.on_gpu else [])]
    with profiler(activities=kinds) as seen:
        engine.run(PROFILED)
    key = "self_device_time_total" if bench.on_gpu else "self_cpu_time_total"
    events: list[Any] = sorted(seen.key_averages(), key=lambda event: -getattr(event, key))
    return [
        {"operation": event.key[:60], "calls": event.count, "us": round(getattr(event, key), 1)}
        for event in events[:TOP]
    ]


def hugging_face(bench: Bench) -> Iterator[Facts]:
    """`generate` of transformers at the same shape, eager and compiled."""
    spec, sentence = bench.largest()
    if sentence is not None:
        yield {"note": sentence}
    try:
        plain = HFGenerate.random(spec, "bfloat16", bench.device, positions=512)
    except ImportError:
        yield {"left out": "transformers is not installed; pip install transformers."}
        return
    yield {"shape": spec.name, **plain.versions}
    yield {plain.name: _rate(plain, bench)}
    if not bench.on_gpu:
        yield {"static cache + compile": "on a GPU only: compiling for a CPU takes minutes"}
        return
    try:
        other = plain.compiled(bench.prompt)
    except ModelUnavailable as error:
        yield {"static cache + compile": str(error)}
        return
    yield {other.name: _rate(other, bench)}


def _rate(peer: HFGenerate, bench: Bench) -> str:
    """Median and spread of its tokens per second."""
    peer.generate(bench.prompt, min(4, bench.tokens))
    runs = [peer.generate(bench.prompt, bench.tokens) for _ in range(bench.rounds)]
    rates = sorted(run.tokens_per_second or 0.0 for run in runs)
    return f"{rates[len(rates) // 2]:.1f} tok/s ({rates[0]:.1f} to {rates[-1]:.1f})"
