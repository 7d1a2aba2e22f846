"""What `aux` names: stores that cookers read from beside a dataset."""

from __future__ import annotations

import os
from pathlib import Path, PurePath

from energize.data.files import exists
from energize.errors import ConfigError, DatasetNotFoundError
from energize.metadataset.problems import shown, shown_path

FILESYSTEM = "filesystem://"


def resolved_store(ref: str, base: Path, *, existing: bool = True) -> str:
    """A reference with its path made absolute, as `energize.cache.open_store` takes it.

    `ref` is the path of a prepared folder or of a `.jsonl` file, relative to the folder `base`, or
    `filesystem://` and the path of a plain folder. A plain folder serves whatever file it is asked
    for, so a relative one has to lie below `base`.

    Raises `DatasetNotFoundError` for what does not exist, unless it need not be `existing`, and
    `ConfigError` for what is no store.

    >>> import tempfile
    >>> base = Path(tempfile.mkdtemp())
    >>> (base / "images").mkdir()
    >>> resolved_store("filesystem://images", base) == f"filesystem://{base}/images"
    True
    """
    if "\0" in ref:
        raise ConfigError(f"{shown(ref)} is no path: it has a zero byte")
    plain = ref.startswith(FILESYSTEM)
    written = ref.removeprefix(FILESYSTEM)
    if "://" in written:
        raise ConfigError(
            f"{shown(ref)} is remote or of an unknown kind; a store is a prepared folder, a .jsonl "
            f"file or {FILESYSTEM}FOLDER, on a local or mounted file system"
        )
    if plain and not PurePath(written).is_absolute():
        below = os.path.realpath(base / written)
        if ".." in PurePath(written).parts or not _is_below(below, os.path.realpath(base)):
            raise ConfigError(
                f"{shown(ref)} leaves the folder of this file, {base}; every file below a plain "
                "folder can be asked for, so name another one by its whole path: "
                f"{FILESYSTEM}{below}"
            )
    path = Path(os.path.abspath(base / written))
    if existing and not exists(path):  # Path.exists raises for some names
        raise DatasetNotFoundError(f"{shown(ref)} does not exist, looked for {shown_path(path)}")
    is_file = os.path.isfile(path)
    if plain and is_file:
        raise ConfigError(f"{shown(ref)} is a file, and {FILESYSTEM} names a folder")
    if is_file and path.suffix != ".jsonl":
        raise ConfigError(
            f"{shown(ref)} is a file; a store is a prepared folder, a .jsonl file or "
            f"{FILESYSTEM}FOLDER, and no metadataset"
        )
    return f"{FILESYSTEM}{path}" if plain else str(path)


def _is_below(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder
