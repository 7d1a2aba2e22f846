"""Indexing all shards of a folder: in parallel, in order, with every damaged one named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path

from energize.data.nv_meta import SQLITE_NAME
from energize.data.tar import index_path
from energize.errors import PrepareError, ShardError
from energize.preparation.indexing import IndexedShard, ShardIndexer
from energize.preparation.parallel import map_in_order
from energize.preparation.sqlite_index import SqliteIndex
from energize.preparation.staging import Staging

Progress = Callable[[int, int], None]
"""Called with how many shards are done, and how many there are."""

_SHOWN = 20


def index_shards(
    root: Path,
    names: Sequence[str],
    staging: Staging,
    *,
    workers: int,
    sqlite: bool,
    on_progress: Progress,
) -> list[IndexedShard]:
    """Stage the `.tar.idx` of every shard, and the database with `sqlite`.

    Raises `PrepareError` that lists all damaged shards, or names a file that cannot be written.
    """
    staging.add([Path(index_path(str(root / name))) for name in names])
    database = staging.folder / SQLITE_NAME
    if sqlite:
        staging.add([database])
    shards: list[IndexedShard] = []
    damaged: list[str] = []
    results = map_in_order(ShardIndexer(root, staging.token, keep_samples=sqlite), names, workers)
    on_progress(0, len(names))
    # Workers have to be gone before the caller removes what they staged, after an error too.
    with (
        closing(results),
        SqliteIndex(database, staging.place(database)) if sqlite else nullcontext() as index,
    ):
        for done, shard in enumerate(_without_damaged(results, damaged), 1):
            if shard is not None:
                if index is not None:
                    index.add(shard)
                shards.append(shard.without_samples())
            on_progress(done, len(names))
    if damaged:
        raise PrepareError(_message(root, damaged, len(names)))
    return shards


def _without_damaged(
    results: Iterator[IndexedShard | Exception], damaged: list[str]
) -> Iterator[IndexedShard | None]:
    """Damaged shards are collected, and come as None; any other error ends everything."""
    for result in results:
        if isinstance(result, ShardError):
            damaged.append(str(result))
            yield None
        elif isinstance(result, Exception):
            raise result
        else:
            yield result


def _message(root: Path, damaged: Sequence[str], total: int) -> str:
    if len(damaged) == 1:
        return f"{damaged[0]}\nNothing was written to {root}"
    lines = [f"  {each}" for each in damaged[:_SHOWN]]
    if len(damaged) > _SHOWN:
        lines.append(f"  and {len(damaged) - _SHOWN} more")
    return "\n".join(
        [
            f"{len(damaged)} of {total} shards cannot be used:",
            *lines,
            f"Nothing was written to {root}. Repair them, or leave them out with --exclude",
        ]
    )
