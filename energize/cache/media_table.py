"""The media metadata in the database of a folder, for stores."""

from __future__ import annotations

from pathlib import Path

from energize.errors import DataError, DatasetError, NotPreparedError
from energize.media.metadata import MediaMetadataBase, deserialize_media_metadata
from energize.storage.faults import exists
from energize.storage.nv_meta_files import SQLITE_NAME
from energize.storage.read_only_sqlite import ReadOnlyDatabase


class MediaTable:
    """The metadata of files by name, in the `.nv-meta` folder `meta` of the folder `path`."""

    def __init__(self, meta: Path, path: str) -> None:
        self._path = path
        self._file = meta / SQLITE_NAME
        self._database = ReadOnlyDatabase(self._file)
        self._found = False

    def of(self, key: str) -> MediaMetadataBase:
        """The metadata of the file `key`.

        Raises `NotPreparedError` when there is no table, and `DataError` when it knows no `key`.
        """
        if not self._found:
            if not (exists(self._file) and self._database.has_table("media_metadata")):
                raise NotPreparedError(
                    f"{self._path} has no media metadata; collect it with: energize prepare-media "
                    f"--media-metadata-by-extension {self._path}"
                )
            self._found = True
        rows = self._database.rows(
            "SELECT metadata_type, metadata_json FROM media_metadata WHERE entry_key = ?", (key,)
        )
        if not rows:
            raise DataError(
                f"{self._path} has no media metadata of {key!r}: it was added later, was left out "
                "by the filter given to prepare-media, or could not be read by it"
            )
        try:
            return deserialize_media_metadata(*rows[0])
        except DatasetError as reason:
            raise DataError(f"{self._file}, {key!r}: {reason}") from reason
