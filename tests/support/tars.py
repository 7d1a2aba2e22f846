"""Folders of tar shards that are not prepared yet, and what a folder holds."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.shards import Files, packed


def write_tar(path: Path, files: Files, format: int = tarfile.USTAR_FORMAT) -> Path:  # noqa: A002
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed(files, format))
    return path


def samples(
    shard: int, count: int, parts: Sequence[str] = ("jpg", "txt")
) -> list[tuple[str, bytes]]:
    """The files of `count` samples whose keys no other shard has."""
    return [
        (f"{shard:03d}{i:05d}.{part}", f"{part} {shard} {i}".encode())
        for i in range(count)
        for part in parts
    ]


def unprepared(folder: Path, counts: Sequence[int] = (3, 2, 4), **options) -> Path:
    """Shards `parts/d<i>.tar`."""
    for i, count in enumerate(counts):
        write_tar(folder / "parts" / f"d{i}.tar", samples(i, count, **options))
    return folder


def contents(folder: Path) -> Mapping[str, bytes]:
    """All files below a folder, with their bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
