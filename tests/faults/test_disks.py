"""Everything that is read and written, and all commands, on disks that fail: for a
moment or for ever, full, read-only or forbidden.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from energize.errors import EnergizeError
from tests.faults.scenes import (
    COMMANDS,
    READERS,
    WRITERS,
    Program,
    files_of,
    make_written,
)

pytestmark = pytest.mark.jobs

PASSING: dict[str, dict[str, Any]] = {
    "a read fails": {"error": "EIO", "times": 1},
    "the file server restarts": {"error": "ESTALE", "times": 1},
    "opening times out": {"calls": "open", "error": "ETIMEDOUT", "times": 1},
    "too many files of all processes": {"calls": "open", "error": "ENFILE", "times": 1},
    "asking for a size fails": {"calls": "stat", "error": "EIO", "times": 1},
    "mapping fails": {"calls": "mmap", "error": "EIO", "times": 1},
    "half of each read": {"short": -1},
    "one byte less each": {"short": -2},
    "nothing, once": {"short": 0, "times": 1},
    "slow reads": {"slow": 5, "every": 3},
}
LASTING: dict[str, dict[str, Any]] = {
    "reads fail": {"error": "EIO"},
    "every fifth call, or so": {
        "calls": "read open stat",
        "error": "EIO",
        "permille": 200,
    },
    "reading is forbidden": {"calls": "open", "error": "EACCES"},
    "too many open files": {"calls": "open", "error": "EMFILE"},
    "out of memory": {"calls": "mmap open", "error": "ENOMEM"},
    "folders may not be entered": {"calls": "stat", "error": "EACCES"},
    "folders may not be listed": {"calls": "list", "error": "EACCES"},
    "asking fails": {"calls": "stat", "error": "ESTALE"},
    "files are gone": {"calls": "open stat", "error": "ENOENT"},
}
WRITING: dict[str, dict[str, Any]] = {
    "disk full": {"calls": "write", "error": "ENOSPC"},
    "full after a while": {"calls": "write", "error": "ENOSPC", "skip": 2},
    "quota used up": {"calls": "write", "error": "EDQUOT"},
    "writes fail": {"calls": "write", "error": "EIO"},
    "not on the disk": {"calls": "sync", "error": "EIO"},
    "no new names": {"calls": "rename", "error": "EIO"},
    "mounted read-only": {"calls": "rename mkdir write", "error": "EROFS"},
    "half of each write": {"calls": "write", "short": -1},
    "too many open files": {"calls": "open", "error": "EMFILE"},
    "no new folders": {"calls": "mkdir", "error": "EACCES"},
    "asking fails": {"calls": "stat", "error": "EIO"},
    "folders may not be listed": {"calls": "list", "error": "EACCES"},
    "reads fail": {"calls": "read", "error": "EIO"},
}
HALF = ("quarantine", "prepare again")
"""A list grows line by line; and what is prepared anew is not prepared meanwhile, which
it says."""


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Iterator[Program]:
    started = Program(tmp_path_factory.mktemp("sick"))
    yield started
    started.close()


def reads(program, name, fault, *, passes, workers=0, after=3):
    """All is delivered; or up to an error of ours that says where, and the rest after a
    resume. No sample is left out for what is not its own fault.
    """
    told = program.told("read", name, workers, [{"pattern": "*", **fault}], after)
    assert told["items"] + told.get("rest", []) == program.well("read", name)["items"]
    if told["error"] is None:
        assert told["failed"] == 0
    else:
        assert told["ours"], told
        assert str(program.folder) in told["text"], told
        assert not passes, told
    assert told["seconds"] < 30
    return told["hits"][0]


def writes(program, name, fault):
    """All is written; or an error of ours says where, nothing is left, and trying again
    helps."""
    well = program.well("do", name)
    told = program.told("do", name, [{"pattern": "*", **fault}])
    if told["error"] is None:
        assert (told["added"], told["changed"]) == (well["added"], well["changed"])
        return told["hits"][0]
    assert told["ours"], told
    assert str(program.folder) in told["text"], told
    assert "again" not in told, told
    assert told["at last"] == well["at last"]
    if name not in HALF:
        assert (told["added"], told["changed"]) == ([], [])
    return told["hits"][0]


@pytest.mark.parametrize("name", READERS)
def test_what_passes_is_not_seen_and_what_lasts_is_an_error(program, name):
    for fault in (
        "a read fails",
        "opening times out",
        "half of each read",
        "nothing, once",
    ):
        reads(program, name, PASSING[fault], passes=True)
    for fault in ("reads fail", "reading is forbidden", "too many open files"):
        reads(program, name, LASTING[fault], passes=False)


def test_faults_are_met_and_told(program):
    """Else the tests above would show nothing."""
    hits = [
        reads(program, "webdataset", fault, passes=True) for fault in PASSING.values()
    ]
    assert [bool(each) for each in hits] == [
        name != "mapping fails" for name in PASSING
    ]
    assert "Input/output error. It is tried again" in program.log()


@pytest.mark.parametrize("name", ["webdataset", "stores"])
def test_workers_meet_faults_as_well(program, name):
    for fault in ("a read fails", "the file server restarts", "half of each read"):
        reads(program, name, PASSING[fault], passes=True, workers=2)
    for fault in ("reads fail", "reading is forbidden", "too many open files"):
        reads(program, name, LASTING[fault], passes=False, workers=2)


@pytest.mark.parametrize("name", ["columns", "index lines", "plot", "remap", "schema"])
def test_a_full_disk_leaves_nothing_half_written(program, name):
    assert writes(program, name, WRITING["disk full"]) > 0


@pytest.mark.parametrize("name", ["info", "plan", "state show"])
def test_commands_tell_of_disks_that_fail(program, name):
    assert writes(program, name, WRITING["reads fail"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("after", [-1, 3])
@pytest.mark.parametrize("name", READERS)
def test_every_reader_and_every_fault(program, name, after, workers):
    if name == "arrow" and after < 0:
        pytest.skip("it is `datasets` that opens it")
    for fault in PASSING.values():
        reads(program, name, fault, passes=True, workers=workers, after=after)
    for fault in LASTING.values():
        reads(program, name, fault, passes=False, workers=workers, after=after)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WRITERS, *COMMANDS])
def test_every_fault_of_everything_that_writes(program, name):
    hits = [writes(program, name, fault) for fault in WRITING.values()]
    assert sum(map(bool, hits)) >= (5 if name in WRITERS else 2)


# A real disk without room: a tmpfs of a few megabytes

PAGE = 4096


@pytest.fixture
def disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=200", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a disk")
    try:
        (disk / "made").mkdir()
        make_written(disk / "made")
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def fill(disk, left):
    """Fill a disk up to so many pages; or, for None, up to the last name of a file."""
    with suppress(OSError):
        for number in count() if left is None else ():
            (disk / f"filler{number}").touch()
    if left is not None:
        with (disk / "filler").open("wb", buffering=0) as file:
            with suppress(OSError):
                while True:
                    file.write(bytes(PAGE))
            file.truncate(file.tell() - left * PAGE)


@pytest.mark.parametrize("left", [0, 1, 3, None])
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_what_was_there(disk, name, left):
    folder = disk / "made"
    old, told = files_of(folder), None
    fill(disk, left)
    try:
        WRITERS[name](folder)
    except EnergizeError as error:
        told = str(error)
    if told is None:
        assert left, "nothing was written"
    else:
        assert str(folder) in told
        assert "make room" in told.lower()
        assert name == "quarantine" or files_of(folder) == old
    for path in disk.glob("filler*"):
        path.unlink()
    WRITERS[name](folder)
    assert files_of(folder).keys() >= old.keys()
