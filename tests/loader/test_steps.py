"""The lanes that ranks read, and the arithmetic of epochs in steps."""

import pytest

from energize.core.lanes import Ranks
from energize.loader.epochs import plan_epoch
from energize.loader.steps import HostedLanes


@pytest.mark.parametrize("lanes", [1, 2, 6, 8])
@pytest.mark.parametrize("world_size", [1, 2, 4, 6])
@pytest.mark.parametrize("start", [0, 5])
def test_the_lanes_of_all_ranks_are_all_lanes(lanes, world_size, start):
    hosted = [
        HostedLanes(lanes, Ranks(rank, world_size), start, reads_all=False)
        for rank in range(world_size)
    ]
    assert {lane for each in hosted for lane in each.lanes} == set(range(lanes))
    for rank, each in enumerate(hosted):
        assert rank in each.read_ranks
        turns = range(start, start + 4 * lanes * world_size, world_size)
        own = {(turn + rank) % lanes for turn in turns}
        assert own == set(each.lanes_of(rank))
        assert own <= set(each.lanes)


def test_ranks_that_read_all_lanes_read_the_items_of_all_ranks():
    hosted = HostedLanes(4, Ranks(1, 2), 0, reads_all=True)
    assert hosted.lanes == [0, 1, 2, 3]
    assert list(hosted.read_ranks) == [0, 1]


@pytest.mark.parametrize(
    ("uneven", "steps"),
    [
        ("pad", [4, 4, 4]),
        ("repeat", [4, 4, 4]),
        ("drop", [3] * 3),
        ("allow", [4, 3, 3]),
    ],
)
def test_the_last_step_of_an_epoch_goes_by_uneven(uneven, steps):
    planned = [
        plan_epoch(Ranks(rank, 3), 0, 10, uneven=uneven, global_items=None).steps
        for rank in range(3)
    ]
    assert planned == steps
