"""`models` and `memory`: what is on this machine and what it takes, before anything is loaded."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .cli_run import DEFAULT_MODEL
from .cli_terminal import harmless
from .errors import SettingsError

if TYPE_CHECKING:
    from .footprint import Footprint, Layout
    from .inventory import Listed
    from .machine import FreeMemory
    from .settings import QuantSpec
    from .shapes import ShapeSpec

GIB, MIB = 2**30, 2**20
TITLE = 32  # columns of a row's title
RESIDENT = (2, 4, 8, 16, 32)  # numbers of resident layers that are shown unless one is asked for


def add_models(parser: argparse.ArgumentParser) -> None:
    """Arguments of `models`."""
    parser.add_argument("--json", action="store_true", help="print JSON; sizes in bytes")


def run_models(args: argparse.Namespace) -> int:
    """List the models that load here, what each needs, and whether it fits the memory now free.

    The known names, converted GGUF files, and the Hugging Face cache; no network, no weights read.
    """
    from .inventory import inventory
    from .machine import free_memory

    free = free_memory()
    models = inventory(free)
    if args.json:
        print(json.dumps([asdict(m) for m in models]))
        return 0
    names = [harmless(m.name) for m in models]
    width = max(map(len, names))
    print(f"{'name':{width}}  {'':11}  {'on disk':>10}  {'loaded':>10}  fits now")
    for name, m in zip(names, models, strict=True):
        print(f"{name:{width}}  {_state(m):11}  {_size(m.size):>10}  {_needs(m)}")
        print(f"{'':{width}}  {harmless(m.problem or m.description)}")
    print("\nLoaded: 16-bit weights, a river at 4.5 bits per weight, the default KV cache.")
    print(_free(free))
    return 0


def _state(listed: Listed) -> str:
    return "cached" if listed.cached else "to download"


def _needs(listed: Listed) -> str:
    needed = "unknown" if listed.needed is None else _size(listed.needed)
    fits = {True: "yes", False: "no", None: "unknown"}[listed.fits]
    return f"{needed:>10}  {fits}"


def _size(size: float) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


def _free(free: FreeMemory) -> str:
    if free.size is None:
        return f"How much {free.kind} is free here cannot be found out."
    return f"Free here now: {_size(free.size)} of {free.kind}."


def add_memory(parser: argparse.ArgumentParser) -> None:
    """Arguments of `memory`."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--shape", default=None, help="a known model's sizes, such as llama-3.1-8b")
    which.add_argument(
        "--model", default=None, help=f"a folder, a cached name or hub id (default {DEFAULT_MODEL})"
    )
    parser.add_argument("--bits", type=int, default=4, help="of the river: 4 (default), 8 or 16")
    parser.add_argument("--group-size", type=int, default=64, help="32, 64 (default) or 128")
    parser.add_argument(
        "--metadata-bits",
        type=int,
        default=16,
        help="of a group's scale and of its zero: 16 (default, what kernels keep), 32, or 0 as in "
        "the paper's table",
    )
    parser.add_argument("--entry-layer", type=int, default=2, help="first with a twin (default 2)")
    parser.add_argument(
        "--resident", type=int, default=None, metavar="K", help="only this many backbone layers"
    )
    parser.add_argument(
        "--tokens", type=int, default=4096, help="that the KV cache holds (default 4096)"
    )
    parser.add_argument("--table6", action="store_true", help="the paper's Table 6 beside ours")
    parser.add_argument("--json", action="store_true", help="print JSON; sizes in bytes")


def run_memory(args: argparse.Namespace) -> int:
    """Bytes of a model by part, from its sizes: nothing is loaded or downloaded.

    The backbone alone, full quantization, and River with all or some backbone layers resident.
    """
    from .machine import free_memory

    if args.table6:
        return _table6(args)
    spec = _spec(args)
    rows = _rows(spec, args)
    free = free_memory()
    if args.json:
        sizes = [{"what": name, **size.parts, "total": size.total} for name, size in rows]
        machine = {"kind": free.kind, "free": free.size}
        print(json.dumps({"model": spec.name, "tokens": args.tokens, "rows": sizes, **machine}))
        return 0
    print("\n".join([*_head(spec, args), *_table(rows), "", _kv(spec), _fits(rows, free)]))
    return 0


def _table6(args: argparse.Namespace) -> int:
    from . import paper_table6 as table

    if args.shape not in (None, "llama-3.1-8b") or args.model is not None:
        raise SettingsError("--table6 is about llama-3.1-8b; leave --model and --shape out.")
    if args.json:
        ours = {name: asdict(table.computed(s)) for name, s in table.STRUCTURES.items()}
        printed = {name: asdict(row) for name, row in table.PRINTED.items()}
        print(json.dumps({"contexts": table.CONTEXTS, "paper": printed, "computed": ours}))
        return 0
    print("\n".join(table.lines()))
    return 0


def _spec(args: argparse.Namespace) -> ShapeSpec:
    """The sizes asked for. Raises SettingsError where the tokens are more than the model takes."""
    from .inventory import find_sizes
    from .shapes import find_shape

    if args.shape is not None:
        return find_shape(args.shape)
    spec, longest = find_sizes(args.model or DEFAULT_MODEL)
    if longest is not None and args.tokens > longest:
        raise SettingsError(
            f"--tokens is {args.tokens}, but {spec.name} takes at most {longest}; use fewer."
        )
    return spec


def _rows(spec: ShapeSpec, args: argparse.Namespace) -> list[tuple[str, Footprint]]:
    from .footprint import BACKBONE, footprint, full_quantization

    layout = _layout(args)
    first = args.entry_layer - 1
    shown = [k for k in RESIDENT if first <= k < spec.layers]
    some = shown if args.resident is None else [args.resident]
    layouts = {"backbone alone": BACKBONE, "full quantization": full_quantization(layout)}
    if args.resident is None:
        layouts[f"River, all {spec.layers} layers resident"] = layout
    layouts |= {f"River, first {k} resident": _layout(args, k) for k in some}
    return [(name, footprint(spec, one, tokens=args.tokens)) for name, one in layouts.items()]


def _layout(args: argparse.Namespace, resident: int | None = None) -> Layout:
    from .footprint import Layout
    from .settings import LoadSettings

    river = _quant(args)
    LoadSettings(river=river, entry_layer=args.entry_layer)  # the same limits as for loading
    return Layout(river, args.entry_layer, resident, args.metadata_bits)


def _quant(args: argparse.Namespace) -> QuantSpec:
    from .settings import QuantSpec

    return QuantSpec(bits=args.bits, group_size=args.group_size)


def _head(spec: ShapeSpec, args: argparse.Namespace) -> list[str]:
    from .footprint import bits_per_weight, parameters

    bits = bits_per_weight(_quant(args), args.metadata_bits)
    return [
        f"{spec.name}: {spec.layers} layers, {parameters(spec) / 1e6:,.0f} M parameters.",
        f"Backbone in 16 bits, river at {bits:g} bits per weight from layer {args.entry_layer} on, "
        f"KV cache of {args.tokens:,} tokens.",
        "",
    ]


def _table(rows: list[tuple[str, Footprint]]) -> list[str]:
    largest = max(size.total for _, size in rows)
    unit, divisor, digits = ("GiB", GIB, 2) if largest >= GIB else ("MiB", MIB, 1)
    parts = [*rows[0][1].parts, "total"]
    text = [f"{unit:{TITLE}}" + "".join(f"{part:>11}" for part in parts)]
    for name, size in rows:
        values: list[Any] = [*size.parts.values(), size.total]
        text.append(f"{name:{TITLE}}" + "".join(f"{v / divisor:11.{digits}f}" for v in values))
    return text


def _kv(spec: ShapeSpec) -> str:
    from .footprint import kv_bytes

    return (
        f"KV cache: {1000 * kv_bytes(spec) / MIB:.1f} MiB per 1,000 tokens, the same in every row."
    )


def _fits(rows: list[tuple[str, Footprint]], free: FreeMemory) -> str:
    """One line: which rows the memory that is free now would hold."""
    if free.size is None:
        return f"{_free(free)[:-1]}, so whether any of these fits is unknown."
    fitting = [name for name, size in rows if free.holds(size.total)]
    if len(fitting) in (0, len(rows)):
        enough = "enough for all of these" if fitting else "not enough for any of these"
    else:
        enough = f"enough for: {'; '.join(fitting)}"
    return f"{_free(free)[:-1]}, {enough}."
