"""Everything that writes, and all commands, on disks that are full, sick or forbidden."""

from __future__ import annotations

import pytest

from tests.support.sick_program import SickProgram

pytestmark = pytest.mark.jobs

WRITERS = (
    "columns",
    "index lines",
    "media",
    "plot",
    "prepare",
    "prepare again",
    "quarantine",
    "remap",
    "schema",
    "write shards",
)
COMMANDS = (
    "checkpoint info",
    "info",
    "info of a mix",
    "lint",
    "plan",
    "preview",
    "report",
    "simulate",
    "state diff",
    "state show",
)
FAULTS = {
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
"""A list grows line by line; and what is prepared anew is not prepared meanwhile, which it says."""


class Commands(SickProgram):
    """The program that writes everything on a disk that fails."""

    def __init__(self, folder):
        super().__init__("sick_commands", folder)
        self._well = {}

    def ask(self, name, faults):
        """What an action made of these faults; see `tests/support/sick_commands.py`."""
        return self.told(name, faults)

    def well(self, name):
        """What an action makes on a disk that is well."""
        if name not in self._well:
            self._well[name] = self.ask(name, [])
            assert self._well[name]["error"] is None, self._well[name]
        return self._well[name]


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    started = Commands(tmp_path_factory.mktemp("sick"))
    yield started
    started.close()


def check(commands, name, fault):
    """All is written; or an error of ours says where, nothing is left, and trying again helps."""
    well = commands.well(name)
    told = commands.ask(name, [{"pattern": "*", **fault}])
    if told["error"] is None:
        assert (told["added"], told["changed"]) == (well["added"], well["changed"])
        return told["hits"][0]
    assert told["ours"], told
    assert str(commands.folder) in told["text"], told
    assert "again" not in told, told
    assert told["at last"] == well["at last"]
    if name not in HALF:
        assert (told["added"], told["changed"]) == ([], [])
    return told["hits"][0]


@pytest.mark.parametrize("name", ["columns", "index lines", "plot", "remap", "schema"])
def test_a_full_disk_leaves_nothing_half_written(commands, name):
    assert check(commands, name, FAULTS["disk full"]) > 0


@pytest.mark.parametrize("name", ["info", "plan", "state show"])
def test_commands_tell_of_disks_that_fail(commands, name):
    assert check(commands, name, FAULTS["reads fail"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WRITERS, *COMMANDS])
def test_every_fault_of_everything_that_writes(commands, name):
    hits = [check(commands, name, fault) for fault in FAULTS.values()]
    assert sum(map(bool, hits)) >= (5 if name in WRITERS else 2)
