"""Indexing a file of JSON lines."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable
from pathlib import Path

from energize.data.files import os_errors_as
from energize.data.jsonl import jsonl_checksums_path, jsonl_index_path
from energize.data.writing import NewFiles, remove_left, taken_back_when_stopped
from energize.errors import DatasetNotFoundError, PrepareError
from energize.preparation.discovery import listed
from energize.preparation.scan import checksums_of
from energize.preparation.write import commit, locked

_SHOWN = 10
_REPORTED_BYTES = 4 * 1024 * 1024
_NO_TEXT = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
"""How byte order marks and files that gzip and zstd compressed begin."""


@os_errors_as(PrepareError, what="cannot be used")
def prepare_jsonl(
    path: str | os.PathLike[str],
    *,
    checksums: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write the index `PATH.idx` of a `.jsonl` file; return how many samples it has.

    With `checksums` also `PATH.crc`, a checksum of each sample, with which it is compared where it
    is read with `JsonlSource(checksums=True)`, `get_train_dataset(checksums=True)`, and by lint.

    Every line that is not blank is a sample and has to be a JSON object; all of them are parsed.
    The files appear when they are complete; on any error what was there stays. `on_progress` is
    called with bytes done and bytes in all.

    Raises `PrepareError` naming the lines that are no objects and what is wrong with them, a file
    without samples and one that cannot be written; `DatasetNotFoundError`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "texts.jsonl")
    >>> _ = path.write_text('{"text": "a"}' + chr(10) + '{"text": "b"}')
    >>> prepare_jsonl(path)
    2
    """
    file = Path(path)
    if not file.exists():
        raise DatasetNotFoundError(f"{file} does not exist")
    if not file.is_file() or file.suffix != ".jsonl":
        raise PrepareError(f"{file} is no .jsonl file; for a folder of tar shards call prepare")
    index, crc = Path(jsonl_index_path(str(file))), Path(jsonl_checksums_path(str(file)))
    with taken_back_when_stopped(), locked(file), NewFiles(PrepareError) as files:
        offsets = _offsets(file, on_progress or (lambda done, total: None))
        for final in (index, crc):
            remove_left(final.parent, of=final)
        if checksums:
            with os_errors_as(PrepareError):
                files.write(crc, checksums_of(file, offsets[1:]))
        files.write(index, offsets.tobytes())
        commit(files, file)
    return len(offsets) - 1


def _offsets(path: Path, on_progress: Callable[[int, int], None]) -> array[int]:
    """Return where each sample starts, and the size of the file."""
    size = path.stat().st_size
    offsets, faults = array("Q"), list[str]()
    at = reported = wrong = 0
    with os_errors_as(PrepareError, path), path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if text:
                # Blank lines at the start belong to the first sample.
                offsets.append(at if offsets else 0)
                fault = _fault(text)
                wrong += fault is not None
                if fault is not None and wrong <= _SHOWN:
                    faults.append(f"line {number}: {fault}")
            at += len(line)
            if at - reported > _REPORTED_BYTES:
                on_progress(reported := at, size)
    if faults:
        told = f"{path}: {wrong} of {len(offsets)} lines are no JSON objects, {{...}}"
        raise PrepareError(f"{told}:{listed(faults, wrong)}")
    if not offsets:
        raise PrepareError(f"{path} holds no samples: every line is blank")
    if at != size:
        raise PrepareError(f"{path} grew or shrank while it was indexed; wait until it is written")
    on_progress(size, size)
    offsets.append(size)
    return offsets


def _fault(text: bytes) -> str | None:
    """Return what is wrong with a line, if anything."""
    if text.startswith(_NO_TEXT):
        return "it is compressed, or has a byte order mark; save the file as plain UTF-8"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as reason:
        return f"{reason}: {str(text[:60])[1:]}"
    return None if isinstance(value, dict) else f"it is no object: {str(text[:60])[1:]}"
