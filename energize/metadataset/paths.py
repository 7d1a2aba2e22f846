"""Resolve the paths in files of a mix."""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path

from energize.core.os_errors import is_url
from energize.core.validation import short
from energize.data.files import absent, absolute, exists, joined, path_of
from energize.errors import ConfigError, DatasetNotFoundError, in_place_of, nearest
from energize.metadataset.nodes import JSONL

FILESYSTEM = "filesystem://"
_IN_STORE = re.compile(r"filesystem\+(?=[a-z][a-z0-9]*://)")
"""The prefix of a plain folder in a store, such as `filesystem+msc://...`."""
_MOST_NAMES = 1000


def resolved_store(ref: str, base: Path, *, existing: bool = True) -> str:
    """Return a reference to a store with an absolute path, as `open_store` takes it.

    Args:
        ref: The path of a prepared folder or a `.jsonl` file, relative to `base`; or
            `filesystem://` and the path of a plain folder, which serves all its files;
            of one in a store `filesystem+msc://...`, and with other protocols.
        base: The folder of the file that names it.
        existing: Whether it has to exist.

    Raises:
        DatasetNotFoundError: If it does not exist.
        ConfigError: If it is not a store.

    >>> import tempfile
    >>> base = Path(tempfile.mkdtemp())
    >>> (base / "images").mkdir()
    >>> resolved_store("filesystem://images", base) == f"filesystem://{base}/images"
    True
    """
    ref = _IN_STORE.sub(FILESYSTEM, ref)
    plain = ref.startswith(FILESYSTEM)
    name = ref.removeprefix(FILESYSTEM)
    expected = (
        f"Pass a prepared folder, a .jsonl file or {FILESYSTEM}FOLDER on mounted disks"
    )
    if "\0" in ref or name.startswith((FILESYSTEM, "filesystem+")):
        raise ConfigError(f"{short(ref)} has an unknown kind. {expected}")
    path = path_of(absolute(joined(base, name)))
    if existing and not exists(path):  # Path.exists raises for some names
        raise DatasetNotFoundError(f"{short(ref)} {absent(path)}, looked for {path}")
    if path.is_file() and (plain or path.suffix != JSONL):
        raise ConfigError(f"{short(ref)} is a file. {expected}")
    return f"{FILESYSTEM}{path}" if plain else str(path)


def not_found_message(path: Path, text: str) -> str:
    """Return the message for a path that does not exist, written as `text`."""
    message = f"{short(text)} {absent(path)}, looked for {absolute(path)}"
    if "$" in text:
        return f"{message}. Write a variable as ${{NAME}}"
    if not is_url(path) and not os.access(path.parent, os.R_OK | os.X_OK):
        return f"{message}, in a folder that does not exist or cannot be read"
    if absolute(path).startswith("http"):  # most of these servers list nothing
        return message
    names = [entry.name for entry in islice(path.parent.iterdir(), _MOST_NAMES)]
    near = nearest(path.name, [name for name in names if name != path.name])
    return message + (in_place_of(path_of(text)) or near)
