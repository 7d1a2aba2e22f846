"""States whose numbers are others, and whose check value was made anew: refused, or another place.

What is accepted may only be another place of a lane, or of a source in it: numbers that a run may
have there. Any number that others contradict is refused, and so is whatever is no such number.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from energize import ConfigError, EmptyDatasetError
from energize.errors import SubstitutionError
from tests.loader.test_trees import trees
from tests.support.datasets import INDEXED, STREAMS
from tests.support.state_mutants import Subject, closed, mutated, opened_up

ALL = {**INDEXED, **{f"{name}, {n} lanes": STREAMS[name] for name in STREAMS for n in (1, 3)}}

OUTCOMES = {"refused", "same", "elsewhere", "other", "StateError", "EmptyDatasetError"}

PLACES = {
    "before", "calls", "called", "costs", "done", "given", "lanes", "made", "owed", "pass",
    "places", "position", "read", "rejected", "round", "slot", "step", "turn",
}  # fmt: skip
"""Numbers of which a run may have others, as far as the rest of a state says (what was read before
is more than the place says, once a mix was edited); and what only an edited mix goes by, which need
not be there."""


@cache
def subject(name: str) -> Subject:
    return Subject(ALL[name], 3 if name.endswith("3 lanes") else 1)


def check_mutant(subject: Subject, seed: int) -> str:
    draw = random.Random(seed)
    state = draw.choice(subject.states)
    was = opened_up(state)
    tree, way, how = mutated(was, draw)
    outcome = subject.outcome(closed(state, tree), state)
    assert outcome in OUTCOMES, (way, how)
    return outcome


@settings(max_examples=200)
@given(name=st.sampled_from(sorted(ALL)), seed=st.integers(0, 2**32))
def test_one_value_changed_anywhere(name, seed):
    check_mutant(subject(name), seed)


@settings(max_examples=25)
@given(tree=trees(), lanes=st.sampled_from([1, 2, 3]), seed=st.integers(0, 2**32))
def test_one_value_changed_in_a_state_of_any_tree(tree, lanes, seed):
    try:
        found = Subject(tree, 1 if tree.indexed else lanes)
        check_mutant(found, seed)
    except (EmptyDatasetError, SubstitutionError, ConfigError):
        assume(False)


@pytest.mark.slow
def test_how_many_are_refused():
    """Nine of ten: what is left are other places."""
    found = Counter(check_mutant(subject(name), seed) for name in ALL for seed in range(100))
    assert found["refused"] > 0.85 * sum(found.values()), found
