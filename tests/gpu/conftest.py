"""The cache of tests on a GPU, too, is the session's own."""

from tests.own_cache import own_cache as own_cache
