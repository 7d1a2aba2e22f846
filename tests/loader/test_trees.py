"""Random trees of datasets, on random lanes and ranks, resumed elsewhere: one stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from energize import ConfigError, EmptyDatasetError
from energize.errors import SubstitutionError
from energize.loader import Loader
from tests.support.loading import loader_of, prints, steps_in_turns, take
from tests.support.trees import build

ITEMS = 40


@st.composite
def trees(draw: Any):
    for _ in range(10):
        try:
            return build(draw, draw(st.integers(0, 2)))
        except (ConfigError, EmptyDatasetError):  # a batch too large for its input, for example
            continue
    assume(False)
    return None


def run_on(loaders: list[Loader[Any]], steps: int) -> list[str]:
    """So many steps of all ranks, over the ends of epochs; their items in turn, without padding."""
    items: list[str] = []
    while steps > 0:
        found, made = steps_in_turns(loaders, steps)
        items += found
        steps -= max(made, 1)  # an epoch may bring nothing to anybody
    return items


def check_one_stream(tree, lanes: int, legs: list[tuple[int, int]], uneven: str) -> None:
    """Resumed after some steps on other numbers of ranks again and again, the ranks' items in turn
    are those of one uninterrupted process, and all ranks have one state.
    """
    whole = prints(take(loader_of(tree, lanes=lanes), ITEMS))
    state, got = None, []
    for ranks, steps in legs:
        loaders = [
            loader_of(tree, rank=rank, ranks=ranks, lanes=lanes, uneven=uneven)
            for rank in range(ranks)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        got += run_on(loaders, steps)
        states = [json.dumps(loader.state_dict()) for loader in loaders]
        assert len(set(states)) == 1, "ranks have different states"
        state = json.loads(states[0])
    assert got[:ITEMS] == whole[: len(got)]


def legs_for(tree, lanes: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    worlds = [1, 2, 3, 5] if tree.indexed else [w for w in (1, 2, 3, 4, 6) if lanes % w == 0]
    leg = st.tuples(st.sampled_from(worlds), st.integers(0, 6))
    return st.lists(leg, min_size=1, max_size=4)


def check(tree, data) -> None:
    lanes = data.draw(st.sampled_from([1, 2, 3, 4, 6]))
    try:
        check_one_stream(tree, lanes, data.draw(legs_for(tree, lanes)), uneven="pad")
    except (EmptyDatasetError, SubstitutionError):
        assume(False)  # filters and skips that leave nothing; that this is an error is tested


@settings(max_examples=100)
@given(tree=trees(), data=st.data())
def test_any_tree_is_one_stream_on_any_ranks(tree, data):
    check(tree, data)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@settings(max_examples=2500)
@given(tree=trees(), data=st.data())
def test_thousands_of_trees(tree, data):
    check(tree, data)
