"""The cache pool of the loader that is running, for hooks."""

from __future__ import annotations

from energize.cache.base import CachePool
from energize.cache.no_cache import NoCachePool
from energize.pooling import activate, current_pool

__all__ = ["activate", "active_pool"]

_NO_CACHE = NoCachePool()


def active_pool() -> CachePool:
    """The cache pool given to the loader that calls the hook, in its workers too.

    Where there is none, a `NoCachePool`: what is asked for lazily is then read when it is needed.
    """
    pool = current_pool()
    return _NO_CACHE if pool is None else pool
