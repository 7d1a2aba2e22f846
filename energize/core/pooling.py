"""The cache pool that hooks use while a loader runs.

It stands apart from the pools themselves, because the loader sets it and knows nothing of what they
do; `energize.cache.active_pool` is how hooks get it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from energize.extras.cache import CachePool


_current: ContextVar[CachePool | None] = ContextVar("energize_cache_pool", default=None)


@contextmanager
def activate(pool: CachePool | None) -> Iterator[None]:
    """Within the block, and what it calls in this thread, `pool` is the cache pool of all hooks.

    None leaves the one around as it is. Blocks may be nested; each puts back what was before. The
    pool is not closed at the end of the block: who made it does that.

    >>> from energize.cache import NoCachePool, active_pool
    >>> pool = NoCachePool()
    >>> with activate(pool):
    ...     active_pool() is pool
    True
    """
    if pool is None:
        yield
        return
    token = _current.set(pool)
    try:
        yield
    finally:
        _current.reset(token)


def current_pool() -> CachePool | None:
    """The pool of the innermost `activate` block, None outside of any."""
    return _current.get()
