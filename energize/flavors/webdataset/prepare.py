"""Preparing a folder of shards, in the words of Megatron-Energon."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from energize.ignored import accepted
from energize.media.extractor import MediaFilterConfig
from energize.prepare.media import prepare_media
from energize.prepare.preparing import prepare
from energize.prepare.shards import Progress

ProgressFn = Callable[[Iterator[Any], int], Iterator[Any]]
"""Given something to iterate over, and its length, iterates over it and shows how far it is."""


class WebdatasetPreparator:
    """What the factories of prepared folders can do with a folder that is not prepared yet."""

    @staticmethod
    def prepare_dataset(
        parent_path: str | os.PathLike[str],
        paths: Sequence[str | os.PathLike[str]],
        *,
        split_parts_ratio: Sequence[tuple[str, float]] | None = None,
        split_parts_patterns: Sequence[tuple[str, str]] | None = None,
        split_config: str = "split.yaml",
        shuffle_seed: int | None = 42,
        progress_fn: ProgressFn | None = None,
        workers: int | None = None,
        tar_index_only: bool = False,
        media_filter: MediaFilterConfig | None = None,
        fix_duplicates: bool = False,
        index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
        checksums: bool = False,
    ) -> set[str]:
        """Index the shards `paths` of the folder `parent_path`; returns the parts they have.

        `energize.prepare` with Megatron-Energon's arguments: `paths` are relative to the folder,
        with braces; splits are pairs of a name and a ratio, or of a name and a pattern (a name may
        come several times); shards are shuffled before they are cut by ratios, unless
        `shuffle_seed` is None. A folder that is prepared already is prepared anew. No dataset.yaml
        is written. `media_filter` adds the metadata of images, videos and sounds to the index,
        `checksums` writes one of each sample, as `energize.prepare_checksums` does.

        Raises what `energize.prepare` raises.
        """
        accepted("prepare_dataset", index_sqlite_tmp_path=index_sqlite_tmp_path)
        patterns: dict[str, list[str]] = {}
        for part, pattern in split_parts_patterns or ():
            patterns.setdefault(part, []).append(pattern)
        report = prepare(
            Path(parent_path),
            shards=[os.fspath(path) for path in paths],
            split_ratios=None if split_parts_ratio is None else dict(split_parts_ratio),
            split_patterns=None if split_parts_patterns is None else patterns,
            split_config=split_config,
            shuffle_shards=shuffle_seed is not None,
            seed=shuffle_seed or 0,
            workers=workers,
            sqlite=True,
            overwrite=True,
            tar_index_only=tar_index_only,
            fix_duplicates=fix_duplicates,
            checksums=checksums,
            on_progress=shown_by(progress_fn),
        )
        if media_filter is not None:
            WebdatasetPreparator.add_media_metadata(
                parent_path, media_filter=media_filter, workers=workers
            )
        return set(report.parts)

    @staticmethod
    def add_media_metadata(
        parent_path: str | os.PathLike[str],
        *,
        media_filter: MediaFilterConfig,
        workers: int | None = None,
        progress_fn: ProgressFn | None = None,
        index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
    ) -> int:
        """Add the metadata of the files that `media_filter` chooses to the index of a prepared
        folder, which is built in the folder of the file `index_sqlite_tmp_path`; returns of how
        many.

        Raises what `energize.prepare.media.prepare_media` raises.
        """
        report = prepare_media(
            parent_path,
            media_filter,
            workers=workers,
            on_progress=shown_by(progress_fn),
            tmp_path=None if index_sqlite_tmp_path is None else Path(index_sqlite_tmp_path).parent,
        )
        return report.count


def shown_by(progress_fn: ProgressFn | None) -> Progress | None:
    """What is told how many of how many are done, and goes on with `progress_fn` as many steps."""
    if progress_fn is None:
        return None
    steps: Iterator[Any] = iter(())
    stepped = -1

    def tell(done: int, total: int) -> None:
        nonlocal steps, stepped
        if stepped < 0:
            steps, stepped = iter(progress_fn(iter(range(total)), total)), 0
        for _ in range(stepped, done):
            next(steps, None)
        stepped = max(stepped, done)
        if done >= total:
            next(steps, None)  # where a progress bar closes

    return tell
