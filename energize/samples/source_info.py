"""Where a sample was read from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """The files of a dataset that a sample was made from.

    `shard_name` is relative to `dataset_path`; `index` is the number of the sample in its shard;
    `file_names` are those of its files there that were used.
    """

    dataset_path: str
    index: int | str
    shard_name: str
    file_names: tuple[str, ...]
