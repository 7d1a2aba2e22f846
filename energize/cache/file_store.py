"""Files by their names."""

from energize.cache.stores import DecodeFileStore, JsonlFileStore, SystemFileStore
from energize.cache.webdataset_store import WebdatasetFileStore

__all__ = ["DecodeFileStore", "JsonlFileStore", "SystemFileStore", "WebdatasetFileStore"]
