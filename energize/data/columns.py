"""Columns of a prepared folder: what is known of each sample without reading it, on disk.

    .nv-meta/columns/columns.json            which columns there are, and of which shards
    .nv-meta/columns/NAME.DIGEST.npy         the values of one, in the order of `.info.json`

Values are int64 or float64, or int32 places in the list of words that `columns.json` has, -1 for a
sample without a word. A file of values is named after what is in it, and the words, and compared
with its name when it is read. It is never written again, so who reads a column while it is measured
anew goes on reading the older one. Megatron-Energon looks at none of this. Nothing of these files
is unpickled or run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.core.columns import Column
from energize.data.files import LocalFile
from energize.data.nv_meta import META_FOLDER, UUID_NAME, Document, parsed, read_info
from energize.data.writing import own_errors, patiently
from energize.errors import ColumnError, DatasetError

COLUMNS_FOLDER = f"{META_FOLDER}/columns"
COLUMNS_NAME = "columns.json"
VERSION = 1
MOST_WORDS = 65_536
"""Different words of a column; one with more, such as texts, is no property of samples."""

BAD_ARRAY = (ValueError, EOFError, OverflowError, SyntaxError, TypeError, tokenize.TokenError)
"""What numpy raises for damaged `.npy` files, whose headers are Python literals."""

_NAME = re.compile(r"[^\W\d]\w{0,99}")
_FILE = re.compile(r"[^\W\d]\w*\.[0-9a-f]{16}\.npy")
_NUMBERS = ("int64", "float64")
_WORDS = "int32"


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """What `columns.json` says of a column: its file, the type of its values, the words that they
    are places of, and how it was measured, as `energize prepare --column` takes it.
    """

    file: str
    dtype: str
    categories: tuple[str, ...] | None
    measured: str


@dataclass(frozen=True, slots=True)
class ColumnIndex:
    """The columns of a folder by name, the samples of the shards that they are of, and the version
    of the folder when they were measured.
    """

    shard_counts: dict[str, int]
    version: str | None
    columns: dict[str, StoredColumn] = field(default_factory=dict)

    @property
    def measured(self) -> dict[str, str]:
        """How each column was measured."""
        return {name: column.measured for name, column in self.columns.items()}


def check_name(name: object) -> str:
    """A name that columns may have; `ColumnError` for others.

    >>> check_name("tokens")
    'tokens'
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ColumnError(
            f"a column is called as variables are, letters, digits and _, so that functions can "
            f"take it as a parameter; got {str(name)[:80]!r}"
        )
    return name


def column_command(path: Path, measured: Mapping[str, str]) -> str:
    """The command that measures columns of a folder."""
    given = " ".join(f"--column {shlex.quote(f'{name}={how}')}" for name, how in measured.items())
    return f"energize prepare {path} {given}"


@own_errors
def folder_version(path: Path) -> str | None:
    """What is different when a folder was prepared again with an `index.sqlite`; None without."""
    try:
        return (path / META_FOLDER / UUID_NAME).read_bytes()[:100].decode("ascii", "replace")
    except FileNotFoundError:
        return None


@own_errors
def read_columns(path: Path, *, checked: bool = True) -> ColumnIndex | None:
    """The columns of the prepared folder `path`; None for a folder without any.

    Raises `DatasetError` for a file that is damaged or of a later version, and, if `checked`, for
    columns of other shards than those that the folder has now; what reading `.info.json` raises.
    """
    info = read_info(path)
    file = path / COLUMNS_FOLDER / COLUMNS_NAME
    if not os.path.lexists(file):
        return None
    document = parsed(file)
    version = document.content.get("version")
    if version != VERSION:
        raise DatasetError(
            f"{file} is of version {version!r}, and this release of energize reads version "
            f"{VERSION}; measure the columns again with it, or use the one that wrote them"
        )
    document.check_keys(
        ("version", "index", "shard_counts", "columns"), required=("shard_counts", "columns")
    )
    index = ColumnIndex(
        document.mapping("shard_counts"),
        _version(document),
        {name: _stored(document, name) for name in document.mapping("columns")},
    )
    if checked:
        _check_shards(path, file, index, info.shard_counts)
    return index


@own_errors
def read_values(path: Path, name: str, stored: StoredColumn, samples: int) -> Column:
    """The values of a column of the folder `path`, mapped from its file, which is read once to be
    compared with its name: about a second for 100 million samples.

    Raises `DatasetError` for a file that is missing, cut off, of another type or another number of
    samples, has places of words that there are not, or other content than when it was written.
    """
    file = path / COLUMNS_FOLDER / stored.file
    load = partial(np.load, file, mmap_mode="r", allow_pickle=False)
    try:
        LocalFile(str(file))  # numpy would wait for a named pipe
        values: npt.NDArray[Any] = patiently(load, file)
    except FileNotFoundError as reason:
        raise _damaged(path, name, stored, f"{file} is missing") from reason
    except BAD_ARRAY as reason:
        text = f"{file} cannot be read as numbers: {str(reason).splitlines()[0]}"
        raise _damaged(path, name, stored, text) from reason
    if values.dtype != np.dtype(stored.dtype) or values.shape != (samples,):
        text = (
            f"{file} holds {values.dtype} of shape {values.shape}, and {COLUMNS_NAME} says "
            f"{stored.dtype} of {samples} samples"
        )
        raise _damaged(path, name, stored, text)
    if stored.categories is not None and len(values):
        least, most = int(values.min()), int(values.max())
        if least < -1 or most >= len(stored.categories):
            text = f"{file} has values from {least} to {most}, but {len(stored.categories)} words"
            raise _damaged(path, name, stored, text)
    if stored.file.split(".")[1] not in _digests(values, stored.categories):
        text = f"{file} is named after other content: it, or {COLUMNS_NAME}, was changed"
        raise _damaged(path, name, stored, text)
    return Column(values, stored.categories)


def dump_columns(index: ColumnIndex) -> str:
    """The text of `columns.json`."""
    columns = {
        name: {
            "file": column.file,
            "dtype": column.dtype,
            **({} if column.categories is None else {"categories": list(column.categories)}),
            "measured": column.measured,
        }
        for name, column in index.columns.items()
    }
    content = {
        "version": VERSION,
        "index": index.version,
        "shard_counts": index.shard_counts,
        "columns": columns,
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


def values_file(name: str, values: npt.NDArray[Any], words: Sequence[str] | None) -> str:
    """What the file with these values of a column is called."""
    return f"{name}.{_digests(values, words)[0]}.npy"


def _digests(values: npt.NDArray[Any], words: Sequence[str] | None) -> list[str]:
    """What files with these values are named after; the last without words, as earlier releases
    did.
    """
    found = hashlib.blake2b(np.ascontiguousarray(values).data, digest_size=8)
    found.update(str(values.dtype).encode())
    digests = [found.hexdigest()]
    if words is not None:
        found.update(json.dumps(list(words)).encode())
        digests.insert(0, found.hexdigest())
    return digests


def _stored(document: Document, name: str) -> StoredColumn:
    where = f"columns.{name}"
    given = document.content["columns"][name]
    if not isinstance(given, dict) or not _NAME.fullmatch(name):
        raise document.error(where, given, "a column: a mapping with file, dtype and measured")
    file, dtype, measured = (given.get(key) for key in ("file", "dtype", "measured"))
    words = given.get("categories")
    if not isinstance(file, str) or not _FILE.fullmatch(file):
        raise document.error(f"{where}.file", file, "the name of a file beside this one")
    expected = _NUMBERS if words is None else (_WORDS,)
    if not isinstance(dtype, str) or dtype not in expected:
        raise document.error(f"{where}.dtype", dtype, " or ".join(expected))
    if not isinstance(measured, str):
        raise document.error(f"{where}.measured", measured, "how it was measured, as text")
    if words is None:
        return StoredColumn(file, dtype, None, measured)
    if not isinstance(words, list) or not _different(words):
        raise document.error(f"{where}.categories", words, "a list of different words")
    return StoredColumn(file, dtype, tuple(words), measured)


def _different(words: Iterable[Any]) -> bool:
    listed = list(words)
    return all(isinstance(each, str) for each in listed) and len(set(listed)) == len(listed)


def _version(document: Document) -> str | None:
    version = document.content.get("index")
    if version is not None and not isinstance(version, str):
        raise document.error("index", version, "the text of index.uuid, or null")
    return version


def _check_shards(path: Path, file: Path, index: ColumnIndex, now: Mapping[str, int]) -> None:
    """Raises `DatasetError` unless the columns are of the shards as they were prepared last."""
    if list(index.shard_counts.items()) == list(now.items()):
        if index.version == folder_version(path):
            return
        what = "the folder was prepared again"
    else:
        what = _shards_apart(index.shard_counts, now)
    raise DatasetError(
        f"{file}: its columns are not of the shards that the folder has now: {what}. Measure them "
        f"again with: {column_command(path, index.measured)}"
    )


def _shards_apart(before: Mapping[str, int], now: Mapping[str, int]) -> str:
    """How the shards differ, by the first of them."""
    for shard in [*now, *before]:
        if before.get(shard) != now.get(shard):
            was, is_now = (
                f"{each[shard]} samples" if shard in each else "none" for each in (before, now)
            )
            return f"of {shard!r} they have {was}, and .info.json says {is_now}"
    return "the order of the shards in .info.json is another one"


def _damaged(path: Path, name: str, stored: StoredColumn, text: str) -> DatasetError:
    return DatasetError(
        f"the column {name!r} of {path} is damaged: {text}; measure it again with: "
        f"{column_command(path, {name: stored.measured})}"
    )
