"""Stores of files that samples refer to, and caches of their content."""

from energize.core.stores import (
    CachePool,
    DecodeFileStore,
    DirectLazy,
    FileStore,
    FileStoreDecoder,
    Lazy,
    NoCachePool,
    PrimaryFileStore,
    active_pool,
)
from energize.data.stores import (
    JsonlFileStore,
    SystemFileStore,
    WebdatasetFileStore,
    open_store,
)
from energize.extras.cache import FileCacheLazy, FileStoreCachePool

__all__ = [
    "CachePool",
    "DecodeFileStore",
    "DirectLazy",
    "FileCacheLazy",
    "FileStore",
    "FileStoreCachePool",
    "FileStoreDecoder",
    "JsonlFileStore",
    "Lazy",
    "NoCachePool",
    "PrimaryFileStore",
    "SystemFileStore",
    "WebdatasetFileStore",
    "active_pool",
    "open_store",
]
