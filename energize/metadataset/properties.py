"""Divide folders into blends by the values of a property."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from energize.core.validation import short
from energize.data.selection import OTHERS, Selection, selections
from energize.errors import ColumnError, nearest
from energize.metadataset.leaves import names_of
from energize.metadataset.models import SUBFLAVORS, FolderKeys, PropertyKeys
from energize.metadataset.nodes import Blend, Leaf, Mix, MixNode, Stages
from energize.order.timeline import WEIGHTLESS

Counted: TypeAlias = dict[str, list[tuple[Leaf, int]]]
"""Leaves by the value of a property, each with its number of samples of that value."""


def divided(
    node: MixNode | Stages,
    keys: PropertyKeys,
    options: Mapping[str, Any],
    location: str,
    *,
    existing: bool,
) -> Blend:
    """Return a node as a blend of the samples of each value of a property.

    Several folders are mixed in proportion to their numbers of samples of the value.
    Which values there are is looked up in `.nv-meta`; unless folders are `existing`,
    only values with weights are known.

    Args:
        node: A folder, or a blend of folders.
        keys: The property, its weights, and `other`.
        options: Fields of the blend.
        location: Where the property is named.
        existing: Whether the folders have to exist.

    Raises:
        ColumnError: If the samples do not have the property, or are mixed already.
    """
    by = str(keys.by)
    leaves = _leaves_of(node, keys, by)
    if by.startswith(SUBFLAVORS):
        parts = _by_subflavor(leaves, by.removeprefix(SUBFLAVORS), keys)
    elif existing:
        parts = _by_value(leaves, by, keys)
    else:
        parts = _by_weight(leaves, by, keys)
    weights = {
        Selection(by, value).name: weight
        for value, weight in (keys.weights or {}).items()
    }
    inner = _inner_options(options)
    data_keys = [leaf.key for leaf in leaves]
    names = dict(zip(data_keys, names_of(leaves, data_keys), strict=True))
    children: list[MixNode] = []
    for value, counted in parts.items():
        part = _part(counted, names, {"location": location, "by": by, **inner})
        weight = weights.get(value, keys.other)
        children.append(part.model_copy(update={"entry_name": value, "weight": weight}))
    return Blend.model_construct(children=children, location=location, by=by, **options)


def _leaves_of(node: MixNode | Stages, keys: PropertyKeys, by: str) -> list[Leaf]:
    """Return the folders that are divided by a property."""
    nodes: Sequence[Any] = [node]
    if isinstance(node, Mix) and not isinstance(keys, FolderKeys):
        nodes = node.children
    leaves = [leaf for leaf in nodes if isinstance(leaf, Leaf) and leaf.chosen is None]
    if not leaves or len(leaves) < len(nodes):
        raise ColumnError(
            f"the samples of all folders here are weighted by {short(by)}, but they "
            "are already mixed by something else. Set 'by' of the single folders, or "
            "of a blend of folders"
        )
    return leaves


def _inner_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the blends of one value of several folders."""
    inner = {
        name: options[name] for name in ("scheme", "block_size") if name in options
    }
    if inner.get("scheme") in WEIGHTLESS:
        inner.pop("scheme")
    if options.get("stop", "restart") != "restart" or options.get("unit") is not None:
        # The mix has epochs: each sample comes once in one.
        inner["stop"] = "all_exhausted"
    return inner


def _part(
    counted: Sequence[tuple[Leaf, int]],
    names: Mapping[Any, str],
    fields: Mapping[str, Any],
) -> MixNode:
    """Return the samples of one value, in proportion to their numbers."""
    if len(counted) == 1:
        return counted[0][0]
    children = []
    for leaf, count in counted:
        name = names[leaf.key]
        children.append(
            leaf.model_copy(update={"entry_name": name, "weight": float(count)})
        )
    return Blend.model_construct(children=children, **fields)


def _by_weight(leaves: Sequence[Leaf], by: str, keys: PropertyKeys) -> Counted:
    """Return the samples of each value with a weight, without looking at folders."""
    parts: Counted = {}
    for value in keys.weights or {}:
        chosen = Selection(by, value)
        parts[chosen.name] = [
            (leaf.model_copy(update={"chosen": chosen}), 1) for leaf in leaves
        ]
    return parts


def _by_value(leaves: Sequence[Leaf], by: str, keys: PropertyKeys) -> Counted:
    """Return the samples of each value of a column."""
    sources = [leaf.source() for leaf in leaves]
    values = list(keys.weights or {})
    try:
        chosen = selections(sources, by, values, other=keys.other is not None)
    except ColumnError as reason:
        labelled = any(by in leaf.labels for leaf in leaves)
        hint = f". Or do you mean by: {SUBFLAVORS}{by}?" if labelled else ""
        raise ColumnError(f"{reason}{hint}") from None
    parts: Counted = {}
    for selection in chosen:
        parts[selection.name] = []
        for leaf, source in zip(leaves, sources, strict=True):
            count = len(selection.rows(source.column(by)))
            if count:
                parts[selection.name].append(
                    (leaf.model_copy(update={"chosen": selection}), count)
                )
    return parts


def _by_subflavor(leaves: Sequence[Leaf], name: str, keys: PropertyKeys) -> Counted:
    """Return whole folders by the value of a subflavor."""
    parts: Counted = {Selection(name, value).name: [] for value in keys.weights or {}}
    if keys.other is not None:
        parts[OTHERS] = []
    for leaf in leaves:
        value = _subflavor(leaf, name, list(parts))
        parts[value].append((leaf, leaf.source().count))
    for value, counted in parts.items():
        if not counted and value != OTHERS:
            raise ColumnError(
                f"no folder has {short(value)} as the subflavor {short(name)}"
            )
    return {value: counted for value, counted in parts.items() if counted}


def _subflavor(leaf: Leaf, name: str, values: Sequence[str]) -> str:
    """Return the value of a folder's subflavor, which is one of `values`."""
    labels = leaf.labels
    value = Selection(name, labels[name]).name if name in labels else OTHERS
    if value in values:
        return value
    if OTHERS in values:
        return OTHERS
    actual = short(value) if name in labels else "none" + nearest(name, list(labels))
    raise ColumnError(
        f"{leaf.path} has {actual} as the subflavor {short(name)}, but the weights "
        f"are for {', '.join(values)}. Set its weight, or `other` for all values "
        "without a weight"
    )
