"""The global generators of random, numpy and torch: saved, restored, compared."""

import random

import numpy as np
import pytest
import torch

from energize.core.randomness import GlobalGenerators


@pytest.fixture
def generators():
    own = GlobalGenerators()
    before = own.states()
    yield own
    own.restore(before)


def draws():
    return random.random(), np.random.randn(), np.random.rand(), torch.rand(()).item()


@pytest.mark.parametrize("normals", [0, 1, 2, 3])
def test_what_the_program_draws_next_is_the_same_after_a_restore(generators, normals):
    """After an odd number of normal draws, numpy holds the second value of the last
    pair."""
    generators.seed(7)
    np.random.randn(normals)
    states = generators.states()
    expected = draws()
    generators.seed(8)
    np.random.randn()
    generators.restore(states)
    assert draws() == expected


def test_states_are_taken_anew_after_each_draw(generators):
    generators.seed(7)
    for draw in (np.random.randn, np.random.randn, np.random.rand, random.random):
        draw()
        states = generators.states()
        expected = draws()
        generators.restore(states)
        assert draws() == expected
        generators.restore(states)


def test_any_generator_of_numpy_may_be_the_global_one(generators):
    twister = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        states = generators.states()
        expected = draws()
        generators.restore(states)
        assert draws() == expected
    finally:
        np.random.set_bit_generator(twister)


@pytest.mark.parametrize(
    ("draw", "moves"),
    [
        (random.random, True),
        (np.random.rand, True),
        (np.random.randn, True),
        (lambda: torch.rand(2), True),
        (lambda: random.Random(1).random(), False),
    ],
)
def test_a_draw_is_noticed(generators, draw, moves):
    generators.synchronize()
    draw()
    assert generators.moved() is moves
