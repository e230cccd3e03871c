"""Waiting for a word in host memory, in C++ and in Python; the GPU is a thread that writes it."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest
import torch

from river_core.errors import KernelUnavailable, RiverError
from river_core.execution.device import Answer, Mailbox, pack
from river_core.execution.host_poll import Launcher, native_poll, python_poll

Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


@pytest.fixture(scope="module")
def native():
    try:
        return native_poll()
    except KernelUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=["native", "python"])
def poll(request):
    if request.param == "python":
        return python_poll
    found = request.getfixturevalue("native")
    return lambda *asked: found(*asked, None, (0, 0))


def word(step, similarity, threshold=0.5):
    values = (torch.tensor([v]) for v in (similarity, threshold))
    return pack(torch.tensor([step]), *values)


def mailbox():
    return Mailbox(torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("step", [1, 1 << 30, (1 << 31) - 1])
@pytest.mark.parametrize("similarity", [0.25, 0.75, -1.0])
def test_a_word_that_is_there_is_read(poll, step, similarity):
    box = mailbox()
    box.post(2, word(step, similarity))
    assert poll(box, 2, step, 1.0) == Answer(similarity > 0.5, similarity)


def test_a_word_that_comes_later_is_waited_for(poll):
    box = mailbox()
    box.post(1, word(6, 0.9))
    later = threading.Timer(0.05, lambda: box.post(1, word(7, 0.25)))
    later.start()
    assert poll(box, 1, 7, 10.0) == Answer(False, 0.25)
    later.join()


def test_a_word_that_does_not_come_is_an_error(poll):
    start = time.perf_counter()
    with pytest.raises(RiverError, match=r"did not report step 3 within 0\.05 s"):
        poll(mailbox(), 0, 3, 0.05)
    assert time.perf_counter() - start < 5


def test_other_threads_run_while_the_native_one_waits(native):
    """It holds no lock: another thread counts all the while, on its own schedule."""
    box, counts = mailbox(), []

    def count():
        for n in range(200_000):
            counts.append(n)
        box.post(0, word(1, 0.9))

    thread = threading.Thread(target=count)
    thread.start()
    assert native(box, 0, 1, 60.0, None, (0, 0)).leaves
    thread.join()
    assert len(counts) == 200_000


@pytest.mark.parametrize(("similarity", "expected"), [(0.9, 22), (0.1, 11)])
def test_the_native_one_launches_by_the_flag(native, similarity, expected):
    seen = []

    @Launch
    def launch(graph, stream):
        seen.append((graph, stream))
        return 0

    by = Launcher(ctypes.cast(launch, ctypes.c_void_p).value, 5)
    box = mailbox()
    box.post(0, word(1, similarity))
    native(box, 0, 1, 1.0, by, (11, 22))
    assert seen == [(expected, 5)]
    native(box, 0, 1, 1.0, by, (0, 0))
    assert len(seen) == 1, "no graph, no launch"


def test_a_refused_launch_is_an_error(native):
    launch = Launch(lambda graph, stream: 700)
    by = Launcher(ctypes.cast(launch, ctypes.c_void_p).value, 0)
    box = mailbox()
    box.post(0, word(1, 0.9))
    with pytest.raises(RiverError, match="refused a launch"):
        native(box, 0, 1, 1.0, by, (11, 22))
