"""Every hostile input is an error of energize, at once, in little memory and in few
plain words."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from tests.hostile import folders, metadatasets, samples
from tests.support.prepared import captions
from tests.support.trying import tried

LISTS = ("The first 100 errors in ", "first shard")
"""What a message may begin with that tells of many faults."""

SECONDS = 10
"""Of CPU: what would go on and on is told from what takes one."""


CASES = metadatasets.CASES | folders.CASES | samples.CASES


def outcome_of(name, whole):
    """What becomes of one input, in a place with the folder D, a copy of `whole`, and
    beside it files that are none.
    """
    with (
        tempfile.TemporaryDirectory() as made,
        socket.socket(socket.AF_UNIX) as listening,
    ):
        place = Path(made).resolve()
        shutil.copytree(whole, place / "D")
        shutil.copytree(whole, place / "other")
        (place / "secret.yaml").write_text(
            f"split_parts: {{train: [{folders.SHARD}]}}\n"
        )
        for name_of in ("pipe.yaml", "pipe.jsonl", "D/pipe.tar"):
            os.mkfifo(place / name_of)
        for name_of in ("loop.yaml", "D/loop.tar"):
            (place / name_of).symlink_to(Path(name_of).name)
        (place / "D" / "zero.tar").symlink_to("/dev/zero")
        listening.bind(str(place / "socket.yaml"))
        action = CASES[name](place)
        return tried(lambda: repr(action())[:200])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return captions(tmp_path_factory.mktemp("hostile") / "whole", 12, shards=3)


@pytest.mark.jobs
@pytest.mark.parametrize("name", sorted(CASES))
def test_hostile_input(name, whole):
    found = outcome_of(name, whole)
    assert found.ours, found
    assert found.error, f"it is read: {found.value}"
    assert found.seconds < SECONDS, found
    assert found.mib < 100, found
    assert len(found.message) < 2000 or found.message.startswith(LISTS), found
    assert all(letter.isprintable() or letter == "\n" for letter in found.message), (
        found
    )
