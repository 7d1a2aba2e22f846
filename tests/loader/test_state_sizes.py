"""How large a state is, and how long it takes, for mixes of many sources."""

from __future__ import annotations

import json
import random
import time

import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    FilterDataset,
    ListSource,
    Schedule,
    ShuffleDataset,
    Stage,
    StagedDataset,
    StagePlan,
    StateMismatchError,
)
from energize.core.config import packed, unpacked
from tests.support.loading import loader_of, prints, take
from tests.support.states import resealed

FOLDERS, MANY = 200, 10_000
SMALL, LARGE = 10 * 1024, 64 * 1024
"""Characters of the states of mixes of so many sources, at most."""


def folder(number, name="/data/train/shard-folder-{:06d}", changed=0):
    """A shuffled source; no two neighbours are of the same settings."""
    samples = ListSource(range(50 + number % 7 + changed), name=name.format(number))
    buffered = {"shuffle_buffer_size": 16} if number % 2 else {}
    return ShuffleDataset(samples.reseeded(number % 3), **buffered)


def weight(number):
    return 1 + number * 0.37 % 5


def blend(count, **options):
    return BlendDataset([(folder(each), weight(each)) for each in range(count)], **options)


def kept(item):
    return item % 3 > 0


def filtered(count):
    parts = [(FilterDataset(folder(each), kept), weight(each)) for each in range(count)]
    return BlendDataset(parts)


def staged(count):
    weights = [random.Random(stage).random() for stage in range(5)]
    stages = [
        Stage(f"stage-{stage}", 1000 * stage, dataset=BlendDataset(
            [(folder(each), weight(each) ** weights[stage]) for each in range(count)]
        ))
        for stage in range(5)
    ]  # fmt: skip
    return StagedDataset(StagePlan(stages, 5000))


def scheduled(count):
    glide = [
        Schedule([(0, weight(each)), (900 + each, each + 1)], "linear") for each in range(count)
    ]
    return BlendDataset([(folder(each), glide[each]) for each in range(count)], scheme="random")


def nested(width, depth, number=0):
    """A mix of mixes of mixes, each of a few: what no node of which is wide."""
    if not depth:
        return folder(number)
    return ConcatDataset(*(nested(width, depth - 1, number * width + n) for n in range(width)))


MIXES = {
    "blend": lambda: blend(FOLDERS),
    "tempered": lambda: blend(FOLDERS, temperature=0.7),
    "ends": lambda: blend(FOLDERS, stop="all_exhausted", max_epochs=[1, 2] * 100),
    "batches": lambda: BatchDataset(blend(FOLDERS), 8, list),
    "scheduled": lambda: scheduled(FOLDERS),
    "stages": lambda: staged(FOLDERS),
    "concat": lambda: ConcatDataset(*map(folder, range(FOLDERS))),
    "nested": lambda: nested(6, 3),
}  # fmt: skip


def length(loader):
    return len(json.dumps(loader.state_dict()))


def seconds(function):
    """The best of a few, for other processes take their time too."""
    found = []
    for _ in range(5):
        began = time.perf_counter()
        function()
        found.append(time.perf_counter() - began)
    return min(found)


@pytest.mark.parametrize("name", MIXES)
def test_of_200_folders(name):
    loader = loader_of(MIXES[name]())
    assert length(loader) <= SMALL
    take(loader, 3)
    assert length(loader) <= SMALL


@pytest.fixture(scope="module")
def many():
    return {
        "blend": blend(MANY),
        "nested": nested(10, 4),
        "changed": BlendDataset([(folder(n, changed=n == 7777), weight(n)) for n in range(MANY)]),
    }


@pytest.mark.parametrize("name", ["blend", "nested"])
def test_of_10_000_sources(many, name):
    loader = loader_of(many[name])
    assert length(loader) <= LARGE
    assert seconds(loader.state_dict) < 0.02
    state = json.loads(json.dumps(loader.state_dict()))
    other = loader_of(many[name])
    other.load_state_dict(state)
    assert seconds(lambda: other.load_state_dict(state)) < 0.25
    take(loader, 5)
    other.load_state_dict(loader.state_dict())
    assert prints(take(other, 3)) == prints(take(loader, 3))


def test_one_different_source_of_10_000_is_named(many):
    state = loader_of(many["blend"]).state_dict()
    with pytest.raises(StateMismatchError, match="'/data/train/shard-folder-007777': its weight"):
        loader_of(many["changed"]).load_state_dict(state)


def advanced(tree, draw):
    """A state of a stream as it is far out: its passes are any numbers below a million."""
    if isinstance(tree, dict):
        return {
            name: draw.randrange(10**6) if name == "pass" else advanced(value, draw)
            for name, value in tree.items()
        }
    return [advanced(each, draw) for each in tree] if isinstance(tree, list) else tree


@pytest.mark.parametrize("lanes", [1, 8])
def test_of_200_streams(lanes):
    """Each lane has a place in each stream, so that the size goes with both: a few characters for
    each of them, beside what any mix takes.
    """
    loader = loader_of(filtered(FOLDERS), lanes=lanes)
    take(loader, 400)
    state = loader.state_dict()
    assert len(json.dumps(state)) <= SMALL
    cursor = unpacked(state["cursor"], "cursor")
    cursors = advanced(unpacked(cursor["cursors"], "cursors"), random.Random(2))
    far = resealed(
        state,
        cursor=packed(
            {name: value for name, value in cursor.items() if name not in ("places", "slot")}
            | {"cursors": packed(cursors)}
        ),
    )
    assert len(json.dumps(far)) <= SMALL + 12 * FOLDERS * lanes
    other = loader_of(filtered(FOLDERS), lanes=lanes)
    assert seconds(lambda: other.load_state_dict(far)) < 0.5
    assert seconds(other.state_dict) < 0.2
    other.load_state_dict(state)
    assert prints(take(other, 9)) == prints(take(loader, 9))
