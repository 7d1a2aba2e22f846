"""The shards of a folder shared out to tasks, and the merge of what they found.

Tasks may run at once, on any number of machines that see the folder, and know nothing of each
other. Each reads its share of the shards, neighbours in their order, and leaves a marker, which is
there when all else is that the task wrote:

    .nv-meta/tasks/prepare-64/00017.sqlite       what task 17 of 64 found

It is a database: `samples` and `sample_parts` have the rows of its shards for `index.sqlite`, and
`results` has all else by name, with what it was made of: options, shards and their stamps. A merge
makes of all markers what one process makes that reads all shards, and takes none that was made of
anything else.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from energize.core.checks import checked_whole
from energize.data.files import exists, files_at
from energize.data.nv_meta import META_FOLDER, ShardRecord, read_info, read_records
from energize.data.stores import connected
from energize.data.writing import NewFiles
from energize.errors import ConfigError, DatasetError, PrepareError, ShardError, some
from energize.preparation.scan import ScannedShard, Shard, scan_shards
from energize.preparation.write import TABLES, commit, new_database, staging

P = ParamSpec("P")
R = TypeVar("R")

TASKS_FOLDER = f"{META_FOLDER}/tasks"
ADD = {
    table: f"INSERT OR IGNORE INTO {table} VALUES (?,?,?,?,?)"  # noqa: S608
    for table in ("samples", "sample_parts")
}
"""How rows are added. Keys that occur twice are reported, all of them, when all have been seen."""

_FORMAT = 1
_RESULTS = f"{TABLES}CREATE TABLE results (name TEXT PRIMARY KEY, data BLOB);"
_LARGEST = 10**9

Scan = Callable[[NewFiles, Sequence[str], int, sqlite3.Connection | None], list[ScannedShard]]
"""Walks over shards, the first of which has that number, writes what lies beside them, and adds
their rows to a database."""


class Piece(NamedTuple):
    """A column of some shards: its numbers, or as objects its words, of samples not `absent`.

    `why` says where the first without a value is, and why; `first` one with a number (False) and
    one with a word (True).
    """

    values: npt.NDArray[Any]
    absent: npt.NDArray[np.bool_]
    why: str
    first: dict[bool, str]


def joined(name: str, pieces: Sequence[Piece]) -> Piece:
    """Return the pieces of a column as one; raise `PrepareError` for both numbers and words."""
    known = [piece for piece in pieces if piece.first]
    first = {kind: told for piece in known for kind, told in piece.first.items()}
    if len(first) > 1:
        raise PrepareError(
            f"column {name!r}: all samples have numbers, or all have words; "
            f"{' and '.join(first.values())}"
        )
    return Piece(
        np.concatenate([piece.values for piece in known]) if known else np.zeros(0),
        np.concatenate([np.zeros(0, bool), *(piece.absent for piece in pieces)]),
        next((piece.why for piece in pieces if piece.why), ""),
        first,
    )


@dataclass(frozen=True)
class Found:
    """What was found in shards, in their order, and by the name of a column its pieces."""

    shards: list[ScannedShard]
    pieces: Callable[[str], list[Piece]]

    @property
    def counts(self) -> dict[str, int]:
        """The samples of each shard."""
        return {shard.name: shard.count for shard in self.shards}


@dataclass(frozen=True)
class Job:
    """What is done with the shards `names` of a folder: whole, or by tasks.

    `what` names it; `options`, which are told as JSON, are what decides what is found, among them
    the `columns` by name. With `task` it is one of `tasks`, with `merge` what comes after them.
    `whole` names options that were given, and that take all shards at once.

    `scan` reads the shards.

    Raises `ConfigError` for tasks that there are not.
    """

    root: Path
    what: str
    names: Sequence[str]
    options: Mapping[str, Any]
    scan: Scan
    tasks: int | None
    task: int | None
    merge: bool
    whole: str = ""

    def __post_init__(self) -> None:
        check_tasks(self.tasks, self.task, merge=self.merge)
        if self.whole and self.tasks is not None:
            raise ConfigError(f"{self.whole} take all shards at once: leave tasks (--tasks) out")

    @property
    def folder(self) -> Path:
        """Where markers are."""
        return self.root / TASKS_FOLDER / f"{self.what}-{self.tasks}"

    @property
    def folders(self) -> list[Path]:
        """The folders that markers need."""
        return [self.root / TASKS_FOLDER, self.folder] if self.tasks else []

    @property
    def is_done(self) -> bool:
        """Whether this task has ended already, with these options and these shards."""
        return self.task is not None and self._said(self.task) == self._made_of(self.task)

    def of_task(self, *folders: Path) -> Found:
        """Return what this task finds, or found before."""
        task = self.task or 0
        if self.is_done:
            return self._read([task])
        said, marker, mine = (
            self._made_of(task),
            self._marker(task),
            share(len(self.names), self.tasks, task),
        )
        with staging(self.root, *folders, *self.folders, shared=True) as files:
            with new_database(files, marker, _RESULTS) as database:
                shards = self.scan(files, self.names[mine], mine.start, database)
                rows = (("made of", said), *self._results(shards))
                database.executemany("INSERT INTO results VALUES (?, ?)", rows)
            files.put_last(marker)
            commit(files, self.root / self.names[0])
        return self._read([task])

    def of_all(self, files: NewFiles, database: sqlite3.Connection | None = None) -> Found:
        """Return what is found in all shards, by reading them, or the markers of tasks; their rows
        come into the database.

        Raises `PrepareError` for tasks that have not ended, and for those whose options or shards
        were others.
        """
        if not self.merge:
            shards = self.scan(files, self.names, 0, database)
            return Found(shards, lambda name: [each.found["columns"][name] for each in shards])
        tasks = range(self.tasks or 1)
        said, now = [*map(self._said, tasks)], [*map(self._made_of, tasks)]
        others = ""
        for task in (task for task in tasks if said[task] not in (None, now[task])):
            was, wanted = json.loads(said[task] or ""), json.loads(now[task])
            changed = [name for name in wanted | was if wanted.get(name) != was.get(name)]
            others = f"; task {task} was run with others than now: {some(changed)}"
        check_ended(self.root, [said[task] == now[task] for task in tasks], others)
        return self._read(tasks, database)

    def _marker(self, task: int) -> Path:
        return self.folder / f"{task:05d}.sqlite"

    def _made_of(self, task: int) -> str:
        """Return what decides what a task finds."""
        files, names = files_at(self.root), self.names[share(len(self.names), self.tasks, task)]
        stamps = {name: files.stamp(str(self.root / name)) for name in names}
        return json.dumps({"format": _FORMAT, **self.options, **stamps})

    def _said(self, task: int) -> str | None:
        """Return what a marker says that it was made of; None if there is none that is whole."""
        if exists(self._marker(task)):
            with suppress(PrepareError), self._opened(task) as database:
                return str(_result(database, "made of"))
        return None

    def _results(self, shards: Sequence[ScannedShard]) -> Iterator[tuple[str, str | bytes]]:
        rows = [[s.name, s.count, s.parts, s.record, s.trailing] for s in shards]
        yield "shards", json.dumps(rows)
        hashes = [np.zeros(0, np.uint64), *(shard.hashes for shard in shards)]
        yield "hashes", np.concatenate(hashes).tobytes()
        for name in self.options.get("columns", ()):
            pieces = [shard.found["columns"][name] for shard in shards]
            yield f"column {name}", _packed(joined(name, pieces))

    def _read(self, tasks: Sequence[int], database: sqlite3.Connection | None = None) -> Found:
        """Return what tasks found; their rows come into the database."""
        shards: list[ScannedShard] = []
        for shard, rows in chain.from_iterable(map(self._marked, tasks)):
            shards.append(shard)
            for table, added in rows.items():
                if database is not None:
                    database.executemany(ADD[table], added)

        def piece(task: int, name: str) -> Piece:
            with self._opened(task) as marker:
                return _unpacked(_result(marker, f"column {name}"))

        return Found(shards, lambda name: [piece(task, name) for task in tasks])

    def _marked(self, task: int) -> Iterator[tuple[ScannedShard, dict[str, list[Any]]]]:
        """Yield each shard of a marker, with its rows."""
        with self._opened(task) as marker:
            hashes, start = np.frombuffer(_result(marker, "hashes"), np.uint64), 0
            cursors = {each: marker.execute(f"SELECT * FROM {each}") for each in ADD}  # noqa: S608
            for name, count, parts, record, trailing in json.loads(_result(marker, "shards")):
                mine, start = hashes[start : start + count], start + count
                made: Any = Counter(parts), mine, ShardRecord(*record), trailing, {}
                shard = ScannedShard(name, count, b"", *made)
                sizes = {"samples": count, "sample_parts": shard.parts.total()}
                yield shard, {each: [*islice(cursors[each], sizes[each])] for each in ADD}

    @contextmanager
    def _opened(self, task: int) -> Iterator[sqlite3.Connection]:
        marker = self._marker(task)
        try:
            with closing(connected(str(marker))) as database:
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST)
                yield database
        except (sqlite3.Error, DatasetError, ValueError, TypeError) as reason:
            raise PrepareError(
                f"{marker} is damaged: {reason}. Remove it, and run task {task} again"
            ) from reason


def prepared_scan(
    root: Path,
    functions: Mapping[str, Callable[[Shard], Any]],
    keep: Callable[[NewFiles, ScannedShard], ScannedShard] = lambda files, shard: shard,
    **options: Any,
) -> Scan:
    """Return what walks over shards of a prepared folder, as `scan_shards` does.

    It raises `PrepareError` for shards that are not those that were prepared, too.
    """
    counts = read_info(root).shard_counts
    records = read_records(root, counts) or {}

    def scan(files: NewFiles, names: Sequence[str], *_: object) -> list[ScannedShard]:
        def unchanged(shard: ScannedShard) -> ScannedShard:
            for difference in shard.differences(root, counts[shard.name], records.get(shard.name)):
                raise ShardError(
                    f"{difference}; prepare the folder again first, with: energize prepare "
                    f"--force-overwrite {root}"
                )
            return keep(files, shard)

        return scan_shards(root, names, unchanged, functions, **options)

    return scan


def _result(marker: sqlite3.Connection, name: str) -> Any:
    found = marker.execute("SELECT data FROM results WHERE name = ?", (name,)).fetchone()
    if found is None:
        raise sqlite3.DatabaseError(f"it has no {name!r}")
    return found[0]


def _packed(piece: Piece) -> str:
    first = [*piece.first.items()]
    return json.dumps([piece.values.tolist(), piece.absent.tolist(), piece.why, first])


def _unpacked(text: str) -> Piece:
    values, absent, why, first = json.loads(text)
    made = (
        np.array(values)
        if not dict(first).get(True)
        else np.array([*map(sys.intern, values)], object)
    )
    return Piece(made, np.array(absent, bool), why, dict(first))


def share(size: int, tasks: int | None, task: int | None) -> slice:
    """Return which of `size` things in a row are those of a task; all, where there are none.

    >>> [share(10, 3, task) for task in range(3)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """
    if tasks is None or task is None:
        return slice(0, size)
    return slice(task * size // tasks, (task + 1) * size // tasks)


def check_ended(path: Path, ended: Sequence[bool], others: str = "") -> None:
    """Raise `PrepareError` that names the tasks of a path that have not ended."""
    missing = ranges([task for task, is_whole in enumerate(ended) if not is_whole])
    if missing:
        raise PrepareError(
            f"{path}: of {len(ended)} tasks, these have not ended with these options and shards: "
            f"{missing}{others}. Run them, and then the merge"
        )


def check_tasks(tasks: int | None, task: int | None, *, merge: bool) -> None:
    """Raise `ConfigError` for a task that there is not."""
    if tasks is None:
        if task is not None or merge:
            raise ConfigError("task and merge (--task, --merge) need tasks (--tasks): how many")
        return
    checked_whole(tasks, "tasks", 1)
    if task is not None and (merge or not 0 <= checked_whole(task, "task") < tasks):
        told = "task and merge exclude one another" if merge else f"got task {task}"
        raise ConfigError(f"{tasks} tasks have the numbers 0 to {tasks - 1}: {told}")


def all_in_turn(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function of `tasks`, `task` and `merge`: with `tasks` alone it does all of them, one
    after the other, and merges. Tasks that have ended before are not done again.
    """

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        tasks: Any = kwargs.get("tasks")
        if tasks is None or kwargs.get("task") is not None or kwargs.get("merge"):
            return function(*args, **kwargs)
        check_tasks(tasks, None, merge=False)
        tell: Any = kwargs.pop("on_progress", None) or (lambda done, total: None)
        each: Any = kwargs
        for task in range(tasks):
            tell(task, tasks)
            function(*args, **each | {"task": task})
        tell(tasks, tasks)
        return function(*args, **each | {"merge": True})

    return called


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers for people.

    >>> ranges([3, 17, 18, 19, 40])
    '3, 17-19, 40'
    """
    told = []
    for _, run in groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        row = [number for _, number in run]
        told.append(f"{row[0]}-{row[-1]}" if len(row) > 1 else f"{row[0]}")
    return ", ".join(told)
