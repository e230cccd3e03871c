"""Waiting for a word in host memory and launching what it asks for: in C++, or in Python.

The C++ one holds no lock of Python's, so that a thread which computes elsewhere in the program
delays neither; Python's may wait 5 ms for its turn. Knows nothing of how a launch is made.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import KernelUnavailable, RiverError
from ..kernels.native_library import load_source
from .device import Answer, Mailbox, unpack

SOURCE = Path(__file__).with_name("poll.cpp")
LOOKS = 64  # between two looks at the clock


@dataclass(frozen=True)
class Launcher:
    """A C function (graph, stream) -> 0 or an error's number, and the stream that it is given."""

    function: int
    stream: int


Handles = tuple[int, int]  # graphs as the launcher takes them, if the flag is 0 or 1; 0: none
Poll = Callable[[Mailbox, int, int, float, Launcher | None, Handles], Answer]


def native_poll() -> Poll:
    """The wait in C++; KernelUnavailable where it cannot be built."""
    wait = load_source(SOURCE).function("river_poll", ctypes.c_int, "pndppppp", hold=False)

    def poll(
        mailbox: Mailbox, slot: int, step: int, seconds: float, by: Launcher | None, then: Handles
    ) -> Answer:
        found = ctypes.c_uint64()
        word = mailbox.words.data_ptr() + 8 * slot
        function, stream = (by.function, by.stream) if by else (None, None)
        code = wait(word, step, seconds, ctypes.addressof(found), function, *then, stream)
        if code == -1:
            raise _late(step, seconds)
        if code:
            raise RiverError(f"the GPU refused a launch (error {code}); start the program again.")
        return unpack(found.value)[1]

    return poll


def python_poll(mailbox: Mailbox, slot: int, step: int, seconds: float) -> Answer:
    """The same wait in Python, which launches nothing."""
    words, end = mailbox.words.numpy(), time.perf_counter() + seconds
    while True:
        for _ in range(LOOKS):
            found, answer = unpack(int(words[slot]))
            if found == step:
                return answer
        if time.perf_counter() > end:
            raise _late(step, seconds)


def _late(step: int, seconds: float) -> RiverError:
    return RiverError(
        f"the GPU did not report step {step} within {seconds:g} s; another program may hold it, or "
        "it failed: make the run again, or load with "
        "execution='eager'."
    )


def find_poll() -> tuple[Poll | None, tuple[str, ...]]:
    """The wait in C++ and no notes, or None and a note why Python waits."""
    try:
        return native_poll(), ()
    except KernelUnavailable as reason:
        return None, (f"a thread of Python waits for the GPU, which is slower. {reason}",)
