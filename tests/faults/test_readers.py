"""Everything that is read, on disks that fail for a moment or for ever."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.jobs

READERS = (
    "array",
    "arrow",
    "column",
    "joined",
    "lines",
    "mds",
    "mix",
    "parquet",
    "rows",
    "stores",
    "webdataset",
)

PASSING = {
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
LASTING = {
    "reads fail": {"error": "EIO"},
    "every fifth call, or so": {"calls": "read open stat", "error": "EIO", "permille": 200},
    "reading is forbidden": {"calls": "open", "error": "EACCES"},
    "too many open files": {"calls": "open", "error": "EMFILE"},
    "out of memory": {"calls": "mmap open", "error": "ENOMEM"},
    "folders may not be entered": {"calls": "stat", "error": "EACCES"},
    "folders may not be listed": {"calls": "list", "error": "EACCES"},
    "asking fails": {"calls": "stat", "error": "ESTALE"},
    "files are gone": {"calls": "open stat", "error": "ENOENT"},
}


def check(readers, name, workers, fault, after, *, passes):
    """All is delivered; or up to an error of ours that says where, and the rest after a resume. No
    sample is left out for what is not its own fault.
    """
    stream = readers.well(name)
    told = readers.ask(name, workers, [{"pattern": "*", **fault}], after)
    assert told["items"] + told.get("rest", []) == stream
    if told["error"] is None:
        assert told["failed"] == 0
    else:
        assert told["ours"], told
        assert str(readers.folder) in told["text"], told
        assert not passes, told
    assert told["seconds"] < 30
    return told["hits"][0]


@pytest.mark.parametrize("name", READERS)
def test_what_passes_is_not_seen(readers, name):
    for fault in ("a read fails", "opening times out", "half of each read", "nothing, once"):
        check(readers, name, 0, PASSING[fault], 3, passes=True)


@pytest.mark.parametrize("name", READERS)
def test_what_lasts_is_an_error_and_a_resume_is_exact(readers, name):
    for fault in ("reads fail", "reading is forbidden", "too many open files"):
        check(readers, name, 0, LASTING[fault], 3, passes=False)


def test_faults_are_met_and_told(readers):
    """Else the tests above would show nothing."""
    hits = [check(readers, "webdataset", 0, fault, 3, passes=True) for fault in PASSING.values()]
    assert [bool(each) for each in hits] == [name != "mapping fails" for name in PASSING]
    assert "Input/output error; it is tried again" in readers.log()


@pytest.mark.jobs
@pytest.mark.parametrize("name", ["webdataset", "stores"])
def test_workers_meet_faults_as_well(readers, name):
    for fault in ("a read fails", "the file server restarts", "half of each read"):
        check(readers, name, 2, PASSING[fault], 3, passes=True)
    for fault in ("reads fail", "reading is forbidden", "too many open files"):
        check(readers, name, 2, LASTING[fault], 3, passes=False)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("after", [-1, 3])
@pytest.mark.parametrize("name", READERS)
def test_every_reader_and_every_fault(readers, name, after, workers):
    for fault in PASSING.values():
        check(readers, name, workers, fault, after, passes=True)
    for fault in LASTING.values():
        check(readers, name, workers, fault, after, passes=False)
