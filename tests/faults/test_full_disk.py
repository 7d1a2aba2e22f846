"""Everything that writes, on a real disk without room: a tmpfs of a few megabytes."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from itertools import count

import pytest

from energize.errors import EnergizeError
from tests.support.sick_commands import WRITERS, files_of, make

pytestmark = pytest.mark.jobs

PAGE = 4096
LINE_BY_LINE = ("quarantine",)
"""What is not written as a whole."""


@pytest.fixture
def folder(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=200", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a disk")
    try:
        made = disk / "made"
        made.mkdir()
        make(made)
        yield made
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def without_room(disk, left):
    """Fill a disk up to so many pages; the files that do."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        with suppress(OSError):
            while True:
                file.write(bytes(PAGE))
        file.truncate(file.tell() - left * PAGE)
    return [filler]


def without_names(disk):
    """Make files until a disk can have no more; these."""
    with suppress(OSError):
        for number in count():
            (disk / f"filler{number}").touch()
    return list(disk.glob("filler*"))


@pytest.mark.parametrize("left", [0, 1, 3, None])
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_what_was_there(folder, name, left):
    old = files_of(folder)
    disk = folder.parent
    filler = without_names(disk) if left is None else without_room(disk, left)
    told = None
    try:
        WRITERS[name](folder)
    except EnergizeError as error:
        told = str(error)
    if told is None:
        assert left, "nothing was written"
    else:
        assert str(folder) in told
        assert "make room" in told.lower()
        assert name in LINE_BY_LINE or files_of(folder) == old
    for path in filler:
        path.unlink()
    WRITERS[name](folder)
    assert files_of(folder).keys() >= old.keys()
