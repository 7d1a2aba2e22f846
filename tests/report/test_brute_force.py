"""The ledger against a count of every delivered sample, over random trees."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from energize import BatchDataset, BlendDataset, EmptyDatasetError, FilterDataset
from energize.errors import SubstitutionError
from tests.support.deliveries import counted, reported, told, told_trees
from tests.support.loading import loader_of

pytestmark = pytest.mark.usefixtures("gives_up_soon")


def deliver(loaders: list[Any], steps: int) -> list[Any]:
    """So many steps of all ranks, over the ends of epochs; their items without
    padding."""
    found: list[Any] = []
    while steps > 0:
        made = 0
        for loader in loaders:
            for number, item in enumerate(islice(loader, steps)):
                made = max(made, number + 1)
                if not loader.padding:
                    found.append(item)
        steps -= max(made, 1)
    return found


@given(tree=told_trees(), data=st.data())
def test_what_ledgers_count_is_what_was_delivered(tree, data):
    lanes = data.draw(st.sampled_from([1, 2, 4]))
    ranks = data.draw(
        st.sampled_from(
            [1, 2, 4] if tree.indexed else [w for w in (1, 2, 4) if lanes % w == 0]
        )
    )
    uneven = data.draw(st.sampled_from(["pad", "drop", "allow"]))
    loaders = [
        loader_of(tree, rank=rank, ranks=ranks, lanes=lanes, uneven=uneven)
        for rank in range(ranks)
    ]
    try:
        items = deliver(loaders, data.draw(st.integers(0, 30)))
    except (EmptyDatasetError, SubstitutionError):
        assume(False)  # filters and skips that leave nothing
    assert reported(loaders) == counted(items)
    assert reported(loaders, "batches") == pytest.approx(parts_of(items), abs=1e-5)
    reports = [loader.report() for loader in loaders]
    assert sum(each.ranks[0].items for each in reports) == len(items)


@settings(max_examples=15)
@given(tree=told_trees().filter(lambda tree: tree.indexed), data=st.data())
def test_a_resumed_run_reports_all_of_it(tree, data):
    items, state = [], None
    for ranks in data.draw(
        st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3)
    ):
        if ranks > 1 and tree.size <= 10**9:  # nothing is left out of an epoch
            assume(len(tree) % ranks == len(items) % ranks == 0)
        loaders = [
            loader_of(tree, rank=rank, ranks=ranks, uneven="drop")
            for rank in range(ranks)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        try:
            items += deliver(loaders, data.draw(st.integers(0, 9)))
        except (EmptyDatasetError, SubstitutionError):
            assume(False)
        state = json.loads(json.dumps(loaders[0].state_dict()))
    last = loader_of(tree)
    last.load_state_dict(state)
    try:
        items += deliver([last], 5)
    except (EmptyDatasetError, SubstitutionError):
        assume(False)
    assert reported([last]) == counted(items)
    batches, exact = reported([last], "batches"), parts_of(items)
    assert batches.total() == pytest.approx(exact.total(), abs=1e-5)
    if all(len(counted([item])) <= 1 for item in items):
        assert batches == pytest.approx(exact, abs=1e-5)
    for row in last.report().rows:
        if row.shares.planned is not None and row.shares.unit != "cost":
            assert row.shares.planned == pytest.approx(row.shares.delivered)


def parts_of(items: list[Any]) -> Counter[str]:
    """How many items are of each source, those of several by their samples."""
    found: Counter[str] = Counter()
    for each in (counted([item]) for item in items):
        found.update({name: number / each.total() for name, number in each.items()})
    return found


def is_odd(sample):
    return sample[2] % 2 == 1


def test_workers_tell_what_their_items_are_made_of():
    blend = BlendDataset((FilterDataset(told(31, "a"), is_odd), 2), (told(9, "b"), 1))
    for tree in (BatchDataset(blend, 3, list), BatchDataset(told(31, "a"), 4, list)):
        with loader_of(tree, workers=2) as loader:
            items = deliver([loader], 40)
            assert reported([loader]) == counted(items)
            rows = [row.is_source for row in loader.report().rows]
            assert loader.last_sources == [name for name, _ in _names(items[-1])]
            assert any(rows)


def _names(item):
    return [(sample[1], sample[2]) for sample in item]
