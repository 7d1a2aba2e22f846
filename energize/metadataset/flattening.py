"""A tree of blends as one list of leaves, with the shares that are asked for them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from energize.errors import ConfigError, WeightError
from energize.metadataset.leaves import ordered_source, place_noted
from energize.metadataset.mixing import UNWEIGHTED
from energize.metadataset.resolving import Blend, Leaf, Node, Staged
from energize.order.epochs.quotas import Quota, epoch_counts
from energize.order.schedules.schedule import Schedule
from energize.order.shares import limited, tempered
from energize.order.weights import checked_weight

__all__ = ["leaves_of", "leaves_with_weights", "parts_with_shares", "written_weights"]

T_node = TypeVar("T_node", bound=Node)

_log = logging.getLogger("energize")


def leaves_with_weights(node: Node | Staged, step: int = 0) -> list[tuple[Leaf, Fraction]]:
    """The leaves below `node` with the shares asked for them, in the order written.

    Shares are exact and sum to 1. Weights are normalised in each blend and multiplied on the way
    down; a float stands for the decimal it prints as. Leaves of one folder with equal settings
    become one with the summed share, whose `place` names all of them; the merge is logged. A leaf
    of share 0 is kept.

    Weights that change are taken at `step`, after temperature and limits; stop rules are not looked
    at. Quotas give the shares of an epoch; for others than proportions the sizes of the folders are
    read from their indexes.

    Raises `WeightError` for a `Blend` made by hand with weights that a file could not have;
    `ConfigError` for a blend without a size in one by quotas, and for stages, each of which has
    shares of its own.

    >>> from pathlib import Path
    >>> a, b = Leaf(Path("/data/a"), "train"), Leaf(Path("/data/b"), "train")
    >>> inner = Blend(((a, 1.0), (b, 3.0)))
    >>> for leaf, share in leaves_with_weights(Blend(((inner, 0.5), (a, 0.5)))):
    ...     print(leaf.path.name, share)
    a 5/8
    b 3/8
    """
    if isinstance(node, Staged):
        raise ConfigError(
            f"{node.place}: each stage has shares of its own; ask for those of one, which is "
            "plan.at(step).dataset of this node"
        )
    return _merged(_leaf_shares(node, step))


def leaves_of(node: Node) -> list[Leaf]:
    """The leaves below `node`, whatever their weights; of equal ones the first."""
    if isinstance(node, Leaf):
        return [node]
    leaves = [leaf for child, _ in node.children for leaf in leaves_of(child)]
    return list({_identity(leaf): leaf for leaf in reversed(leaves)}.values())[::-1]


def parts_with_shares(node: Node) -> list[tuple[Node, Fraction]]:
    """What is below the plain blends at the top of `node`, with shares as `leaves_with_weights`
    has them: leaves, and blends that are not plain.
    """
    return _merged(_opened(node))


def asked_shares(node: Blend, step: int = 0) -> list[Fraction]:
    """The shares asked for the children of a blend at a step: exact, summing to 1."""
    if node.mixing.quotas is not None:
        return _normalised(_quota_weights(node, node.mixing.quotas))
    numbers = [
        weight.value(step) if isinstance(weight, Schedule) else checked_weight(weight, node.place)
        for _, weight in node.children
    ]
    if not any(numbers):
        when = "" if node.plain else f" at step {step}"
        raise WeightError(f"{node.place}: all weights are 0{when}, so nothing could ever be drawn")
    mixing = node.mixing
    with place_noted(node.place):
        if mixing.temperature != 1:
            numbers = tempered(numbers, mixing.temperature)
        if mixing.min_share or mixing.max_share:
            numbers = limited(numbers, mixing.min_share, mixing.max_share)
    if mixing.scheme in UNWEIGHTED:
        numbers = [1.0 if number else 0.0 for number in numbers]
    return _normalised([Fraction(repr(number)) for number in numbers])


def written_weights(node: Blend) -> list[str]:
    """How each child of a blend takes part, as it is written: "0.5", "0.2 to 0.8", "repeat 2"."""
    if node.mixing.quotas is not None:
        return [
            "all" if quota.kind is None else f"{quota.kind} {getattr(quota, quota.kind):.12g}"
            for quota in node.mixing.quotas
        ]
    return [
        f"{weight.points[0][1]:.12g} to {weight.points[-1][1]:.12g}"
        if isinstance(weight, Schedule)
        else f"{weight:.12g}"
        for _, weight in node.children
    ]


def _opened(node: Node, share: Fraction = Fraction(1)) -> Iterator[tuple[Node, Fraction]]:
    if isinstance(node, Leaf) or not node.plain:
        yield node, share
        return
    for (child, _), part in zip(node.children, asked_shares(node), strict=True):
        yield from _opened(child, share * part)


def _leaf_shares(
    node: Node, step: int, share: Fraction = Fraction(1)
) -> Iterator[tuple[Leaf, Fraction]]:
    if isinstance(node, Leaf):
        yield node, share
        return
    for (child, _), part in zip(node.children, asked_shares(node, step), strict=True):
        yield from _leaf_shares(child, step, share * part)


def _merged(parts: Iterable[tuple[T_node, Fraction]]) -> list[tuple[T_node, Fraction]]:
    """Equal leaves as one."""
    merged: dict[str | int, tuple[T_node, Fraction]] = {}
    for number, (node, share) in enumerate(parts):
        key = _identity(node) if isinstance(node, Leaf) else number
        if key not in merged or not isinstance(node, Leaf):
            merged[key] = (node, share)
            continue
        first, before = merged[key]
        merged[key] = (replace(first, place=f"{first.place} and {node.place}"), before + share)
        _log.info(
            "%s [%s] stands twice with equal settings, at %s and %s; its shares add up to %s",
            *(node.path, node.split_part, first.place, node.place, float(before + share)),
        )
    return list(merged.values())


def _quota_weights(node: Blend, quotas: Sequence[Quota]) -> list[Fraction]:
    """What each child gives to an epoch; as proportions, where that needs no sizes."""
    if all(quota.proportion is not None for quota in quotas):
        weights = [Fraction(repr(quota.proportion)) for quota in quotas]
        if any(weights):
            return weights
    return [Fraction(count) for count in _counts(node, quotas)]


def _counts(node: Blend, quotas: Sequence[Quota]) -> list[int]:
    sizes = [_size(child) for child, _ in node.children]
    with place_noted(node.place):
        counts: list[int] = epoch_counts(sizes, quotas, node.mixing.epoch_size).tolist()
    return counts


def _size(node: Node) -> int:
    """The samples of an epoch."""
    if isinstance(node, Leaf):
        return ordered_source(node, seed=0, shuffle=False).sources[0].count
    if node.mixing.quotas is None:
        raise ConfigError(
            f"{node.place}: how many samples this weighted blend gives to an epoch is not known "
            "from its file, so there are no shares; build the dataset and count with `consumed`, "
            "or give proportions in the blend around it"
        )
    return sum(_counts(node, node.mixing.quotas))


def _normalised(weights: Sequence[Fraction]) -> list[Fraction]:
    total = sum(weights)
    return [weight / total for weight in weights]


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
