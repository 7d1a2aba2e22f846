"""The options of a blend: those that it says, and those of the blends around it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from energize.metadataset.keys import Home, Spec
from energize.metadataset.nodes import Leaf, Node
from energize.metadataset.table import Key, keys_of
from energize.order.quota import Quota
from energize.order.timeline import WEIGHTLESS

EPOCHIZED = "blend_epochized"

_INHERITED = ("scheme", "block_size", "stop", "unit")


def options_of(node: Spec, around: Mapping[str, Any]) -> dict[str, Any]:
    """What a blend says beside weights or quotas, as options of `BlendDataset` or `QuotaDataset`;
    `around` is what it has from the blends around it.
    """
    if node.by_quotas:
        return {key.name: getattr(node, key.name) for key in _said(node, Home.QUOTA_BLEND)}
    own = {key.name: getattr(node, key.name) for key in _said(node, Home.WEIGHTED_BLEND)}
    for key in keys_of(Spec):
        values = [getattr(entry, key.name) for entry in node.entries]
        if key.home == Home.WEIGHTED_ENTRY and any(value is not None for value in values):
            own[key.name] = values
    if "scheme" in own or "unit" in node.given:  # what they say together is said anew
        around = {name: value for name, value in around.items() if name == "stop"}
    if "block_size" in own:
        around = {name: value for name, value in around.items() if name != "unit"}
    options = {**around, **own}
    return {"scheme": "block", **options} if "block_size" in options else options


def inherited_options(
    node: Spec, options: Mapping[str, Any], around: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Of the options of a blend, those that hold for the blends inside.

    Not a scheme that knows no weights: it gives each entry the same, also an entry that blends.
    """
    if node.by_quotas:
        return around
    weighted = options.get("scheme") not in WEIGHTLESS
    names = _INHERITED if weighted else ("stop",)
    return {name: options[name] for name in names if name in options}


def flattened(node: Node, weight: Any, quota: Quota) -> list[tuple[Node, Any, Quota]]:
    """An entry of blend_epochized; of another one in it the entries, repetitions multiplied."""
    if isinstance(node, Leaf) or node.kind != EPOCHIZED or node.quotas is None:
        return [(node, weight, quota)]
    return [
        (child, 1, Quota(repeat=float(_passes(quota) * _passes(inner))))
        for (child, _), inner in zip(node.children, node.quotas, strict=True)
    ]


def _passes(quota: Quota) -> Fraction:
    return Fraction(str(1 if quota.repeat is None else quota.repeat))


def _said(node: Spec, home: str) -> list[Key]:
    """The keys of a home that have another value than their default."""
    return [
        key
        for key in keys_of(Spec)
        if key.home == home and getattr(node, key.name) not in (None, key.default)
    ]
