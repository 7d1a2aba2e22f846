"""A tree of blends as one list of weighted leaves."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from energize.errors import WeightError
from energize.metadataset.resolving import Leaf, Node
from energize.order.weights import checked_weight

__all__ = ["leaves_with_weights"]

_log = logging.getLogger("energize")


def leaves_with_weights(node: Node) -> list[tuple[Leaf, Fraction]]:
    """The leaves below `node` with their shares, exact and summing to 1, in the order written.

    Weights are normalised in each blend and multiplied on the way down; a float stands for the
    decimal it prints as. Leaves of one folder with equal settings become one with the summed
    share, whose `place` names all of them; the merge is logged. A leaf of share 0 is kept.
    Raises `WeightError` for a `Blend` made by hand with weights that a file could not have.

    >>> from pathlib import Path
    >>> from energize.metadataset.resolving import Blend
    >>> a, b = Leaf(Path("/data/a"), "train"), Leaf(Path("/data/b"), "train")
    >>> inner = Blend(((a, 1.0), (b, 3.0)))
    >>> for leaf, share in leaves_with_weights(Blend(((inner, 0.5), (a, 0.5)))):
    ...     print(leaf.path.name, share)
    a 5/8
    b 3/8
    """
    merged: dict[str, tuple[Leaf, Fraction]] = {}
    for leaf, share in _shares(node, Fraction(1)):
        key = _identity(leaf)
        if key not in merged:
            merged[key] = (leaf, share)
            continue
        first, before = merged[key]
        merged[key] = (replace(first, place=f"{first.place} and {leaf.place}"), before + share)
        _log.info(
            "%s [%s] stands twice with equal settings, at %s and %s; its shares add up to %s",
            *(first.path, first.split_part, first.place, leaf.place, float(before + share)),
        )
    return list(merged.values())


def _shares(node: Node, share: Fraction) -> Iterator[tuple[Leaf, Fraction]]:
    if isinstance(node, Leaf):
        yield node, share
        return
    exact = [Fraction(repr(checked_weight(weight, node.place))) for _, weight in node.children]
    total = sum(exact)
    if not total:
        raise WeightError(f"{node.place}: all weights are 0, so nothing could ever be drawn")
    for (child, _), weight in zip(node.children, exact, strict=True):
        yield from _shares(child, share * weight / total)


def _identity(leaf: Leaf) -> str:
    """Equal for leaves that read the same samples with the same settings."""
    settings = (
        str(leaf.path.resolve()),
        leaf.split_part,
        dict(leaf.subflavors),
        leaf.dataset_config,
        leaf.split_config,
        leaf.shuffle_over_epochs_multiplier,
    )
    return json.dumps(settings, sort_keys=True)
