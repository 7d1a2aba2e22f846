"""Every hostile input is an error of energize, at once, in little memory and in few plain words."""

from __future__ import annotations

import pytest

from tests.hostile.every import CASES, outcome_of
from tests.support.prepared import captions

LISTS = ("The first 100 errors in ", "first shard")
"""What a message may begin with that tells of many faults."""

SECONDS = 10
"""Of CPU: what would go on and on is told from what takes one."""


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
    assert all(letter.isprintable() or letter == "\n" for letter in found.message), found
