"""Whether a saved state goes on in a dataset that was changed: what came before is the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from energize.outline import Outline, same_inputs, settings_differences, tree_differences


def differences_until(
    dataset: Any, items: int, saved: Outline, current: Outline, later: list[str]
) -> Iterator[str]:
    """The differences of two outlines of an indexed `dataset`, the current one and that of a state
    saved after `items` items, a line each; those that only matter after it are told in `later`.

    Nodes are visited as long as they tell how far in each input they have `reached`. Each says
    which of its settings may be others from there on (`settings_until`).
    """
    node = dataset
    while node.passes_on:
        node = node.inputs[0]
    taken = node.reached(items)
    if taken is None or not same_inputs(saved, current):
        yield from tree_differences(saved, current)
        return
    before, lines = node.settings_until(items, saved, later)
    yield from settings_differences(before, current)
    yield from lines
    inputs = zip(node.inputs, saved["inputs"], current["inputs"], taken, strict=True)
    for each, one, other, given in inputs:
        yield from differences_until(each, given, one, other, later)
