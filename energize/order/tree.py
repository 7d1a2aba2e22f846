"""Sources as the leaves of a Huffman tree: the light ones far from the root."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from energize.arrays import FloatArray, Int64Array


@dataclass(frozen=True, slots=True)
class HuffmanTree:
    """Nodes by number: the `leaves` sources first, then inner nodes, each after its children; the
    last is the root. `light` and `heavy` are the children of inner nodes, `part` and `whole` what
    the light child and the node itself weigh. `ends` cut the inner nodes into runs, none of which
    has a node and its child.
    """

    leaves: int
    light: Int64Array
    heavy: Int64Array
    part: Int64Array
    whole: Int64Array
    ends: tuple[int, ...]

    def sums(self, values: FloatArray) -> FloatArray:
        """For each node the sum of its leaves' values."""
        sums = np.concatenate([values, np.zeros(len(self.light))])
        begin = 0
        for end in self.ends:
            below = slice(begin, end)
            sums[self.leaves + begin : self.leaves + end] = (
                sums[self.light[below]] + sums[self.heavy[below]]
            )
            begin = end
        return sums


def huffman_tree(weights: Int64Array) -> HuffmanTree:
    """The tree over sources of positive `weights`, whose sum is below 2**61.

    The two lightest nodes are joined until one is left; all pairs that no new node can come between
    are joined at once. A node's sibling weighs at least as much as each of its own children, so
    weights on the way to the root grow at least like Fibonacci numbers.

    Source: Huffman, "A method for the construction of minimum-redundancy codes", Proc. IRE 40,
    1952; Buro, "On the maximum length of Huffman codes", Inf. Process. Lett. 45, 1993.

    >>> tree = huffman_tree(np.array([5, 1, 3]))
    >>> tree.light.tolist(), tree.heavy.tolist(), tree.whole.tolist()
    ([1, 3], [2, 0], [4, 9])
    """
    nodes = np.argsort(weights, kind="stable")
    weigh = weights[nodes]
    pairs: list[tuple[Int64Array, Int64Array, Int64Array, Int64Array]] = []
    ends = [0]
    while len(nodes) > 1:
        many = int(np.searchsorted(weigh, weigh[0] + weigh[1], side="right"))
        many -= many % 2
        parts, wholes = weigh[:many:2], weigh[:many:2] + weigh[1:many:2]
        pairs.append((nodes[:many:2], nodes[1:many:2], parts, wholes))
        ends.append(ends[-1] + many // 2)
        joined = len(weights) + np.arange(ends[-2], ends[-1])
        nodes, weigh = np.append(nodes[many:], joined), np.append(weigh[many:], wholes)
        order = np.argsort(weigh, kind="stable")
        nodes, weigh = nodes[order], weigh[order]
    empty = np.empty(0, dtype=np.int64)
    light, heavy, part, whole = (
        np.concatenate([empty, *(each[column] for each in pairs)]) for column in range(4)
    )
    return HuffmanTree(len(weights), light, heavy, part, whole, tuple(ends[1:]))
