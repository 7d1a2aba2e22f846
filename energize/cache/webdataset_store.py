"""The files of a prepared folder of tar shards, by name."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from energize.cache.base import FileStore
from energize.cache.media_table import MediaTable
from energize.cache.stores import StorePath, local_path
from energize.errors import DataError, DatasetError, NotPreparedError, ShardError
from energize.media.metadata import MediaMetadataBase
from energize.samples.source_info import SourceInfo
from energize.storage.faults import own_errors, told
from energize.storage.files import OpenFiles
from energize.storage.nv_meta import META_FOLDER, read_info
from energize.storage.nv_meta_files import SQLITE_NAME
from energize.storage.read_only_sqlite import ReadOnlyDatabase
from energize.storage.tar import members, split_name
from energize.storage.tar_headers import BLOCK

_SHORT = 100
"""Bytes of a name that the header right before a payload always has whole."""

_TOLD = 20
_FIND = """
SELECT samples.tar_file_id, content_byte_offset, content_byte_size
FROM samples JOIN sample_parts USING (tar_file_id, sample_index)
WHERE sample_key = ? AND part_name = ?
"""

_PARTS = """
SELECT part_name FROM samples JOIN sample_parts USING (tar_file_id, sample_index)
WHERE sample_key = ? ORDER BY content_byte_offset LIMIT 20
"""


class WebdatasetFileStore(FileStore[bytes]):
    """The files of a prepared folder by their full names in the shards, `"000123.jpg"`.

    All shards are searched, whatever their split, by `index.sqlite`, which `energize prepare
    --sqlite` and Energon write. Names are looked up there and are never paths, so none leads out of
    the shards.

    Raises `DatasetNotFoundError` and `NotPreparedError`, which says what makes the index. Asking
    for a file that is not there is a `DataError`; a `ShardError` says that shards were changed
    after they were indexed.

    >>> import tempfile
    >>> from energize.prepare import prepare, write_shards
    >>> folder = tempfile.mkdtemp()
    >>> _ = write_shards([{"__key__": "cat", "txt": "a cat"}], folder)
    >>> _ = prepare(folder, split_ratios={"train": 1}, sqlite=True)
    >>> WebdatasetFileStore(folder).get("cat.txt")
    b'a cat'
    """

    @own_errors
    def __init__(self, path: StorePath) -> None:
        self.path = local_path(path)
        info = read_info(self.path)
        if not (self.path / META_FOLDER / SQLITE_NAME).is_file():
            raise NotPreparedError(
                f"{self.path} has no {META_FOLDER}/{SQLITE_NAME}, by which files are found; write "
                f"it with: energize prepare --tar-index-only --sqlite {self.path}"
            )
        self._shards = tuple(info.shard_counts)

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        shard, offset, size = self._find(key)
        source = SourceInfo(
            dataset_path=str(self.path), index=key, shard_name=shard, file_names=(key,)
        )
        return self._payload(shard, offset, size, key), source

    def get_path(self) -> str:
        """The folder."""
        return str(self.path)

    def get_media_metadata(self, key: str) -> MediaMetadataBase:
        """What `energize prepare-media` found of the file; `DataError` when it found none."""
        return self._media.of(key)

    def _find(self, key: str) -> tuple[str, int, int]:
        """The shard of a file, and where its payload lies in it."""
        split = split_name(key)
        if split is None:
            raise DataError(
                f"{self.path}: {key!r} is no name of a file in a shard, such as '000123.jpg': the "
                "key of a sample, a dot and the part"
            )
        rows = self._database.rows(_FIND, split)
        if not rows:
            parts = [part for (part,) in self._database.rows(_PARTS, split[:1])]
            what = (
                f"sample {split[0]!r} has only the parts {', '.join(map(str, parts[:_TOLD]))}"
                if parts
                else f"no sample has the key {split[0]!r}"
            )
            raise DataError(f"{self.path} has no file {key!r}: {what}")
        number, offset, size = rows[0]
        plain = all(type(value) is int and value >= 0 for value in rows[0])
        if not plain or number >= len(self._shards) or offset < BLOCK:
            raise DatasetError(
                f"{self._database.path} says that {key!r} is in shard {number} of "
                f"{len(self._shards)}, at byte {offset}: {self._again}"
            )
        return self._shards[number], offset, size

    def _payload(self, shard: str, offset: int, size: int, key: str) -> bytes:
        path = f"{self.path}/{shard}"
        padded = BLOCK + (size + BLOCK - 1) // BLOCK * BLOCK
        try:
            data = self._files.get(path).read(offset - BLOCK, padded)
        except OSError as error:
            raise ShardError(told(error, path)) from error
        stale = f"{path} and {self._database.path} do not belong together: "
        try:
            # The header before the payload tells whether it is the file that the database means.
            (member,) = members(data, path)
        except (ShardError, ValueError) as reason:
            raise ShardError(f"{stale}no file lies at byte {offset}; {self._again}") from reason
        whole = key.isascii() and len(key) <= _SHORT
        if member.size != size or (whole and member.name != key):
            raise ShardError(
                f"{stale}{member.name!r} of {member.size} bytes lies where {key!r} of {size} "
                f"should; {self._again}"
            )
        return data[member.offset : member.offset + size]

    @property
    def _again(self) -> str:
        return f"index the shards again with: energize prepare --tar-index-only {self.path}"

    @cached_property
    def _database(self) -> ReadOnlyDatabase:
        return ReadOnlyDatabase(self.path / META_FOLDER / SQLITE_NAME)

    @cached_property
    def _media(self) -> MediaTable:
        return MediaTable(self.path / META_FOLDER, str(self.path))

    @cached_property
    def _files(self) -> OpenFiles:
        return OpenFiles()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_shards": self._shards}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WebdatasetFileStore) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"WebdatasetFileStore({self.path})"
