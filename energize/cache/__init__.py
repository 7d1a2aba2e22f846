"""Stores of files by name, and pools that bring files near ahead of their use."""

from energize.cache.active import activate, active_pool
from energize.cache.base import CachePool, FileStore, FileStoreDecoder, Lazy
from energize.cache.file_cache_pool import FileCacheLazy, FileStoreCachePool
from energize.cache.no_cache import DirectLazy, MockLazy, NoCachePool
from energize.cache.opening import open_store
from energize.cache.stores import (
    DecodeFileStore,
    JsonlFileStore,
    PrimaryFileStore,
    SystemFileStore,
)
from energize.cache.webdataset_store import WebdatasetFileStore

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
    "MockLazy",
    "NoCachePool",
    "PrimaryFileStore",
    "SystemFileStore",
    "WebdatasetFileStore",
    "activate",
    "active_pool",
    "open_store",
]
