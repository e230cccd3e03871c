"""The same settings give the same bits: in two processes, and with any number of threads.

Of the latter only runs whose decode passes are of one row each, in C++: torch's attention over a
few rows may round its last bit otherwise with another number of threads (docs/decisions.md).

Kernels are chosen by a micro-test and stored, so both processes read the choice from one store;
here it is the compiled ones, wherever they can be.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import river_core
from river_core.cache_paths import cache_root
from river_core.execution import open_execution
from river_core.execution.fused import FusedExecution
from river_core.model import RiverModel
from tests.tiny.repeated import THREADS, cases, could_differ, in_a_process, left
from tests.tiny.tiny_models import TinyConfig, prompt, save

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to build kernels with")
DTYPES = ("float16", "float32")
THRESHOLD = 0.6
CONFIG = TinyConfig(
    "repeated", heads=3, kv_heads=1, head_dim=64, hidden=192, ffn=384, layers=4, vocab=331, seed=3
)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose choice of kernels is stored and then made the native."""
    folder = tmp_path_factory.mktemp("repeated")
    save(CONFIG, folder)
    torch.set_num_threads(THREADS)
    for dtype in DTYPES:
        river_core.load(str(folder), device="cpu", dtype=dtype)
    store = cache_root() / "kernels.json"
    rows = json.loads(store.read_text())
    for row in rows.values():
        for name in (n for n in row["candidates"] if n.startswith("native")):
            row["choice"], row["microseconds"][name] = name, 1e-3
    store.write_text(json.dumps(rows))
    return folder


def test_two_processes(folder: Path) -> None:
    """Greedy and sampled; the second process runs everything in reverse order."""
    ids = json.dumps(prompt(CONFIG, 40))
    arguments = (str(folder), ids, DTYPES[0], "--threshold", str(THRESHOLD))
    first, second = in_a_process(*arguments), in_a_process(*arguments, "--backwards")
    assert first == second and could_differ(first)
    assert {run["engine"] for run in first.values()} == {FusedExecution.name}


@pytest.fixture(scope="module")
def load(folder: Path) -> Callable[[str], RiverModel]:
    made: dict[str, RiverModel] = {}

    def get(dtype: str) -> RiverModel:
        if dtype not in made:
            made[dtype] = river_core.load(str(folder), device="cpu", dtype=dtype)
        return made[dtype]

    return get


# 173 rows: torch shares out the prompt's activations, in some cases in no whole vectors
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [3, 173])
def test_any_number_of_threads(load: Callable[[str], RiverModel], dtype: str, rows: int) -> None:
    model = load(dtype)
    assert isinstance(open_execution(model), FusedExecution)
    for name, settings in cases(THRESHOLD).items():
        if name == "river-verified":  # checks several rows at once with torch's attention
            continue
        found = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            run = river_core.generate(model, prompt(CONFIG, rows), max_new_tokens=12, **settings)
            found.append(left(run, model))
        for threads, other in zip((2, 5), found[1:], strict=True):
            different = [key for key, value in found[0].items() if other[key] != value]
            assert not different, (name, threads, different)
