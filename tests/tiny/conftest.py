"""Each tiny model once per session, with the cache in a folder of the session's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import river_core
from river_core.model import RiverModel
from river_core.settings import QuantSpec
from tests.own_cache import own_cache as own_cache
from tests.tiny.tiny_models import FEW, TINY, TinyConfig, prompt, save


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small only lose by being split over threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Tiny:
    """A tiny model as transformers has it, and ways to load it as ours."""

    config: TinyConfig
    reference: Any
    folder: Path
    prompt: list[int]
    loaded: dict[tuple[int, int], RiverModel] = field(default_factory=dict)

    def load(self, bits: int = 16, entry_layer: int = 2) -> RiverModel:
        """Ours, fp32, with an identical (16) or quantised (4) river; loaded once per session."""
        key = (bits, entry_layer)
        if key not in self.loaded:
            self.loaded[key] = river_core.load(
                str(self.folder),
                device="cpu",
                dtype="float32",
                river=QuantSpec(bits=bits),
                entry_layer=entry_layer,
            )
        return self.loaded[key]


@pytest.fixture(scope="session")
def tiny_by_name(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TinyConfig], Tiny]:
    """Builds each configuration at most once."""
    made: dict[str, Tiny] = {}

    def get(config: TinyConfig) -> Tiny:
        if config.name not in made:
            folder = tmp_path_factory.mktemp(config.name)
            made[config.name] = Tiny(config, save(config, folder), folder, prompt(config))
        return made[config.name]

    return get


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`tiny` is every configuration in turn, or the few of a test whose subject is no family."""
    if "tiny" in metafunc.fixturenames:
        few = metafunc.definition.get_closest_marker("few")
        configs = [c for c in TINY if c.name in FEW] if few else TINY
        metafunc.parametrize("tiny", configs, indirect=True, ids=lambda c: c.name)


@pytest.fixture
def tiny(request: pytest.FixtureRequest, tiny_by_name: Callable[[TinyConfig], Tiny]) -> Tiny:
    """A tiny model, see `pytest_generate_tests`."""
    return tiny_by_name(request.param)


@pytest.fixture
def one_tiny(tiny_by_name: Callable[[TinyConfig], Tiny]) -> Tiny:
    """A single one, for what does not depend on the configuration."""
    return tiny_by_name(TINY[1])
