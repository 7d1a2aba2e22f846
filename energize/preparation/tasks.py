"""The shards of a folder shared out to tasks, and the merge of what they found.

Tasks may run at once, on any number of machines that see the folder, and know nothing
of each other. Each reads its share of the shards, neighbours in their order, and leaves
a marker, which is there when all else is that the task wrote:

    .nv-meta/tasks/prepare-64/00017.jsonl        what task 17 of 64 found

Its first line is what it was made of: options, shards and their stamps. Then comes a
line for each shard, with its rows for `index.sqlite`, and an end. A merge makes of all
markers what one process makes that reads all shards, and takes none that was made of
anything else.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from energize.core.checks import checked_whole
from energize.core.progress import Progress, progress
from energize.data.files import exists, path_of
from energize.data.nv_meta import META_FOLDER, ShardRecord, read_info, read_records
from energize.data.tar import checksums_path
from energize.data.writing import NewFiles, writing
from energize.errors import ConfigError, PrepareError, ShardError, some
from energize.preparation.scan import (
    ScannedShard,
    ShardHeaders,
    check_unique,
    scan_shards,
)
from energize.preparation.workers import map_in_order
from energize.preparation.write import INDEXES, TABLES, commit, new_database, staging

P = ParamSpec("P")
R = TypeVar("R")

TASKS_FOLDER = f"{META_FOLDER}/tasks"
_FORMAT = 5
_END = b"end\n"
_REASONS = 5
"""Most reasons of samples without a value that are counted one by one."""
_OTHER_REASONS = "other reasons"
_KEYS = 3
"""Most keys of samples without a value that are shown."""


class Absence(NamedTuple):
    """Samples without a value for the same reason.

    Args:
        samples: Number of samples.
        location: Location of the first sample.
        keys: Keys of the first samples.
    """

    samples: int
    location: str
    keys: list[str]

    def and_then(self, other: Absence) -> Absence:
        """Return the samples of both."""
        keys = [*self.keys, *other.keys][:_KEYS]
        return Absence(self.samples + other.samples, self.location, keys)


class Piece(NamedTuple):
    """A column of some shards.

    Args:
        values: Numbers, or words as objects, of samples that have a value.
        absent: Whether a sample has no value, shape (samples,).
        absences: The samples without a value, by reason.
        first: Example of a sample with a word (True) and with a number (False).
    """

    values: npt.NDArray[Any]
    absent: npt.NDArray[np.bool_]
    absences: dict[str, Absence]
    first: dict[bool, str]


def column_of(shards: Sequence[ScannedShard], name: str) -> Piece:
    """Return a column of shards; raise `PrepareError` for both numbers and words."""
    pieces = [shard.results["columns"][name] for shard in shards]
    filled = [piece for piece in pieces if piece.first]
    first = {
        is_word: example for piece in filled for is_word, example in piece.first.items()
    }
    check_one_kind(name, first)
    values = (
        np.concatenate([piece.values for piece in filled]) if filled else np.zeros(0)
    )
    absent = np.concatenate([np.zeros(0, bool), *(piece.absent for piece in pieces)])
    absences: dict[str, Absence] = {}
    for piece in pieces:
        add_absences(absences, piece.absences)
    return Piece(values, absent, absences, first)


def check_one_kind(name: str, first: Mapping[bool, str]) -> None:
    """Raise `PrepareError` for a column of both numbers and words."""
    if len(first) > 1:
        raise PrepareError(
            f"column {name!r}: all samples have numbers, or all have words; "
            f"{' and '.join(first.values())}"
        )


def add_absences(to: dict[str, Absence], absences: Mapping[str, Absence]) -> None:
    """Add samples without a value; rare reasons are counted together."""
    for reason, absence in absences.items():
        name = reason if reason in to or len(to) < _REASONS else _OTHER_REASONS
        to[name] = to[name].and_then(absence) if name in to else absence


@dataclass(frozen=True)
class ShardWork:
    """The functions that a job calls for each shard.

    Args:
        keep: Checks what was found in a shard, and writes the files beside it.
        functions: Functions of the headers of a shard, called where it is read; their
            results are in `ScannedShard.results` by name.
        write: Writes a shard before it is read.
        stamp: Returns what a shard is made from; by default its size and time.
        scan: Scans a shard that is not a tar; by default `ShardHeaders` does.

    """

    keep: Callable[[ScannedShard, NewFiles], None]
    functions: Mapping[str, Callable[[ShardHeaders], Any]]
    write: Callable[[str], None] | None = None
    stamp: Callable[[str], str] | None = None
    scan: Callable[[str], ScannedShard] | None = None


@dataclass(frozen=True)
class JobPart:
    """The part of a job that this process does, and with how many workers.

    Args:
        workers: Processes that read shards; by default one for each core.
        on_progress: Called with the shards that are done, and with all shards.
        tasks: Number of tasks that the shards are partitioned into.
        task: The task that this process does.
        merge: Whether all tasks have ended, and their results are merged.

    Raises:
        ConfigError: For a task that does not exist.

    """

    workers: int | None = None
    on_progress: Progress | None = None
    tasks: int | None = None
    task: int | None = None
    merge: bool = False

    def __post_init__(self) -> None:
        check_tasks(self.tasks, self.task, merge=self.merge)


@dataclass(frozen=True)
class Job:
    """A job on the shards of a folder, done at once or by tasks.

    Args:
        root: The folder.
        name: Name of the folder of the markers.
        names: The shards, relative to `root`.
        work: The functions that are called for each shard.
        part: The part of the job that this process does.
        options: Options that affect the results, JSON-able. Tasks with other options
            are done again. `columns` are the columns by name.
        unique: Whether a key must occur once in all shards.
        tasks_folder: Folder of the markers, relative to `root`.

    Raises:
        PrepareError: If `unique` and two shards have the same key.

    """

    root: Path
    name: str
    names: Sequence[str]
    work: ShardWork
    part: JobPart
    options: Mapping[str, Any] = field(default_factory=dict)
    unique: bool = False
    tasks_folder: str = TASKS_FOLDER

    @property
    def tasks(self) -> int | None:
        """The number of tasks, None if the shards are not partitioned."""
        return self.part.tasks

    @property
    def task(self) -> int | None:
        """The task of this process, None for all tasks or the merge."""
        return self.part.task

    @property
    def folders(self) -> list[Path]:
        """The folders of the markers; the last one contains them."""
        folder = self.root / self.tasks_folder
        return [folder, folder / f"{self.name}-{self.tasks}"] if self.tasks else []

    @property
    def is_done(self) -> bool:
        """Whether this task has ended already, with these options and these shards."""
        return self.task is not None and self._recorded_fingerprint(
            self.task
        ) == self._fingerprint_of(self.task)

    def of_task(self, *folders: Path) -> list[ScannedShard]:
        """Return the shards of this task, scanned or read from its marker."""
        task = self.task or 0
        if self.is_done:
            return [*self._marked(task)]
        marker = self._marker(task)
        with staging(self.root, *folders, *self.folders, shared=True) as files:
            with writing(marker, PrepareError), files.create(marker) as stream:
                stream.write(f"{self._fingerprint_of(task)}\n".encode())
                shards = self._scan(files, self._names(task), partial(_mark, stream))
                for name in self.options.get("columns", ()):
                    column_of(
                        shards, name
                    )  # what all of them could not be is told of now
                stream.write(_END)
            files.put_last(marker)
            name = next(iter(self._names(task)), "")
            commit(files, self.root if self.work.scan else self.root / name)
        return shards

    def of_all(self, files: NewFiles, index: Path | None = None) -> list[ScannedShard]:
        """Return all shards, scanned or read from the markers of tasks.

        Args:
            files: The staged files of the folder.
            index: The database that is written with the rows of the shards.

        Raises:
            PrepareError: For tasks that have not ended, or had other options or shards.
        """
        filling = (
            new_database(files, index, TABLES, indexes=INDEXES)
            if index
            else nullcontext()
        )
        with filling as database:
            keep = partial(add_rows, database)
            if not self.part.merge:
                return self._scan(files, self.names, keep)
            self._check_ended()
            shards = list[ScannedShard]()
            for shard in chain.from_iterable(map(self._marked, range(self.tasks or 1))):
                keep(shard)
                shards.append(shard)
            check_unique(self.root, shards if self.unique else ())
            return shards

    def _check_ended(self) -> None:
        tasks = range(self.tasks or 1)
        recorded = [*map(self._recorded_fingerprint, tasks)]
        current = [*map(self._fingerprint_of, tasks)]
        tasks_by_change = defaultdict[str, list[int]](list)
        for task in (
            task for task in tasks if recorded[task] not in (None, current[task])
        ):
            was = json.loads(recorded[task] or "")
            wanted = json.loads(current[task])
            changed = [
                name for name in wanted | was if wanted.get(name) != was.get(name)
            ]
            tasks_by_change[some(changed)].append(task)
        ran = (
            f"; task {ranges(of)} ran with others than now: {change}"
            for change, of in tasks_by_change.items()
        )
        check_ended(
            self.root, [recorded[task] == current[task] for task in tasks], "".join(ran)
        )

    def _scan(
        self,
        files: NewFiles,
        names: Sequence[str],
        keep: Callable[[ScannedShard], None],
    ) -> list[ScannedShard]:
        def process(shard: ScannedShard) -> ScannedShard:
            self.work.keep(shard, files)
            if "checksums" in self.work.functions:
                data = shard.results.pop("checksums")
                files.write(path_of(checksums_path(str(self.root / shard.name))), data)
                shard.record = shard.record._replace(checksums_crc32=zlib.crc32(data))
            keep(shard)
            shard.index = b""
            return shard

        how: Any = {
            "workers": self.part.workers,
            "on_progress": self.part.on_progress,
            "write": self.work.write,
        }
        if self.work.scan is not None:
            shards = self._scan_others(names, self.work.scan, process)
        else:
            shards = scan_shards(self.root, names, process, self.work.functions, **how)
        check_unique(self.root, shards if self.unique else ())
        return shards

    def _scan_others(
        self,
        names: Sequence[str],
        scan: Callable[[str], ScannedShard],
        process: Callable[[ScannedShard], ScannedShard],
    ) -> list[ScannedShard]:
        """Scan what is not a tar; raise the first error."""
        workers, on_progress = self.part.workers, self.part.on_progress
        shards = list[ScannedShard]()
        with closing(map_in_order(scan, names, workers, on_progress)) as results:
            for result in results:
                if isinstance(result, Exception):
                    raise result
                shards.append(process(result))
        return shards

    def _marker(self, task: int) -> Path:
        return self.folders[-1] / f"{task:05d}.jsonl"

    def _names(self, task: int) -> Sequence[str]:
        return self.names[share(len(self.names), self.tasks, task)]

    def _fingerprint_of(self, task: int) -> str:
        """Return the options and shards that the results of a task depend on."""
        stamp = self.work.stamp or self._stamp
        stamps = {name: stamp(name) for name in self._names(task)}
        return json.dumps({"format": _FORMAT, **self.options, **stamps})

    def _stamp(self, name: str) -> str:
        stat = (self.root / name).stat()
        return f"{stat.st_size} {stat.st_mtime_ns}"

    def _recorded_fingerprint(self, task: int) -> str | None:
        """Return the fingerprint in a marker; None without a whole marker."""
        if exists(marker := self._marker(task)):
            with suppress(OSError, ValueError), marker.open("rb") as lines:
                recorded = lines.readline().decode().strip()
                lines.seek(-len(_END), os.SEEK_END)
                return (
                    recorded if json.loads(recorded) and lines.read() == _END else None
                )
        return None

    def _marked(self, task: int) -> Iterator[ScannedShard]:
        """Yield each shard of a marker."""
        marker = self._marker(task)
        try:
            with marker.open("rb") as lines:
                for line in islice(lines, 1, None):
                    if line != _END:
                        yield _marked(line)
        except (ValueError, TypeError, LookupError, AttributeError) as reason:
            raise PrepareError(
                f"{marker} is damaged: {reason}. Remove it and run task {task} again"
            ) from reason


def _mark(stream: BinaryIO, shard: ScannedShard) -> None:
    """Write the line of a shard to a marker, and drop its rows."""
    results = shard.results | {"columns": {}}
    for name, piece in shard.results.get("columns", {}).items():
        results["columns"][name] = (
            piece.values.tolist(),
            piece.absent.tolist(),
            piece.absences,
            [*piece.first.items()],
        )
    hashes = shard.hashes.tobytes().hex()
    row = (
        shard.name,
        shard.count,
        shard.parts,
        hashes,
        shard.record,
        shard.trailing,
        results,
    )
    stream.write(f"{json.dumps(row)}\n".encode())
    shard.results.pop("rows", None)


def _marked(line: bytes) -> ScannedShard:
    name, count, parts, hashes, record, trailing, results = json.loads(line)
    for column, (values, absent, reasons, examples) in results["columns"].items():
        first = dict(examples)
        values_array = (
            np.array([*map(sys.intern, values)], object)
            if True in first
            else np.array(values)
        )
        absences = {reason: Absence(*counted) for reason, counted in reasons.items()}
        results["columns"][column] = Piece(
            values_array, np.array(absent, bool), absences, first
        )
    keys = np.frombuffer(bytes.fromhex(hashes), np.uint64)
    details = keys, ShardRecord(*record), trailing, results
    return ScannedShard(name, count, b"", Counter(parts), *details)


def add_rows(database: sqlite3.Connection | None, shard: ScannedShard) -> None:
    """Add the rows of a shard to tables; repeated keys are reported at the end."""
    for table, rows in shard.results.pop("rows", {}).items():
        if database is not None:
            values = "VALUES (?,?,?,?,?)"
            statement = f"INSERT OR IGNORE INTO {table} {values}"
            database.executemany(statement, rows)


def read_shard_counts(root: Path) -> dict[str, int]:
    """Return the samples by shard of a prepared folder that has shards."""
    counts = read_info(root).shard_counts
    if not counts:
        message = f"{root / META_FOLDER} names no shards; prepare the folder again"
        raise PrepareError(f"{message}, without --tar-index-only")
    return counts


def unchanged(root: Path) -> Callable[[ScannedShard, NewFiles], None]:
    """Return a function that raises `ShardError` for shards that have changed."""
    counts = read_info(root).shard_counts
    records = read_records(root, counts) or {}
    again = "prepare the folder again first, with: energize prepare --force-overwrite"

    def check(shard: ScannedShard, _: NewFiles) -> None:
        for difference in shard.differences(
            root, counts[shard.name], records.get(shard.name)
        ):
            raise ShardError(f"{difference}; {again} {root}")

    return check


def share(size: int, tasks: int | None, task: int | None) -> slice:
    """Return the slice of a sequence that a task does; everything without tasks.

    >>> [share(10, 3, task) for task in range(3)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """
    if tasks is None or task is None:
        return slice(0, size)
    return slice(task * size // tasks, (task + 1) * size // tasks)


def check_ended(path: Path, ended: Sequence[bool], addition: str = "") -> None:
    """Raise `PrepareError` with the tasks of a path that have not ended."""
    missing = ranges([task for task, is_whole in enumerate(ended) if not is_whole])
    if missing:
        raise PrepareError(
            f"{path}: of {len(ended)} tasks, these have not ended with these options "
            "and shards: "
            f"{missing}{addition}. Run them, then the merge"
        )


def check_tasks(tasks: int | None, task: int | None, *, merge: bool) -> None:
    """Raise `ConfigError` for a task that does not exist."""
    if tasks is None:
        if task is not None or merge:
            raise ConfigError(
                "task and merge (--task, --merge) need tasks (--tasks), the number of "
                "tasks"
            )
        return
    checked_whole(tasks, "tasks", 1)
    if task is not None and (merge or not 0 <= checked_whole(task, "task") < tasks):
        fault = "task and merge exclude one another" if merge else f"got task {task}"
        raise ConfigError(f"{tasks} tasks have the numbers 0 to {tasks - 1}: {fault}")


def all_in_turn(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function of `tasks`, `task` and `merge`, to do all tasks and the merge.

    This applies to calls with `tasks` alone. Tasks that have already ended are not done
    again.
    """

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        tasks: Any = kwargs.get("tasks")
        if tasks is None or kwargs.get("task") is not None or kwargs.get("merge"):
            return function(*args, **kwargs)
        report: Any = kwargs.pop("on_progress", None) or progress("Tasks")
        arguments: Any = kwargs
        for task in range(checked_whole(tasks, "tasks", 1)):
            report(task, tasks)
            function(*args, **arguments | {"task": task})
        report(tasks, tasks)
        return function(*args, **arguments | {"merge": True})

    return called


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers for people.

    >>> ranges([3, 17, 18, 19, 40])
    '3, 17-19, 40'
    """
    texts = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        row = [number for _, number in run]
        texts.append(f"{row[0]}-{row[-1]}" if len(row) > 1 else f"{row[0]}")
    return ", ".join(texts)
