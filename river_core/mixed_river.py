"""A river of mixed precision: measured once, then its most sensitive matrices in 8 bits.

Takes a model whose river is in 4 bits. Knows where the parts are, not how each is done.
"""

from __future__ import annotations

import time
from dataclasses import replace

from .banks import Banks
from .errors import SettingsError
from .footprint import bits_per_weight
from .input_moments import sequences
from .mixed_bits import Sensitivity, SensitivityFile, choose, mean_bits
from .model import RiverModel
from .sensitivity import MEASURED_ON, SEQUENCES, measure


def raise_bits(model: RiverModel, banks: Banks, fingerprint: str) -> None:
    """Raise matrices of `model`'s river to 8 bits, as far as the budget of its spec goes.

    What was measured is stored beside the river's files. Raises SettingsError where it has to be
    measured and cannot be: without a tokenizer, with layers evicted or on several devices.
    """
    spec = model.info.quant
    low, high = spec.forms
    sizes = {
        (n, name): linear.shape[0] * linear.shape[1]
        for n, twin in enumerate(model.river, 1)
        if twin is not None
        for name, linear in twin.linears.items()
    }
    file = SensitivityFile(banks.folder, fingerprint, low, MEASURED_ON)
    found = file.load()
    if found is None or not sizes.keys() <= found.kl.keys():
        found = _measured(model, banks)
        file.save(found)
    bits = bits_per_weight(low), bits_per_weight(high)
    chosen = choose(found.kl, sizes, spec.budget or bits[0], bits)
    banks.raise_to_8(chosen, model.river)
    note = f"{len(chosen)} of the river's {len(sizes)} matrices are in 8 bits, the others in 4."
    model.info = replace(
        model.info,
        notes=(*model.info.notes, note),
        river_seconds=banks.seconds + found.seconds,
        river_bits=mean_bits(chosen, sizes, bits),
    )


def _measured(model: RiverModel, banks: Banks) -> Sensitivity:
    if model.tokenizer is None:
        raise SettingsError(
            "a budget of bits is spent by running a text through the model, but this one has no "
            "tokenizer; leave the budget out."
        )
    if model.resident < model.num_layers:
        raise SettingsError(
            f"a budget of bits is spent by measuring with all {model.num_layers} backbone layers, "
            f"but resident_layers keeps {model.resident}; load once without it, then again with it."
        )
    start = time.perf_counter()
    kl = measure(model, sequences(model.tokenizer)[:SEQUENCES], banks.progress)
    return Sensitivity(kl, time.perf_counter() - start)
