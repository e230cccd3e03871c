"""One benchmark from end to end: which rows, at which prompt lengths, and what was left out.

A consumer of bench.py and contenders.py over a model that is loaded already. Knows nothing of the
command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

from . import bench
from .bench_report import Report
from .contenders import Peer, engines
from .errors import ModelUnavailable, SettingsError, UnsupportedModel
from .families import positions
from .footprint import GIB, Layout, footprint
from .gguf_export import BITS, exported
from .hub_folder import read_config
from .llama_cpp_peer import MISSING, LlamaCpp, installed
from .machine import FreeMemory, free_gpu, free_ram
from .model import RiverModel
from .peers import Decoder, HFGenerate
from .settings import QuantSpec
from .shapes import ShapeSpec
from .sources import resolve

RANDOM = "random weights: similarities have no meaning, exits forced"
NO_FOLDER = "Hugging Face is left out: random weights have no folder that it could read."
NOT_COMPILED = (
    "Hugging Face with a static cache and compilation is left out: on a CPU compiling takes "
    "minutes; add --compile to have it."
)
ROOM = 1.1  # what building takes beside the model itself
Ids = tuple[int, ...]
Say = bench.Say


@dataclass(frozen=True)
class Wanted:
    """What is to be measured: tokens and rounds per row, River's rows, and other engines.

    `thresholds` and `mean_exits` give a River row each. With `peers` Hugging Face in `peer_dtype`
    and llama.cpp stand beside; on a GPU, or with `compiled`, Hugging Face once more, compiled.
    """

    tokens: int = 64
    rounds: int = 5
    thresholds: tuple[float, ...] = ()
    mean_exits: tuple[float, ...] = (3.79,)
    peers: bool = True
    compiled: bool = False
    peer_dtype: str = "bfloat16"


def run(
    model: RiverModel,
    prompts: Sequence[Ids],
    wanted: Wanted,
    left_out: Sequence[str] = (),
    say: Say = lambda text, share: None,
) -> Iterator[Report]:
    """A report per prompt, as each is done; `left_out` are sentences that each report repeats.

    A model without a folder is a random one: it is labelled, and has neither thresholds nor
    agreement. Raises RiverError for what cannot be measured.
    """
    random = model.path is None
    longest = max(map(len, prompts)) + wanted.tokens
    model.cache.check(longest - wanted.tokens, wanted.tokens)
    verified = None if random else model.info.default_threshold
    with _peers(model, prompts[0], longest, wanted, say) as (decoders, missing):
        for prompt in prompts:
            rows = engines(
                model,
                prompt,
                wanted.tokens,
                wanted.thresholds,
                wanted.mean_exits,
                verified=verified,
                judged=not random,
            )
            answer = rows[0].answer
            others = [Peer(decoder, model, prompt, answer) for decoder in decoders]
            head = bench.header(model, len(prompt), decoders)
            head |= {"label": RANDOM if random else None, "left_out": [*left_out, *missing]}
            head |= {"mean_exits": list(wanted.mean_exits)}
            times = (wanted.tokens, wanted.rounds)
            facts, found = bench.measure([*others, *rows], *times, head, say, detailed=True)
            yield Report(facts, found)


@contextmanager
def _peers(
    model: RiverModel, prompt: Ids, positions: int, wanted: Wanted, say: Say
) -> Iterator[tuple[list[Decoder], list[str]]]:
    """The other engines that run here, and a sentence for each that does not."""
    found: list[Decoder] = []
    missing: list[str] = []
    with ExitStack() as stack:
        if wanted.peers:
            _hugging_face(model, prompt, wanted, found, missing)
            _llama_cpp(model, positions, stack, (found, missing), say)
        yield found, missing


def _hugging_face(
    model: RiverModel, prompt: Ids, wanted: Wanted, found: list[Decoder], missing: list[str]
) -> None:
    if model.path is None:
        missing.append(NO_FOLDER)
        return
    plain = HFGenerate(model.path, wanted.peer_dtype, torch.get_num_threads(), model.device)
    found.append(plain)
    if not wanted.compiled and model.device.type != "cuda":
        missing.append(NOT_COMPILED)
    else:
        try:
            found.append(plain.compiled(prompt))
        except ModelUnavailable as error:
            missing.append(str(error))


def _llama_cpp(
    model: RiverModel,
    positions: int,
    stack: ExitStack,
    lists: tuple[list[Decoder], list[str]],
    say: Say,
) -> None:
    """A row per kind of file; the first sentence that says why there is none."""
    found, missing = lists
    if not installed():
        missing.append(MISSING)
        return
    gpu = model.device.type == "cuda"
    try:
        for kind in BITS:
            path = exported(model, kind, say)
            peer = LlamaCpp(path, kind, torch.get_num_threads(), positions, gpu)
            stack.callback(peer.close)
            found.append(peer)
    except (ModelUnavailable, UnsupportedModel) as error:
        missing.append(str(error))


def prompt_of(ids: Ids, length: int) -> Ids:
    """The ids over and over until they are `length`."""
    return (ids * -(-length // len(ids)))[:length]


def fitting(contexts: Sequence[int], tokens: int, longest: int) -> tuple[list[int], list[str]]:
    """Which prompt lengths leave room for `tokens` in `longest` positions; a sentence per other.

    Raises SettingsError for a length below 1, and where none is left.
    """
    for length in contexts:
        if length < 1:
            raise SettingsError(f"context is {length}; use 1 or more tokens.")
    kept = [length for length in contexts if length + tokens <= longest]
    refused = [
        f"context {length} is left out: with {tokens} tokens it needs {length + tokens} positions, "
        f"and this model has {longest}."
        for length in contexts
        if length not in kept
    ]
    if contexts and not kept:
        raise SettingsError(" ".join(refused))
    return kept, refused


def positions_of(name: str, say: Say) -> int:
    """How many positions the model called `name` has, from its configuration."""
    return positions(read_config(resolve(name, progress=say).folder))[0]


def check_room(spec: ShapeSpec, river: QuantSpec, capacity: int, dtype: str, gpu: bool) -> None:
    """Raise SettingsError unless such a random model fits the memory that is free, or unknown."""
    bits = None if river.bits == 16 else river
    size = footprint(spec, Layout(river=bits, entry_layer=1), tokens=capacity).total
    needed = round(size * ROOM * (2 if dtype == "float32" else 1))
    free = FreeMemory("GPU memory", free_gpu()) if gpu else FreeMemory("RAM", free_ram())
    if free.holds(needed) is False:
        assert free.size is not None
        raise SettingsError(
            f"a random {spec.name} with its river and {capacity} positions takes "
            f"{needed / GIB:.1f} GiB, and {free.size / GIB:.1f} GiB of {free.kind} are free; use a "
            "smaller --shape or --context."
        )
