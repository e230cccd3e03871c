"""The packaged model, loaded at most once per session in each form that tests need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import river_core
from river_core.model import RiverModel
from river_core.settings import QuantSpec

NAME = "smollm2-135m-packaged"


@pytest.fixture(scope="session")
def load_packaged() -> Callable[..., RiverModel]:
    """Load with a dtype and a river; remembered. HQQ builds fastest, so most tests take it."""
    made: dict[tuple[str, str], RiverModel] = {}

    def get(dtype: str = "float32", bits: int = 4, river: str | None = None) -> RiverModel:
        spec = QuantSpec(bits=bits) if river is None else QuantSpec.parse(river)
        key = (dtype, spec.label)
        if key not in made:
            made[key] = river_core.load(NAME, device="cpu", dtype=dtype, river=spec, capacity=1024)
        return made[key]

    return get


@pytest.fixture(scope="session")
def transformers_model(load_packaged: Callable[..., RiverModel]) -> Any:
    """The same weights in transformers, fp32."""
    from transformers import AutoModelForCausalLM

    path = load_packaged().path
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
