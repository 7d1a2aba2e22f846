"""Shards whose samples have keys of other shards, written anew with keys of their own."""

from __future__ import annotations

import tarfile
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from energize.core.arrays import UInt64Array
from energize.data.tar import index_path, scan
from energize.data.writing import NewFiles, remove_left, writing
from energize.errors import PrepareError, ShardError
from energize.preparation.indexing import key_hashes
from energize.preparation.parallel import map_in_order


def make_unique(root: Path, names: Sequence[str], workers: int) -> int:
    """Put the members of each shard in a folder of its own, `SHARD/000.jpg`, when shards share
    keys; how many shards were written anew, 0 when no two shards share any.

    Every shard is replaced when its copy is complete, which takes as much free space as `workers`
    shards need; one that was done already stays. Its index goes, for it says where samples were.

    Raises `ShardError` for a damaged shard, `PrepareError` for one that cannot be written.
    """
    with closing(_each(map_in_order(_Hashes(root), names, workers))) as hashes:
        found = [np.unique(each) for each in hashes]
    together = np.sort(np.concatenate(found))
    if not (together[1:] == together[:-1]).any():
        return 0
    for folder in dict.fromkeys((root / name).parent for name in names):
        remove_left(folder)
    with NewFiles(PrepareError) as copies:  # which removes what killed workers leave
        copies.add(root / name for name in names)
        rename = _Rename(root, copies.token)
        with closing(_each(map_in_order(rename, names, workers))) as renamed:
            return sum(renamed)


def _each(results: Generator[Any]) -> Generator[Any]:
    for result in results:
        if isinstance(result, Exception):
            raise result
        yield result


@dataclass(frozen=True, slots=True)
class _Hashes:
    """A word for each key of a shard."""

    root: Path

    def __call__(self, name: str) -> UInt64Array:
        return key_hashes([sample.key for sample in scan(self.root / name).samples])


@dataclass(frozen=True, slots=True)
class _Rename:
    """Writes a shard with its name before those of its members; whether it had to."""

    root: Path
    token: str

    def __call__(self, name: str) -> bool:
        shard = self.root / name
        with NewFiles(PrepareError, self.token) as copy:
            with writing(shard, PrepareError), copy.create(shard) as stream:
                written = _write(shard, stream, f"{name}/")
            if written:
                mode = shard.stat().st_mode & 0o777
                copy.commit(mode, remove=[Path(index_path(str(shard)))])
        return written


def _write(shard: Path, copy: BinaryIO, folder: str) -> bool:
    """Whether there was anything to write."""
    try:
        with tarfile.open(shard, "r:") as tar, tarfile.open(fileobj=copy, mode="w:") as renamed:
            members = tar.getmembers()
            if all(member.name.startswith(folder) for member in members if member.isreg()):
                return False
            for member in members:
                data = tar.extractfile(member) if member.isreg() else None
                renamed.addfile(_moved(member, folder), data)
    except tarfile.TarError as reason:
        raise ShardError(f"{shard} cannot be read as a tar: {reason}") from reason
    return True


def _moved(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    """The member in the folder; in extended headers its old name would win."""
    moved = member.replace(name=folder + member.name, deep=True)
    moved.pax_headers = {k: v for k, v in moved.pax_headers.items() if "path" not in k}
    if moved.islnk():
        moved.linkname = folder + moved.linkname
    return moved
