"""The GPU report's first items: what the machine is, what its memory and its launches can do.

Knows nothing of models.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from statistics import median
from typing import Any

import torch

from .bandwidth import read_bandwidth
from .devices import processor
from .errors import KernelUnavailable
from .gpu_bench import Bench, Facts, built, rate
from .recorder import versions

NODES = 256  # kernels in a row in one graph
POLLS = 100
LIBRARIES = ("triton", "transformers", "gguf", "hqq")  # their versions only: nothing is imported


def machine(bench: Bench) -> Iterator[Facts]:
    """Versions, driver, card, and which parts of the engine there are for it."""
    facts: Facts = {**versions(), "platform": platform.platform()}
    facts |= {"CUDA": torch.version.cuda, "driver": _driver()}
    facts |= {name: _version(name) for name in LIBRARIES}
    facts["device"] = processor(bench.device)
    if bench.on_gpu:
        properties = torch.cuda.get_device_properties(bench.device)
        facts["compute capability"] = f"{properties.major}.{properties.minor}"
        facts["memory GiB"] = round(properties.total_memory / 2**30, 2)
        facts["free GiB"] = round(torch.cuda.mem_get_info(bench.device)[0] / 2**30, 2)
        facts["multiprocessors"] = properties.multi_processor_count
        facts["L2 MiB"] = round(properties.L2_cache_size / 2**20, 1)
    yield facts
    parts = {"CUDA graphs": "execution.graphs", "Triton kernels": "kernels.triton_linear"}
    yield {name: "there" if built(file) else "not built" for name, file in parts.items()}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _driver() -> str | None:
    """The NVIDIA driver's version, as nvidia-smi says it."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else None


def roof(bench: Bench) -> Iterator[Facts]:
    """Reading only, copying on the device, and from pinned host memory; GB/s of what moves."""
    yield {"buffer MiB": bench.buffer >> 20}
    yield {"read GB/s": round(read_bandwidth(bench.device, bench.buffer), 1)}
    source = torch.ones(bench.buffer // 2, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    calls = 8
    spent = bench.per_call(lambda: [target.copy_(source) for _ in range(calls)], calls)
    yield {"copy GB/s, read + written": rate(2 * source.nbytes, spent)}
    host = torch.ones(min(256 << 20, source.nbytes), dtype=torch.uint8, pin_memory=bench.on_gpu)
    part = target[: host.nbytes]
    spent = bench.per_call(lambda: part.copy_(host, non_blocking=True), 1)
    yield {"from pinned host memory GB/s": rate(host.nbytes, spent)}


def latency(bench: Bench) -> Iterator[Facts]:
    """What a graph's node costs, and how long a decision takes to reach the host."""
    yield from _nodes(bench)
    yield from _python_polls(bench)
    yield from _engine_polls(bench)


def _nodes(bench: Bench) -> Iterator[Facts]:
    """Time per kernel of a chain of tiny ones: issued by Python, and as nodes of one graph."""
    x = torch.zeros(1024, device=bench.device)
    calls = [lambda: x.add_(1.0) for _ in range(NODES)]
    row = bench.timed(calls, x.nbytes)
    yield {"us per kernel issued": row["us issued"], "us per graph node": row["us device"]}


def _python_polls(bench: Bench) -> Iterator[Facts]:
    """From the launch of a one-word answer to its being seen by a loop in Python."""
    word = torch.zeros(1, dtype=torch.int64, pin_memory=bench.on_gpu)
    seen, source = word.numpy(), torch.zeros(1, dtype=torch.int64, device=bench.device)

    def ask(step: int) -> None:
        source.fill_(step)
        word.copy_(source, non_blocking=True)

    def wait(step: int) -> None:
        while seen[0] != step:
            pass

    yield {"us per decision, polled in Python": _decision(ask, wait)}
    with busy_thread():
        yield {"the same beside a busy thread": _decision(ask, wait)}


def _engine_polls(bench: Bench) -> Iterator[Facts]:
    """The same through the engine's own mailbox, which polls and launches in C."""
    name = "us per decision, polled in C"
    module = built("execution.cuda_device")
    if module is None or not bench.on_gpu:
        why = "not built" if module is None else "needs a GPU"
        yield {name: f"{why}: the engine's mailbox (execution/cuda_device.py)"}
        return
    try:
        device = module.CudaDevice(bench.device)
        ways = [_mailbox(device) for _ in range(2)]  # each counts its own steps
    except KernelUnavailable as error:
        yield {name: str(error)}
        return
    yield {"notes": [*device.notes], name: _decision(*ways[0])}
    with busy_thread():
        yield {"the same in C beside a busy thread": _decision(*ways[1])}


def _mailbox(device: Any) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """Launch a piece that posts a word, and wait for it, by execution/device.py's protocol.

    The word of a step is execution/device.py's: the step above the flag and the similarity.
    """
    box, step = device.mailbox(1), device.static((1,), torch.int64)

    def piece() -> None:
        step.add_(1 << 33)
        box.post(0, step)

    device.put(step, [0])
    graph = device.capture("word", piece, warm_up=lambda: step.add_(0))
    return lambda _: device.launch(graph), lambda n: device.poll(box, 0, n, 5.0)


def _decision(ask: Callable[[int], None], wait: Callable[[int], None]) -> float:
    """Median microseconds from asking to knowing."""
    spent = []
    for step in range(1, POLLS + 1):
        start = time.perf_counter()
        ask(step)
        wait(step)
        spent.append(time.perf_counter() - start)
    return round(median(spent[POLLS // 10 :]) * 1e6, 1)


@contextmanager
def busy_thread() -> Iterator[None]:
    """Another Python thread that always wants to run, as a web server's may."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
