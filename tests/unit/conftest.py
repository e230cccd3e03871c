"""The runner over the stub engine, for every test of the app that asks for it; the own cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.own_cache import own_cache as own_cache

if TYPE_CHECKING:
    from app.runner import Runner
    from tests.unit.app_engine import Engine


@pytest.fixture
def engine() -> Engine:
    """A stub of the engine."""
    from tests.unit.app_engine import Engine

    return Engine()


@pytest.fixture
def runner(engine: Engine) -> Iterator[Runner]:
    """A runner that has begun to load, closed afterwards."""
    from app.runner import Runner

    made = Runner("m", engine=engine)
    made.start()
    yield made
    made.close()
