"""A cache folder of the test session's own, over the user's weights and compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from river_core.cache_paths import cache_root

SHARED = ("models", "native")  # neither downloaded nor compiled again


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernel choices and rivers of tiny models stay out of the user's cache."""
    own, users = tmp_path_factory.mktemp("cache"), cache_root().absolute()
    for name in SHARED:
        (users / name).mkdir(parents=True, exist_ok=True)
        (own / name).symlink_to(users / name, target_is_directory=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIVER_CACHE", str(own))
        yield
