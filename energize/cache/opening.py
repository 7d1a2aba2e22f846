"""From the references of a metadataset's `aux` to stores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from energize.cache.base import FileStore
from energize.cache.stores import JsonlFileStore, SystemFileStore, local_path
from energize.cache.webdataset_store import WebdatasetFileStore
from energize.errors import ConfigError
from energize.storage.nv_meta_files import META_FOLDER, SQLITE_NAME, is_prepared

_FOLDER = "filesystem"


def open_store(ref: str | os.PathLike[str], base: str | os.PathLike[str] = ".") -> FileStore[Any]:
    """The store that `ref` means: what `aux` in a metadataset names.

    A path, relative to the folder `base`, is that of a prepared folder, whose files are found by
    name, or of an indexed `.jsonl` file. With `filesystem://` before it, it is that of a plain
    folder. The content is bytes; nothing is read before a file is asked for.

    Raises `ConfigError` for a reference of another kind, `DatasetNotFoundError` and
    `NotPreparedError` for what cannot be opened.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("hello")
    >>> open_store("filesystem://.", folder).get("a.txt")
    b'hello'
    """
    text = os.fspath(ref)
    scheme, separator, rest = text.partition("://")
    if separator and scheme == _FOLDER:
        return SystemFileStore(_below(base, rest))
    if separator and scheme.startswith(f"{_FOLDER}+"):
        local_path(f"{scheme.removeprefix(f'{_FOLDER}+')}://{rest}")
    path = _below(base, str(local_path(text)))
    if path.suffix == ".jsonl":
        return JsonlFileStore(path)
    if path.suffix in (".yaml", ".yml"):
        raise ConfigError(
            f"{text}: aux names one folder or .jsonl file each, not a metadataset; name the "
            "folders that it is made of"
        )
    if not is_prepared(path) and (path / META_FOLDER / SQLITE_NAME).is_file():
        # A plain folder whose media metadata has been collected.
        return SystemFileStore(path)
    return WebdatasetFileStore(path)


def _below(base: str | os.PathLike[str], path: str) -> Path:
    return local_path(base) / path
