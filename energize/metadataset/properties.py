"""From `by: quality` at a node to a blend of what its folders have of each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from energize.data.selection import OTHERS, Selection, selections
from energize.errors import ColumnError, EnergizeError, nearest
from energize.metadataset.keys import Spec
from energize.metadataset.leaves import source_of
from energize.metadataset.nodes import Blend, Leaf, Node
from energize.metadataset.plans import FaultyError
from energize.metadataset.problems import Problem, shown
from energize.metadataset.property_keys import SUBFLAVORS
from energize.metadataset.tables import ScheduleTable
from energize.order.timeline import WEIGHTLESS

_OPTIONS = ("scheme", "block_size")

Parts = Sequence[tuple[Leaf, int]]
"""Leaves, each with how many samples it has."""


def divided(
    node: Node, spec: Spec, options: Mapping[str, Any], place: str, *, existing: bool
) -> Blend:
    """What `node` reads as a blend of the samples of each value of the property `spec.by`, at
    `place`, mixed by the `options` of the blend; of several folders in proportion to how many
    samples they have of the value.

    Which values there are is looked up in `.nv-meta`; unless the folders are `existing`, the values
    that have weights are all that is known. Raises `FaultyError`.
    """
    leaves = _leaves(node, spec, place)
    try:
        parts = _by_value(leaves, spec, existing=existing)
    except EnergizeError as reason:
        raise FaultyError(Problem(place, str(reason))) from None
    inside = _inside(options)
    children = tuple(
        (_together(found, inside, place), _weight(spec, name)) for name, found in parts.items()
    )
    return Blend(children, place, options)


def _leaves(node: Node, spec: Spec, place: str) -> list[Leaf]:
    """The folders whose samples are weighed; nothing else may weigh them."""
    if isinstance(node, Leaf):
        return [node]
    if spec.kind == "path":
        text = (
            f"'by' weighs the samples of folders, and {shown(spec.path)} is a metadataset, "
            "which mixes them already; give 'by' to the blend in that file, or list its folders "
            "here"
        )
        raise FaultyError(Problem(place, text))
    leaves = [child for child, _ in node.children if isinstance(child, Leaf)]
    if len(leaves) < len(node.children) or any(leaf.chosen for leaf in leaves):
        text = (
            f"the samples of all folders here are weighed by {shown(spec.by)}, and they are mixed "
            "by something else already; give 'by' to the single folders, or to a blend of folders "
            "without weights"
        )
        raise FaultyError(Problem(place, text))
    return leaves


def _by_value(leaves: Sequence[Leaf], spec: Spec, *, existing: bool) -> dict[str, Parts]:
    by, weights = str(spec.by), spec.weights or {}
    if by.startswith(SUBFLAVORS):
        return _by_subflavor(leaves, by.removeprefix(SUBFLAVORS), spec)
    if not existing:
        named = [Selection(by, value) for value in weights]
        return {each.name: [(replace(leaf, chosen=each), 1) for leaf in leaves] for each in named}
    sources = [source_of(leaf) for leaf in leaves]
    try:
        named = selections(sources, by, list(weights), other=spec.other is not None)
    except ColumnError as reason:
        labelled = [leaf for leaf in leaves if by in _subflavors(leaf)]
        hint = f". Or do you mean by: {SUBFLAVORS}{by}?" if labelled else ""
        raise ColumnError(f"{reason}{hint}") from None
    parts: dict[str, Parts] = {}
    for selection in named:
        counts = [len(selection.rows(source.column(by))) for source in sources]
        pairs = zip(leaves, counts, strict=True)
        parts[selection.name] = [(replace(leaf, chosen=selection), n) for leaf, n in pairs if n]
    return parts


def _by_subflavor(leaves: Sequence[Leaf], name: str, spec: Spec) -> dict[str, Parts]:
    """Whole folders by a label that they have."""
    parts: dict[str, list[tuple[Leaf, int]]] = {
        Selection(name, value).name: [] for value in spec.weights or {}
    }
    if spec.other is not None:
        parts[OTHERS] = []
    for leaf in leaves:
        labels = _subflavors(leaf)
        value = Selection(name, labels[name]).name if name in labels else None
        counted = leaf, source_of(leaf).count
        if value is not None and value in parts:
            parts[value].append(counted)
        elif spec.other is not None:
            parts[OTHERS].append(counted)
        else:
            has = (
                f"has {shown(value)}"
                if value is not None
                else f"has none{nearest(name, list(labels))}"
            )
            raise ColumnError(
                f"{leaf.path} {has} as the subflavor {shown(name)}, and weights are given for "
                f"{', '.join(parts)}; give it one, or `other` for all that have none"
            )
    for value, found in parts.items():
        if not found and value != OTHERS:
            raise ColumnError(f"no folder has {shown(value)} as the subflavor {shown(name)}")
    return {value: found for value, found in parts.items() if found}


def _subflavors(leaf: Leaf) -> dict[str, Any]:
    return {**leaf.config.subflavors, **leaf.subflavors}


def _together(parts: Parts, options: Mapping[str, Any], place: str) -> Node:
    if len(parts) == 1:
        return parts[0][0]
    return Blend(tuple((leaf, float(count)) for leaf, count in parts), place, options)


def _inside(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a mix of the folders of one value. Where the whole mix ends, or counts
    something else than samples, it has epochs, in which each of their samples is read once.
    """
    inside = {name: options[name] for name in _OPTIONS if name in options}
    if inside.get("scheme") in WEIGHTLESS:
        inside.pop("scheme")
    if options.get("stop", "restart") != "restart" or options.get("unit") is not None:
        inside["stop"] = "all_exhausted"
    return inside


def _weight(spec: Spec, name: str) -> Any:
    named = {
        Selection(str(spec.by), value).name: each for value, each in (spec.weights or {}).items()
    }
    weight = named.get(name, spec.other)
    return weight.schedule() if isinstance(weight, ScheduleTable) else weight
