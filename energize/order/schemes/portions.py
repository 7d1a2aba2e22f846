"""Things of several kinds, shared out at random: pure functions of a key."""

from __future__ import annotations

import numpy as np

from energize.arrays import Int64Array
from energize.order.schemes.coins import heads
from energize.order.schemes.variates import binomial
from energize.rng import derive, words

__all__ = ["multinomial", "without_replacement"]


_PICKED_AT_ONCE = 2**12

_NODE_BITS = 24
"""There are fewer nodes than 2**24 in a tree."""


def multinomial(key: int, draws: Int64Array, weights: Int64Array) -> Int64Array:
    """How many of `draws` (runs), each up to 2**40, are of each kind (runs, kinds), when a draw of
    a run is of a kind with the probability of its weight there: binomial splits down a binary tree
    over the kinds.

    `weights` (runs, kinds) are 0 or more, not all 0 in a run, and sum to less than 2**53 in each.
    """
    counts = draws[:, np.newaxis]
    for level in _tree(weights):
        runs, nodes = counts.shape
        numbers = np.arange(nodes, 2 * nodes) + (np.arange(runs) << _NODE_BITS)[:, np.newaxis]
        yes, no = level[:, 0::2], level[:, 1::2]
        left = binomial(key, *(each.reshape(-1) for each in (numbers, counts, yes, no))).reshape(
            counts.shape
        )
        counts = np.stack([left, counts - left], axis=2).reshape(runs, -1)
    return counts[:, : weights.shape[1]]


def without_replacement(key: int, counts: Int64Array, taken: int) -> Int64Array:
    """How many of each kind are among `taken` things, drawn at random without putting them back
    from `counts` of each kind.

    Each thing is taken or left by a coin of its own. If that takes too many, some of them, chosen
    at random, are put back; if too few, some of those left are taken. All sets of `taken` things
    are as likely before as after that, so the result is drawn from the multivariate hypergeometric
    law; and those to be changed are few, about the square root of all.

    >>> without_replacement(1, np.array([5, 0, 10**9]), 5 * 10**8).tolist()
    [1, 0, 499999999]
    """
    total = int(counts.sum())
    fewer = min(taken, total - taken)
    if fewer <= max(_PICKED_AT_ONCE, len(counts)):
        picked = _picked(key, counts, fewer)
        return picked if fewer == taken else counts - picked
    if 2 * taken == total:
        found = heads(key, counts)
    else:
        yes, no = np.full_like(counts, taken), np.full_like(counts, total - taken)
        found = binomial(key, np.arange(len(counts)), counts, yes, no)
    missing = taken - int(found.sum())
    if missing < 0:
        return found - without_replacement(derive(key, "back"), found, -missing)
    return found + without_replacement(derive(key, "more"), counts - found, missing)


def _picked(key: int, counts: Int64Array, number: int) -> Int64Array:
    """The kinds of `number` things: numbers of things are drawn until so many different came."""
    ends = np.cumsum(counts)
    total = int(ends[-1])
    highest = np.uint64((1 << 64) // total * total - 1)
    things, at = np.empty(0, dtype=np.int64), 0
    while len(things) < number:
        random = words(key, at, number - len(things))
        drawn = (random[random <= highest] % np.uint64(total)).astype(np.int64)
        things = np.unique(np.concatenate([things, drawn]))
        at += 1
    return np.bincount(np.searchsorted(ends, things, side="right"), minlength=len(counts))


def _tree(leaves: Int64Array) -> list[Int64Array]:
    """The levels below the root of binary trees in which a node is the sum of its children; one
    tree a row.
    """
    depth = (leaves.shape[1] - 1).bit_length()
    level = np.zeros((len(leaves), 1 << depth), dtype=np.int64)
    level[:, : leaves.shape[1]] = leaves
    levels = []
    for _ in range(depth):
        levels.append(level)
        level = level[:, 0::2] + level[:, 1::2]
    return levels[::-1]
