"""Indexing a file of JSON lines."""

from __future__ import annotations

import json
import os
import stat
from array import array
from collections.abc import Callable
from pathlib import Path

from energize.data.jsonl import jsonl_checksums_path, jsonl_index_path
from energize.data.writing import os_errors_as, remove_left, write_new
from energize.errors import DatasetNotFoundError, PrepareError, ShardError
from energize.preparation.checksums import checksums_between
from energize.preparation.staging import locked

_SHOWN = 20
_REPORTED_BYTES = 4 * 1024 * 1024
_STARTS = {
    b"\xef\xbb\xbf": "it starts with a byte order mark; save the file as UTF-8 without one",
    b"\xff\xfe": "it is UTF-16; save the file as UTF-8",
    b"\xfe\xff": "it is UTF-16; save the file as UTF-8",
    b"\x1f\x8b": "the file is compressed with gzip; unpack it, single lines cannot be read from it",
    b"\x28\xb5\x2f\xfd": "the file is compressed with zstd; unpack it",
}

Progress = Callable[[int, int], None]


@os_errors_as(PrepareError, what="cannot be used")
def prepare_jsonl(
    path: str | os.PathLike[str],
    *,
    checksums: bool = False,
    on_progress: Progress | None = None,
) -> int:
    """Write the index `PATH.idx` of a `.jsonl` file; returns how many samples it has.

    With `checksums` also `PATH.crc`, a checksum of each sample, with which it is compared where it
    is read with `JsonlSource(checksums=True)`, `get_train_dataset(checksums=True)`, and by lint.

    Every line that is not blank is a sample and has to be a JSON object; all of them are parsed.
    The index appears when it is complete; on any error what was there stays. `on_progress` is
    called with bytes done and bytes in all.

    Raises `PrepareError` naming the lines that are no objects and what is wrong with them, a file
    without samples and one that cannot be written; `DatasetNotFoundError`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "texts.jsonl")
    >>> _ = path.write_text('{"text": "a"}' + chr(10) + '{"text": "b"}')
    >>> prepare_jsonl(path)
    2
    """
    file = _checked(Path(path))
    lock = locked(file)
    try:
        index = Path(jsonl_index_path(str(file)))
        remove_left(index.parent, of=index)
        offsets = _offsets(file, on_progress or _silent)
        mode = stat.S_IMODE(file.stat().st_mode) & 0o666 | 0o600
        if checksums:
            _write_checksums(file, offsets[1:], mode)
        write_new(index, offsets.tobytes(), PrepareError, mode)
    finally:
        os.close(lock)
    return len(offsets) - 1


def _write_checksums(file: Path, stops: array[int], mode: int) -> None:
    path = Path(jsonl_checksums_path(str(file)))
    remove_left(path.parent, of=path)
    try:
        data = checksums_between(str(file), stops)
    except (OSError, ShardError) as reason:
        raise PrepareError(f"{reason}; no checksums were written") from reason
    write_new(path, data, PrepareError, mode)


def _checked(path: Path) -> Path:
    if not path.exists():
        raise DatasetNotFoundError(f"{path} does not exist")
    if not path.is_file() or path.suffix != ".jsonl":
        raise PrepareError(
            f"{path} is no .jsonl file, by which name files of JSON lines are known; rename it, or "
            "for a folder of tar shards call prepare"
        )
    return path


def _offsets(path: Path, on_progress: Progress) -> array[int]:
    """Where each sample starts, and the size of the file."""
    size = path.stat().st_size
    offsets, faults, wrong = array("Q"), list[str](), 0
    at = reported = 0
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                text = line.strip()
                if text:
                    # Blank lines at the start belong to the first sample.
                    offsets.append(at if offsets else 0)
                    fault = _fault(text)
                    if fault is not None:
                        wrong += 1
                        if len(faults) < _SHOWN:
                            faults.append(f"  line {number}: {fault}")
                at += len(line)
                if at - reported > _REPORTED_BYTES:
                    on_progress(reported := at, size)
    except OSError as reason:
        raise PrepareError(f"{path} cannot be read: {reason.strerror}") from reason
    if wrong:
        more = [f"  and {wrong - len(faults)} more"] if wrong > len(faults) else []
        listed = "\n".join([*faults, *more])
        raise PrepareError(
            f"{path}: {wrong} of {len(offsets)} lines are no JSON objects:\n{listed}\n"
            "Nothing was written; each line that is not blank has to be one object, {...}"
        )
    if not offsets:
        raise PrepareError(f"{path} holds no samples: every line is blank")
    if at != size:
        raise PrepareError(f"{path} grew or shrank while it was indexed; wait until it is written")
    on_progress(size, size)
    offsets.append(size)
    return offsets


def _fault(text: bytes) -> str | None:
    """What is wrong with a line, if anything."""
    shown = repr(text[:60])[1:]
    for start, meaning in _STARTS.items():
        if text.startswith(start):
            return meaning
    try:
        value = json.loads(text)
    except ValueError as reason:
        return f"{reason}: {shown}"
    except RecursionError:
        return f"it is nested too deeply: {shown}"
    return None if isinstance(value, dict) else f"it is no object: {shown}"


def _silent(done: int, total: int) -> None:
    pass
