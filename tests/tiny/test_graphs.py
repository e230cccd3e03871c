"""Property 6: captured graphs equal eager torch, on a fake device; one capture serves all tokens.

With attention by a kernel that reads the length, every number is the same. The masked one that
plain torch has adds in another order: there every choice is the same, and numbers nearly.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

import river_core
from river_core import execution
from river_core.cache import Rows
from river_core.errors import KernelUnavailable, RiverError
from river_core.execution.eager import EagerExecution
from river_core.execution.fake_device import FakeDevice
from river_core.execution.graph_store import OFTEN
from river_core.execution.graphs import GraphExecution, open_graphs
from river_core.execution.kernel_attention import KernelAttention
from river_core.random_model import random_model
from tests.tiny.graphed import (  # noqa: F401 (one is a fixture)
    by_graphs,
    graph_store,
    masked,
    of_torch,
    run_by,
)
from tests.tiny.tiny_models import TINY

TOKENS = 6
PROMPT = [5, 3, 90, 17, 60]
POLICIES = [
    {"policy": "backbone"},
    *({"policy": "river", "threshold": t} for t in (-1.0, 0.7, 0.9, 1.0)),
    {"policy": "river", "threshold": 0.8, "temperature": 0.8, "seed": 3},
    {"policy": "river", "threshold": 0.8, "profile": True},
    {"policy": "river", "exit": "gap", "threshold": 0.05},
    {"policy": "full-quant"},
    {"policy": "kv-mask", "threshold": 0.7},
    {"policy": "kv-mask", "threshold": 0.9, "head": "lens"},
    {"policy": "state-propagation", "threshold": 0.8},
    {"policy": "state-propagation", "threshold": 0.7, "head": "lens"},
    {"policy": "batch-recompute", "threshold": 0.8},
    {"policy": "batch-recompute", "threshold": 0.7, "head": "lens"},
    {"policy": "mono-decreasing", "threshold": 0.7},
    {"policy": "mono-decreasing", "options": {"decay": 1}},
    {"policy": "fixed-exit", "options": {"exit_layer": 2}},
    {"policy": "fixed-exit", "options": {"exit_layer": 2, "fill": "river"}},
    {"policy": "self-speculative", "options": {"draft": 3}},
    {"policy": "adaskip", "options": {"halves": 2}},
    {"policy": "ffn-skip", "threshold": 0.5},
    {"policy": "river-verified", "threshold": 0.8},
]


@pytest.fixture(scope="module")
def model():
    return of_torch(random_model("tiny", dtype="float32", capacity=64))


def generate(model, control=None, **settings):
    """A run, and the keys and values that it leaves."""
    settings = {"max_new_tokens": TOKENS, "full_trace": False} | settings
    for side in (model.cache.k, model.cache.v):
        side.zero_()
    run = river_core.generate(model, PROMPT, control=control, **settings)
    length = len(PROMPT) + TOKENS - 1
    return run, torch.stack([model.cache.k[:, :, :length], model.cache.v[:, :, :length]]).clone()


def told(run):
    """All that a run says of its tokens and its cache, times apart."""
    tokens = [replace(t, seconds=0.0, parts=None) for t in run.tokens]
    return tokens, run.kv_final, run.updates, run.summary.counters, run.prompt.kv_source


@pytest.fixture(scope="module")
def store(model):
    """Graphs that all policies' runs share, as the runs of one process do."""
    return graph_store(model, seed=7)


@pytest.mark.parametrize("settings", POLICIES, ids=str)
def test_every_policy_is_the_same_to_the_last_bit(model, store, run_by, settings):  # noqa: F811
    run_by(EagerExecution)
    plain, kept = generate(model, **settings)
    run_by(by_graphs(store))
    run, cache = generate(model, **settings)
    assert told(run) == told(plain)
    assert torch.equal(cache, kept)
    assert len(store) <= 4 * model.num_layers + 3


def test_a_second_run_is_the_same_and_captures_nothing(model, run_by):  # noqa: F811
    store = graph_store(model, seed=1)
    run_by(by_graphs(store))
    for _ in range(OFTEN):  # then spans that are asked for often have their graphs too
        first, kept = generate(model, threshold=0.8)
    assert store.captures == len(store) > 2 * model.num_layers - 2
    store.captures = 0
    second, cache = generate(model, threshold=0.8)
    assert told(second) == told(first) and torch.equal(cache, kept)
    assert store.captures == 0


@pytest.mark.parametrize("attention", [masked, KernelAttention])
@pytest.mark.parametrize("settings", POLICIES[2::7], ids=str)
def test_attention_on_a_gpu_chooses_the_same(model, run_by, settings, attention):  # noqa: F811
    """Slots behind the position hold NaN: what an earlier run left there must not be seen."""
    run_by(EagerExecution)
    plain, _ = generate(model, **settings)
    run_by(by_graphs(graph_store(model, attention=attention)))
    for side in (model.cache.k, model.cache.v):
        side[:, :, len(PROMPT) + TOKENS - 1 :] = torch.nan
    run, _ = generate(model, **settings)
    for mine, other in zip(run.tokens, plain.tokens, strict=True):
        for name in ("token_id", "exit_layer", "path", "kv_source"):
            assert getattr(mine, name) == getattr(other, name)
        assert mine.similarities == pytest.approx(other.similarities, abs=1e-5)
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-4)


@pytest.mark.parametrize("name", ["qwen2-windows", "gemma3", "olmo2", "ministral3"])
def test_every_kind_of_block_is_the_same(tiny_by_name, run_by, name):  # noqa: F811
    tiny = tiny_by_name(next(config for config in TINY if config.name == name))
    model = of_torch(tiny.load(bits=4))
    settings = {"threshold": 0.4, "max_new_tokens": 6, "full_trace": False}
    run_by(EagerExecution)
    plain = river_core.generate(model, tiny.prompt, **settings)
    run_by(by_graphs(graph_store(model)))
    run = river_core.generate(model, tiny.prompt, **settings)
    assert told(run) == told(plain)


def test_a_threshold_moved_in_a_run_needs_no_capture(model, run_by):  # noqa: F811
    def moved(engines, store=None):
        run_by(engines)
        control = river_core.Control()
        stream = river_core.stream(model, PROMPT, control=control, threshold=1.0, max_new_tokens=9)
        for n, _ in enumerate(stream):
            if store is not None and n == 1:
                store.captures = 0
            control.threshold = (1.0, 0.6, 0.8, -1.0)[n % 4]
        return stream.record()

    plain = moved(EagerExecution)
    store = graph_store(model)
    store.prepare(model.capacity)
    assert told(moved(by_graphs(store), store)) == told(plain)
    assert len({t.exit_layer for t in plain.tokens}) > 2
    assert store.captures <= 2, "spans that are asked for often, and nothing else"


@pytest.mark.parametrize("seed", range(2))
def test_schedules_are_the_same_however_the_queue_runs(model, run_by, seed):  # noqa: F811
    exits = random.Random(seed).choices(range(1, model.num_layers + 1), k=TOKENS)
    settings = {"exit": "schedule", "options": {"exit_layers": exits}}
    run_by(EagerExecution)
    plain, kept = generate(model, **settings)
    run_by(by_graphs(graph_store(model, seed=seed)))
    run, cache = generate(model, **settings)
    assert told(run) == told(plain) and torch.equal(cache, kept)
    assert [t.exit_layer for t in run.tokens[1:]] == exits[1:]


def test_what_was_begun_unasked_is_undone(model, run_by):  # noqa: F811
    """A cap on depth leaves where the threshold would stay: the layer that was launched is lost."""
    undone = []
    store = graph_store(model)
    launch = store.device.launch

    def counted(graph):
        undone.extend(["undo"] * (graph.key.kind == "undo"))
        launch(graph)

    store.device.launch = counted
    settings = {"policy": "mono-decreasing", "threshold": 0.9}
    run_by(EagerExecution)
    plain, kept = generate(model, **settings)
    run_by(by_graphs(store))
    run, cache = generate(model, **settings)
    assert undone and told(run) == told(plain) and torch.equal(cache, kept)


def test_a_span_that_is_asked_often_becomes_one_graph(model, run_by):  # noqa: F811
    store, layers = graph_store(model), model.num_layers
    run_by(by_graphs(store))
    settings = {"policy": "fixed-exit", "options": {"exit_layer": 2, "fill": "river"}}
    generate(model, **settings, max_new_tokens=OFTEN)  # so many rows but for the prompt's
    singles = len(store)
    twins = sum(twin is not None for twin in model.river)
    assert singles == layers + twins + 3  # a layer each; embedding, tail, undoing
    generate(model, **settings, max_new_tokens=3)
    assert len(store) == singles + 1
    for first in range(2, layers):
        for last in range(first + 1, layers + 1):
            for _ in range(OFTEN):
                store.spans("b", first, last, model.capacity)
    assert len(store) == singles + 2 * layers, "linear in layers"


def test_evicting_layers_drops_their_graphs(run_by):  # noqa: F811
    model = of_torch(random_model("tiny", dtype="float32", capacity=64))
    store = graph_store(model)
    model.engines.add(store)
    run_by(EagerExecution)
    settings = {"threshold": 0.9}
    plain, _ = generate(model, **settings)
    model.set_resident(3)
    forced, kept = generate(model, **settings)
    model.set_resident(model.num_layers)
    run_by(by_graphs(store))
    assert told(generate(model, **settings)[0]) == told(plain)
    before = dict(store._graphs)
    model.set_resident(3)
    gone = [graph for key, graph in before.items() if key not in store._graphs]
    assert len(gone) >= model.num_layers - 3 and all(graph.dropped for graph in gone)
    with pytest.raises(RiverError, match="was dropped"):
        store.device.launch(gone[0])
    run, cache = generate(model, **settings)
    assert told(run) == told(forced) and torch.equal(cache, kept)
    model.set_resident(model.num_layers)
    assert told(generate(model, **settings)[0]) == told(plain)


def test_a_run_that_was_given_up_leaves_the_next_one_as_it_is(model, run_by):  # noqa: F811
    run_by(by_graphs(graph_store(model)))
    fresh, _ = generate(model, threshold=0.8)
    stream = river_core.stream(model, PROMPT, threshold=0.7, max_new_tokens=TOKENS)
    for _ in range(3):
        next(stream)
    stream.close()
    assert told(generate(model, threshold=0.8)[0]) == told(fresh)


def test_a_residual_that_is_not_finite_names_the_layer():
    model = of_torch(random_model("tiny", dtype="float32", capacity=64))
    model.layer(4).down.weight[0, 0] = torch.inf
    with torch.inference_mode():
        engine = GraphExecution(model, graph_store(model))
        model.cache.reset()
        engine.start(Rows((5,), (0,)))
        engine.backbone(1, 8)
        assert len(engine.trace(3)) == 3
        with pytest.raises(RiverError, match="after backbone layer 4 is nan"):
            engine.trace(4)


def test_graphs_are_captured_once_for_a_model_and_its_copies(model):
    made = []

    def make():
        made.append(FakeDevice())
        return made[-1]

    own = replace(model, kept={})
    first = open_graphs(own, make)
    (note,) = first.notes
    assert note.startswith("Attention masks slots") and "sees no GPU" in note
    assert first.name == "CUDA graphs" and made[0].captures > 2 * (model.num_layers - 1)
    captures = made[0].captures
    open_graphs(own.endless(), make)
    open_graphs(own, make)
    assert len(made) == 1 and made[0].captures == captures
    open_graphs(replace(own, backbone=list(own.backbone)), make)
    assert len(made) == 2, "other layers need graphs of their own"


def test_where_graphs_cannot_be_the_header_says_why(model, monkeypatch):
    """The real device, on a machine without a GPU or with a torch that was not built for one."""
    if torch.cuda.is_available():
        pytest.skip("graphs can be used here")
    own = replace(model, kept={})
    monkeypatch.setattr("river_core.passes.open_execution", execution._on_cuda)
    run = river_core.generate(own, PROMPT, max_new_tokens=2, full_trace=False)
    assert run.header.kernels["execution"] == "eager torch"
    (note,) = (n for n in run.header.notes if "CUDA graphs" in n)
    assert note.startswith("CUDA graphs cannot be used here (") and note.endswith(
        "operation by operation."
    )
    assert own.kept, "the reason is kept"
    with pytest.raises(KernelUnavailable, match="cannot be used here"):
        open_graphs(own, lambda: pytest.fail("it is not tried again"))
