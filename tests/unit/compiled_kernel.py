"""Compiling a Triton kernel for a card that is not here, and what its machine code uses."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True)
class MachineCode:
    """Registers a thread takes, bytes of its stack, bytes of shared memory, and the assembly."""

    registers: int
    stack: int
    shared: int
    sass: str

    def loads(self, bits: int) -> int:
        """How many instructions load `bits` at once from global memory."""
        return len(re.findall(rf"\bLDG\.E\.(?:[A-Z.]*\.)?{bits}\b", self.sass))


def compile_for(
    kernel: triton.JITFunction,
    types: Mapping[str, str],
    constants: Mapping[str, object],
    capability: int,
    folder: Path,
    *,
    warps: int = 1,
) -> MachineCode:
    """Compile with the hints that torch's tensors give: pointers and marked sizes % 16 == 0.

    `types` are Triton's names of the arguments' types; a size that ends in "!" is marked.
    """
    names = kernel.arg_names
    signature = {name: types[name].rstrip("!") if name in types else "constexpr" for name in names}
    hints = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if name in types and (types[name].startswith("*") or types[name].endswith("!"))
    }
    source = ASTSource(kernel, signature, dict(constants), hints)
    os.environ["TRITON_CACHE_DIR"] = str(folder)
    target = GPUTarget("cuda", capability, 32)
    made = triton.compile(source, target=target, options={"num_warps": warps})
    path = folder / f"{kernel.__name__}.cubin"
    path.write_bytes(made.asm["cubin"])
    usage = _tool("cuobjdump", "-res-usage", str(path))
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", usage)
    assert found, usage
    registers, stack, shared = map(int, found.groups())
    return MachineCode(registers, stack, shared, _tool("nvdisasm", "-c", str(path)))


def _tool(name: str, *arguments: str) -> str:
    done = subprocess.run([str(TOOLS / name), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
