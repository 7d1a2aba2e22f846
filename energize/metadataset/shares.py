"""The shares that a tree of blends asks for its leaves."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple, cast

from energize.errors import ConfigError, WeightError
from energize.metadataset.leaves import source_of
from energize.metadataset.nodes import Blend, JoinedLeaf, Leaf, Node, Staged
from energize.metadataset.problems import place_noted
from energize.order import Schedule
from energize.order.quota import Quota, epoch_counts
from energize.order.schedule import checked_weight
from energize.order.timeline import WEIGHTLESS
from energize.order.weights import limited, tempered

_log = logging.getLogger("energize")


class PlainPart(NamedTuple):
    """A part of a blend, its share of what is drawn and, where target weights are given, its share
    of what counts in the loss.
    """

    node: Node
    share: Fraction
    target: Fraction | None = None

    @property
    def asked(self) -> Fraction:
        """Its share of what counts."""
        return self.share if self.target is None else self.target


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
    merged = _merged(_parts(node, lambda _: True, step))
    return [(cast("Leaf", part.node), part.share) for part in merged]


def leaves_of(node: Node) -> list[Leaf]:
    """The leaves below `node`, whatever their weights; of equal ones the first."""
    if isinstance(node, Leaf):
        return [node]
    leaves = [leaf for child, _ in node.children for leaf in leaves_of(child)]
    return list({_identity(leaf): leaf for leaf in reversed(leaves)}.values())[::-1]


def plain_parts(node: Blend) -> list[PlainPart]:
    """What plain blends in each other blend, with shares as `leaves_with_weights` has them."""
    parts = list(_parts(node, lambda blend: blend.plain))
    targeted = any(part.target is not None for part in parts)
    return _merged([each._replace(target=each.asked) if targeted else each for each in parts])


def asked_shares(node: Blend, step: int = 0) -> list[Fraction]:
    """The shares asked for the children of a blend at a step: exact, summing to 1."""
    if node.quotas is not None:
        return _normalised(_quota_weights(node, node.quotas))
    for _, weight in node.children:
        if not isinstance(weight, Schedule):
            checked_weight(weight, node.place)
    numbers: Sequence[Any] = [
        w.value(step) if isinstance(w, Schedule) else w for _, w in node.children
    ]
    if not any(numbers):
        when = "" if node.plain else f" at step {step}"
        raise WeightError(f"{node.place}: all weights are 0{when}, so nothing could ever be drawn")
    options = node.options
    with place_noted(node.place):
        if "temperature" in options:
            numbers = tempered(numbers, options["temperature"])
        if "min_share" in options or "max_share" in options:
            numbers = limited(numbers, options.get("min_share"), options.get("max_share"))
    if options.get("scheme") in WEIGHTLESS:
        numbers = [1 if number else 0 for number in numbers]
    return _normalised([Fraction(str(number)) for number in numbers])


def _parts(
    node: Node, opened: Callable[[Blend], bool], step: int = 0, above: PlainPart | None = None
) -> Iterator[PlainPart]:
    """What is below the blends at the top of `node` that are `opened`."""
    around = above or PlainPart(node, Fraction(1))
    if isinstance(node, Leaf) or not opened(node):
        yield around._replace(node=node)
        return
    shares = asked_shares(node, step)
    targets = _normalised([Fraction(str(t)) for t in node.targets]) if node.targets else shares
    targeted = node.targets is not None or around.target is not None
    for (child, _), share, target in zip(node.children, shares, targets, strict=True):
        asked = around.asked * target if targeted else None
        yield from _parts(child, opened, step, PlainPart(child, around.share * share, asked))


def _merged(parts: Iterable[PlainPart]) -> list[PlainPart]:
    """Equal leaves as one."""
    merged: dict[str | int, PlainPart] = {}
    for number, part in enumerate(parts):
        node, share = part.node, part.share
        key = _identity(node) if isinstance(node, Leaf) else number
        if key not in merged:
            merged[key] = part
            continue
        before = merged[key]
        first = cast("Leaf", before.node)
        merged[key] = PlainPart(
            replace(first, place=f"{first.place} and {node.place}"),
            before.share + share,
            None if part.target is None else before.asked + part.target,
        )
        _log.info(
            "%s [%s] stands twice with equal settings, at %s and %s; its shares add up to %s",
            *(first.path, first.split_part, first.place, node.place, float(before.share + share)),
        )
    return list(merged.values())


def _quota_weights(node: Blend, quotas: Sequence[Quota]) -> list[Fraction]:
    """What each child gives to an epoch; as proportions, where that needs no sizes."""
    if all(quota.proportion is not None for quota in quotas):
        weights = [Fraction(str(quota.proportion)) for quota in quotas]
        if any(weights):
            return weights
    return [Fraction(count) for count in _counts(node, quotas)]


def _counts(node: Blend, quotas: Sequence[Quota]) -> list[int]:
    sizes = [_size(child) for child, _ in node.children]
    with place_noted(node.place):
        counts: list[int] = epoch_counts(sizes, quotas, node.options.get("epoch_size")).tolist()
    return counts


def _size(node: Node) -> int:
    """The samples of an epoch."""
    if isinstance(node, Leaf):
        return source_of(node).count
    if node.quotas is None:
        raise ConfigError(
            f"{node.place}: how many samples this weighted blend gives to an epoch is not known "
            "from its file, so there are no shares; build the dataset and count with `consumed`, "
            "or give proportions in the blend around it"
        )
    return sum(_counts(node, node.quotas))


def _normalised(weights: Sequence[Fraction]) -> list[Fraction]:
    total = sum(weights)
    return [weight / total for weight in weights]


def _identity(leaf: Leaf) -> str:
    """Equal for leaves that read the same samples with the same settings."""
    return json.dumps(_settings(leaf), sort_keys=True)


def _settings(leaf: Leaf) -> list[Any]:
    settings: list[Any] = [
        str(leaf.path.resolve()),
        leaf.split_part,
        dict(leaf.subflavors),
        leaf.dataset_config,
        leaf.split_config,
        leaf.shuffle_over_epochs_multiplier,
        dict(leaf.aux),
        repr(leaf.subset),
        leaf.sample_weight,
        repr(leaf.chosen),
    ]
    if isinstance(leaf, JoinedLeaf):
        parts = [[_settings(each.leaf), each.nonmatch, each.name] for each in leaf.parts]
        settings += [parts, repr(leaf.joiner)]
    return settings
