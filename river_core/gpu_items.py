"""The items of the GPU report, in the order they run."""

from __future__ import annotations

from .gpu_bench import Item
from .gpu_decode_items import decode, hugging_face, profile, smoke
from .gpu_kernel_items import kernels, steps
from .gpu_machine_items import latency, machine, roof
from .gpu_memory_items import memory

ITEMS: dict[str, Item] = {
    "machine": machine,
    "roof": roof,
    "latency": latency,
    "smoke": smoke,
    "kernels": kernels,
    "steps": steps,
    "decode": decode,
    "memory": memory,
    "profile": profile,
    "hugging face": hugging_face,
}
