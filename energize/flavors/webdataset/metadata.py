"""What a prepared folder says of its shards."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from energize.edataclass import edataclass
from energize.sources.webdataset_split import read_split
from energize.storage.nv_meta import read_info, read_splits
from energize.storage.nv_meta_files import META_FOLDER, SQLITE_NAME, is_prepared


class EnergonDatasetType(Enum):
    """What a path is: a metadataset, a prepared folder, a `.jsonl` file, a plain folder whose media
    metadata were collected, or nothing of these.
    """

    METADATASET = "metadataset"
    WEBDATASET = "webdataset"
    JSONL = "jsonl"
    FILESYSTEM = "filesystem"
    INVALID = "invalid"


def get_dataset_type(path: str | os.PathLike[str]) -> EnergonDatasetType:
    """What a path is, by its name and what lies there; no content is looked at.

    >>> get_dataset_type("/nowhere").value
    'invalid'
    """
    found = Path(path)
    by_suffix = {
        ".jsonl": EnergonDatasetType.JSONL,
        ".yaml": EnergonDatasetType.METADATASET,
        ".yml": EnergonDatasetType.METADATASET,
    }
    if found.is_file():
        return by_suffix.get(found.suffix, EnergonDatasetType.INVALID)
    if is_prepared(found):
        return EnergonDatasetType.WEBDATASET
    if (found / META_FOLDER / SQLITE_NAME).is_file():
        return EnergonDatasetType.FILESYSTEM
    return EnergonDatasetType.INVALID


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard: its name in the dataset, where it is, and how many samples it has."""

    name: str
    path: Path
    count: int


@edataclass
class WebdatasetMeta:
    """The shards of a split part of a prepared folder.

    `shards` are those that are read, `split_part_files` the names of all that the split part lists,
    `info_shard_files` of all that the folder has; `sample_excludes` the single samples, as
    `shard/key`, that are left out.
    """

    sample_excludes: set[str]
    shards: list[ShardInfo]
    split_part_files: list[str]
    info_shard_files: list[str]

    @staticmethod
    def from_config(
        path: str | os.PathLike[str], *, split_part: str, split_config: str | None = None
    ) -> WebdatasetMeta:
        """What the folder `path` says; no shard is read unless single samples are excluded.

        Raises `SplitError`, `EmptyDatasetError`, and what reading `.nv-meta` raises.
        """
        folder = Path(path)
        read = read_split(folder, split_part, split_config)
        splits = read_splits(folder, split_config or "split.yaml")
        known = list(read_info(folder).shard_counts)
        counts = zip(read.names, read.counts, strict=True)
        return WebdatasetMeta(
            sample_excludes=set(splits.exclude).difference(known),
            shards=[ShardInfo(name, folder / name, count) for name, count in counts],
            split_part_files=list(splits.parts[split_part]),
            info_shard_files=known,
        )


def get_info_shard_files(path: str | os.PathLike[str]) -> list[str]:
    """The names of all shards of the prepared folder `path`."""
    return list(read_info(Path(path)).shard_counts)


def check_dataset_info_present(path: str | os.PathLike[str]) -> bool:
    """Whether the folder `path` is prepared."""
    return is_prepared(Path(path))
