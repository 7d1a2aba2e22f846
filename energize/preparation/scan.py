"""Scan shards once, and find the shards of a folder.

All results of preparing (indices, records, checksums, columns, media metadata) and
the checks of `energize lint` are made from the `ScannedShard`s of `scan_shards`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import unicodedata
import zlib
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np

from energize.core.arrays import UInt64Array
from energize.core.os_errors import is_url, os_errors_as
from energize.core.progress import Progress
from energize.data.files import absent, files_at, read_file
from energize.data.nv_meta import ShardRecord, expand, is_converting, is_inside
from energize.data.tar import ScannedSample, index_path, scan
from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    PrepareError,
    ShardError,
    in_place_of,
)
from energize.preparation.workers import map_in_order
from energize.task.field_maps import PartAccess

T = TypeVar("T")


class ShardHeaders:
    """A shard of a folder with its headers.

    Raises:
        ShardError: As `energize.data.tar.scan`.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name
        self.path = root / name
        self.content, self.files = scan(self.path), files_at(self.path)

    def samples(self) -> Iterator[RawSample]:
        """Yield the samples in their order."""
        for number, sample in enumerate(self.content.samples):
            yield RawSample(self, number, sample)

    def checksums(self) -> bytes:
        """Return the checksums of the samples, as stored in `SHARD.tar.crc`."""
        return checksums_of(self.path, self.offsets[1:])

    @cached_property
    def offsets(self) -> list[int]:
        """Start of each sample, and end of the last one."""
        return [*(sample.offset for sample in self.content.samples), self.content.end]


class StoredSample(ABC):
    """A stored sample that reads its parts on access."""

    @property
    @abstractmethod
    def key(self) -> str:
        """The key of the sample."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Shard and key, for messages."""

    @cached_property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Bytes of each part, by name."""

    @abstractmethod
    def part(self, name: str) -> bytes:
        """Return the bytes of a part."""

    @abstractmethod
    def raw(self) -> dict[str, Any]:
        """Return the sample as its source returns it."""

    def json(self, access: PartAccess) -> Any:
        """Return the value at the keys of a JSON part.

        Raises:
            DataError: If there is no such key.
            PrepareError: If the part is not JSON.
        """
        try:
            [part] = access.among(self.sizes)[:1] or [access.part]
            content = json.loads(self.part(part))
        except (ValueError, RecursionError) as reason:
            raise PrepareError(f"{access.part} is not JSON: {reason}") from reason
        return access.within(content)

    def text(self, name: str) -> str:
        """Return a part that is UTF-8; raise `PrepareError` for one that is not."""
        try:
            return self.part(name).decode()
        except UnicodeDecodeError as reason:
            raise PrepareError(f"{name} is not UTF-8: {reason}") from reason


@dataclass
class RawSample(StoredSample):
    """A sample of a shard that reads its parts on access."""

    shard: ShardHeaders
    number: int
    entry: ScannedSample

    @property
    def key(self) -> str:
        return self.entry.key

    @property
    def location(self) -> str:
        return f"{self.shard.path}, sample {self.entry.key!r}"

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {part.name: part.size for part in self.entry.parts}

    def part(self, name: str) -> bytes:
        part = next(entry for entry in self.entry.parts if entry.name == name)
        return self.shard.files.read(
            str(self.shard.path), part.offset, part.offset + part.size
        )

    def raw(self) -> dict[str, Any]:
        return {
            "__key__": self.entry.key,
            "__dataset__": str(self.shard.root),
            "__shard__": self.shard.name,
            "__index__": self.number,
            **{part.name: self.part(part.name) for part in self.entry.parts},
        }


@dataclass(slots=True)
class ScannedShard:
    """Result of scanning one shard.

    Args:
        name: Name of the shard.
        count: Number of samples.
        index: Content of its `.tar.idx`.
        parts: Samples by part name.
        hashes: 64 bits for each key.
        record: Sizes and checksums by which readers recognise the shard.
        trailing: Bytes after the last sample.
        results: Results of the functions of `scan_shards`, by name.
    """

    name: str
    count: int
    index: bytes
    parts: Counter[str]
    hashes: UInt64Array
    record: ShardRecord
    trailing: int
    results: dict[str, Any]

    def differences(
        self, root: Path, count: int, record: ShardRecord | None
    ) -> Iterator[str]:
        """Yield the differences from the stored index and record."""
        path = root / self.name
        if self.count != count:
            yield f"{path} has {self.count} samples, but .info.json has {count}"
        file = index_path(str(path))
        with os_errors_as(ShardError):
            data = read_file(file)
        if len(data) != len(self.index):
            yield (
                f"{file} has {len(data)} bytes, and the index of {path} "
                f"{len(self.index)}"
            )
        else:
            stored = np.frombuffer(data, "<u8")
            rights = np.frombuffer(self.index, "<u8")
            # The first sample is read from the start of the shard, where its entry may
            # point too.
            wrong = [
                row for row in np.flatnonzero(stored != rights) if row or stored[0]
            ]
            if wrong:
                yield (
                    f"{file}: {len(wrong)} of {len(rights)} entries are wrong: entry "
                    f"{wrong[0]} is {stored[wrong[0]]}, and that sample is at "
                    f"{rights[wrong[0]]}"
                )
        self.record = self.record._replace(index_crc32=zlib.crc32(data))
        for field in (
            ("bytes", "index_crc32", "headers_crc32", "ends_crc32") if record else ()
        ):
            current = getattr(self.record, field)
            recorded = getattr(record, field)
            if current != recorded:
                yield (
                    f"{path} is not the shard that was prepared: its {field} is "
                    f"{current}, was {recorded}"
                )


def scan_shards(
    root: Path,
    names: Sequence[str],
    keep: Callable[[ScannedShard], T],
    functions: Mapping[str, Callable[[ShardHeaders], Any]] | None = None,
    *,
    workers: int | None = None,
    on_progress: Progress | None = None,
    faults: list[str] | None = None,
    write: Callable[[str], None] | None = None,
) -> list[T]:
    """Scan shards in processes, and return the results of `keep`, in order.

    Args:
        root: The folder.
        names: The shards, relative to `root`.
        keep: Called in this process with each scanned shard.
        functions: Called by name with the `ShardHeaders` in the process that reads the
            shard; the results are in `ScannedShard.results`.
        workers: Number of processes; by default one for each core.
        on_progress: Called with the shards that are done, and with all shards.
        faults: Collects faults of shards and errors of the functions; None raises them.
        write: Called with the name of a shard before it is read, to write it.

    Raises:
        PrepareError: Listing all damaged shards, and errors of the functions, if
            `faults` is None; and as `map_in_order`.
    """
    outcomes: list[T] = []
    damaged: list[str] = []
    tolerated = ShardError if faults is None else DatasetError

    def walked(name: str) -> ScannedShard:
        with os_errors_as(ShardError, root / name):
            if write is not None:
                write(name)
            shard = ShardHeaders(root, name)
            content = shard.content
            index = np.array(shard.offsets, dtype="<u8").tobytes()
            kinds = tuple(sorted({sample.parts_crc32 for sample in content.samples}))
            of_shard = content.size, zlib.crc32(index), content.headers, content.ends
            record = ShardRecord(
                *of_shard, None, kinds if len(kinds) <= _KINDS else None
            )
            parts = Counter(
                part.name for sample in content.samples for part in sample.parts
            )
            hashes = _key_hashes([sample.key for sample in content.samples])
            results = {
                function_name: function(shard)
                for function_name, function in (functions or {}).items()
            }
            message = parts, hashes, record, content.size - content.end, results
            return ScannedShard(name, len(content.samples), index, *message)

    with closing(map_in_order(walked, names, workers, on_progress)) as results:
        for result in results:
            try:
                if isinstance(result, Exception):
                    raise result
                outcomes.append(keep(result))
            except tolerated as fault:
                (damaged if faults is None else faults).append(str(fault))
    if damaged and write is not None:
        message = f"{len(damaged)} of {len(names)} shards of {root} cannot be written"
        more = "The others are done. Repair these, and run it again"
        raise PrepareError(f"{message}:{listed(damaged)}\n{more}")
    if damaged:
        raise PrepareError(
            f"{len(damaged)} of {len(names)} shards of {root} cannot be "
            f"used:{listed(damaged)}\n"
            "Nothing was written. Repair them, or prepare the folder without them "
            "(--exclude)"
        )
    return outcomes


def check_unique(root: Path, shards: Sequence[ScannedShard]) -> None:
    """Raise `PrepareError` for keys that occur more than once, with their shards.

    Hashes of 8 bytes are compared first; only shards with equal ones are read again.
    """
    shards_by_key = _shards_of_equal_hashes(root, shards)
    lines = [
        f"{key}: in {', '.join(names)}"
        for key, names in shards_by_key.items()
        if names[1:]
    ]
    if lines:
        inside = any(len({*names}) < len(names) for names in shards_by_key.values())
        across = any(len({*names}) > 1 for names in shards_by_key.values())
        text = f"{root}: {len(lines)} sample keys occur more than once:{listed(lines)}"
        raise PrepareError("\n".join([text, *[_INSIDE] * inside, *[_ACROSS] * across]))


def _shards_of_equal_hashes(
    root: Path, shards: Sequence[ScannedShard]
) -> Mapping[str, list[str]]:
    """Return the shards by key, for keys with a repeated hash."""
    hashes = np.sort(
        np.concatenate([np.zeros(0, np.uint64), *(shard.hashes for shard in shards)])
    )
    repeated = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    shards_by_key: defaultdict[str, list[str]] = defaultdict(list)
    for shard in shards:
        rows = np.flatnonzero(np.isin(shard.hashes, repeated))
        if not len(rows):
            continue
        samples = ShardHeaders(root, shard.name).content.samples
        for row in rows:
            shards_by_key[samples[row].key].append(shard.name)
    return shards_by_key


_INSIDE = (
    "In one shard the members of a sample must follow each other: pack shards in which "
    "a key occurs twice again, sorted by name"
)
_ACROSS = (
    "Keys must be unique over all shards: fix_duplicates=True (--fix-duplicates) "
    "writes the shards again, with the members of each in a folder of its own; or "
    "leave shards out with --exclude"
)


def checksums_of(path: Path, stops: Sequence[int]) -> bytes:
    """Return the CRC-32 of consecutive ranges of a file.

    Args:
        path: The file.
        stops: The end of each range; the first range starts at 0.

    Returns:
        Unsigned 32-bit little-endian numbers.

    Raises:
        ShardError: If the file changes meanwhile.
        OSError: If it cannot be read.
    """
    starts = [0, *stops][: len(stops)]
    pieces = files_at(path).read_ranges(str(path), starts, stops)
    return np.array([*map(zlib.crc32, pieces)], dtype="<u4").tobytes()


def _key_hashes(keys: Sequence[str]) -> UInt64Array:
    """Return 64 bits for each key."""
    named = (key.encode("utf-8", "surrogateescape") for key in keys)
    digests = b"".join(hashlib.blake2b(name, digest_size=8).digest() for name in named)
    return np.frombuffer(digests, dtype=np.uint64)


_SHARDS = re.compile(r"\.(tar(\.(gz|bz2|xz|zst|lz4))?|tgz|tbz2|txz)\Z")
"""Names of shards. Reading a compressed one raises an error."""
# Different lists of the parts of a sample that are written down of a shard, at most.
_KINDS = 100
_SHOWN = 10
_UNWRITABLE = {"Cc", "Cs", "Zl", "Zp"}
"""Control characters, bytes that are no UTF-8, and what ends lines."""


@os_errors_as(PrepareError)
def find_shards(
    path: Path, exclude: str | None = None, patterns: Sequence[str] | None = None
) -> tuple[list[str], list[str]]:
    """Return the tar files below a folder, and notes on files that were left out.

    Shards are in Energon's order: folder by folder, compared as text. Hidden files and
    folders are left out. Links to folders are followed once.

    Args:
        path: The folder.
        exclude: Regular expression; names in which it is found are left out.
        patterns: Names of shards, with braces; None searches the folder.

    Raises:
        DatasetNotFoundError: If the folder does not exist.
        PrepareError: For a folder without shards, links, folders and shards that cannot
            be read, and names that no text file can hold.
        ConfigError: For a wrong `exclude` or pattern.
    """
    if patterns is not None:
        return _named(path, patterns), []
    excluded = _compile_exclude(exclude)
    _check_shard_folder(path)
    notes: list[str] = []
    (every, unreadable) = _shards_below(path, notes)
    names = [name for name in every if not excluded.search(name)]
    if exclude:
        notes += glob_notes("--exclude", [exclude], every, {*every} - {*names})
    faults = [
        f"{name}: {reason}"
        for name, reason in sorted(unreadable.items())
        if not excluded.search(name)
    ]
    if faults:
        raise PrepareError(
            f"below {path}, these may be or contain shards, and are not readable:"
            f"{listed(faults)}\n"
            "Mount the disk, repair the link, allow reading, or exclude them with "
            "--exclude"
        )
    _check_names(path, names)
    if not names:
        exception = f" but those that {exclude!r} excludes" if exclude else ""
        raise PrepareError(
            f"{path} has no *.tar files{exception}; write_shards writes some"
        )
    return sorted(names, key=PurePosixPath), notes


def _compile_exclude(exclude: str | None) -> re.Pattern[str]:
    """Return the pattern of excluded names; None excludes nothing."""
    try:
        return re.compile("(?!)" if exclude is None else exclude)
    except re.error as reason:
        raise ConfigError(
            f"exclude={exclude!r} is not a regular expression: {reason}"
        ) from reason


def _check_shard_folder(path: Path) -> None:
    """Raise an error unless this is a folder in which shards can be searched."""
    if not path.exists():
        raise DatasetNotFoundError(f"{path} {absent(path)}{in_place_of(path)}")
    if not path.is_dir():
        raise PrepareError(f"{path} is a file. Pass the folder of the tar shards")
    if is_converting(path):
        raise PrepareError(
            f"a conversion to {path} has not ended. Run energize convert again"
        )


def _shards_below(path: Path, notes: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the shards below a folder, and the reasons of unreadable entries."""
    wrong: dict[str, str] = {}
    shards = []
    for name in files_below(path, notes, wrong):
        is_shard = _SHARDS.search(name) is not None
        if is_shard:
            shards.append(name)
        # A link without an extension may have led to a folder.
        has_suffix = "." in PurePosixPath(name).name
        if is_shard or (not has_suffix and os.path.islink(path / name)):
            reason = _why_unreadable(path / name)
            if reason:
                wrong[name] = reason
    return shards, wrong


def glob_notes(
    origin: str, patterns: Sequence[str], names: Sequence[str], matched: Iterable[str]
) -> list[str]:
    """Return a note on regular expressions that are likely meant as globs, if they are.

    Args:
        origin: The option of the patterns, for the note.
        patterns: The regular expressions.
        names: The names of all shards.
        matched: The names that the regular expressions match.

    Returns:
        One note, if the patterns as globs would match some names, and others than
        `matched`.

    Example:
        >>> glob_notes("--exclude", ["a-0*"], ["a-00.tar", "a-10.tar"], ["a-00.tar"])
        []

    """
    globs = [pattern for pattern in patterns if {"*", "?"} & {*pattern}]
    glob_matches = {
        name for name in names if any(fnmatchcase(name, glob) for glob in globs)
    }
    regex_matches = {*matched}
    if not glob_matches or glob_matches == regex_matches:
        return []
    regex = " ".join(globs).replace(".", r"\.").replace("*", ".*").replace("?", ".")
    return [
        f"{origin}: {' '.join(globs)} is read as a regular expression, which matches "
        f"{len(regex_matches)} shards; as a glob it would match {len(glob_matches)}: "
        f"write {regex}"
    ]


def _named(path: Path, patterns: Sequence[str]) -> list[str]:
    """Return the shards that patterns such as `parts/data-{0..9}.tar` name.

    Raises:
        DatasetNotFoundError: If the folder does not exist.
        PrepareError: For shards that are named twice or are not below the folder.
        ConfigError: For a malformed pattern.
    """
    if not path.is_dir():
        raise DatasetNotFoundError(f"{path} does not exist, or is no folder")
    try:
        names = list(expand(map(str, patterns)))
    except ValueError as reason:
        raise ConfigError(
            f"{list(patterns)} has a malformed brace pattern: {reason}"
        ) from reason
    wrong = "" if names else "no shard is named"
    for name, count in Counter(names).items():
        if count > 1 or not is_inside(name):
            wrong = (
                f"{name} is {'named twice' if count > 1 else 'not below the folder'}"
            )
    if wrong:
        raise PrepareError(f"{path}: of the shards {list(patterns)}, {wrong}")
    _check_names(path, names)
    return names


def files_below(
    root: Path, notes: list[str], wrong: dict[str, str], *, hidden: bool = False
) -> Iterator[str]:
    """Yield the names of all files below a folder, hidden ones only if `hidden`.

    Hidden folders are not entered; their names end in a slash.
    """

    def cannot(reason: OSError) -> None:
        if os.path.samefile(reason.filename, root):
            raise reason
        wrong[os.path.relpath(reason.filename, root)] = str(reason.strerror)

    if is_url(root):
        yield from _objects_below(root, hidden=hidden)
        return
    seen: dict[tuple[int, int], str] = {}
    # Links are appended in the loop: folders are named by their own paths first.
    starts = [str(root)]
    for start in starts:
        for folder, inner, files in os.walk(start, onerror=cannot):
            name = os.path.relpath(folder, root)
            status = os.stat(folder)
            first_name = seen.setdefault((status.st_dev, status.st_ino), name)
            concealed = [f"{entry}/" for entry in inner if entry.startswith(".")]
            inner[:] = sorted(_visible(inner, hidden=False))
            if first_name != name:
                inner.clear()
                if folder == start:
                    notes.append(
                        f"{name} is a link to {first_name}, and is not followed"
                    )
                continue
            paths = [os.path.join(folder, entry) for entry in inner]
            starts += [entry for entry in paths if os.path.islink(entry)]
            below = "" if name == "." else f"{name}/"
            if hidden:
                yield from (f"{below}{entry}" for entry in concealed)
            yield from (f"{below}{name}" for name in _visible(files, hidden=hidden))


def _visible(names: Iterable[str], *, hidden: bool) -> list[str]:
    """Return the names without hidden ones, unless `hidden`."""
    return [name for name in names if hidden or not name.startswith(".")]


def _objects_below(root: Path, *, hidden: bool) -> Iterator[str]:
    """Yield the names of all objects below a URL."""
    names = (str(path.relative_to(root)) for path in root.glob("**/*"))
    return (name for name in names if hidden or "/." not in f"/{name}")


def _why_unreadable(path: Path) -> str:
    if is_url(path):
        return ""
    try:
        mode = path.stat().st_mode
    except OSError as reason:
        link = f"a link to {os.readlink(path)!r}: " if os.path.islink(path) else ""
        return f"{link}{reason.strerror}"
    if not stat.S_ISREG(mode):
        return "no regular file"
    return "" if os.access(path, os.R_OK) else "this user may not read it"


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Raise `PrepareError` for names that no file of `.nv-meta` could hold."""
    strange = (name for name in names if not name.isprintable())
    bad = [
        repr(name)
        for name in strange
        if _UNWRITABLE & {*map(unicodedata.category, name)}
    ]
    if bad:
        raise PrepareError(
            f"{len(bad)} shards of {path} have names that are not UTF-8, or have "
            "control characters:"
            f"{listed(bad)}\nRename them, or exclude them with --exclude"
        )


def listed(entries: Iterable[str], count: int = 0) -> str:
    """Return the first lines, indented, and the number of further ones."""
    lines = list(entries)
    count = max(count, len(lines))
    more = [f"and {count - _SHOWN} more"] if count > _SHOWN else []
    return "".join(f"\n  {line}" for line in [*lines[:_SHOWN], *more])
