"""What files and entries give to all that is below them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from energize.data.source import Subset, nested
from energize.metadataset.keys import Spec
from energize.metadataset.nodes import Leaf, Node, Staged


@dataclass(frozen=True, slots=True)
class Inherited:
    """What the files and entries around a node give it; `chain` is the files, with their splits."""

    split_part: str
    options: Mapping[str, Any] = field(default_factory=dict)
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    multiplier: int | None = 1
    subset: Subset | None = None
    sample_weight: float | None = None
    chain: tuple[tuple[Path, str], ...] = ()
    place: str = ""

    def with_entry(self, spec: Spec) -> Inherited:
        """What an entry hands on of what it has inherited, with its own settings."""
        return replace(
            self,
            split_part=spec.split_part or self.split_part,
            subflavors={**spec.own_subflavors, **self.subflavors},
            multiplier=combined_multiplier(self.multiplier, spec.shuffle_over_epochs_multiplier),
            subset=nested(spec.subset, self.subset),
        ).weighed(spec)

    def weighed(self, spec: Spec) -> Inherited:
        """The same with what an entry says of how much samples count in the loss."""
        if spec.sample_weight is None:
            return self
        around = 1.0 if self.sample_weight is None else self.sample_weight
        return replace(self, sample_weight=around * float(spec.sample_weight))


def combined_multiplier(outer: int | None, inner: int | None) -> int | None:
    """Of two levels of shuffling: none (None) wins, then replacement (-1), else the product."""
    if outer is None or inner is None:
        return None
    return -1 if -1 in (outer, inner) else outer * inner


def all_weighed(node: Node | Staged) -> Node | Staged:
    """The tree with a weight for every leaf, where any has one: all batches have weights then."""
    if isinstance(node, Staged):
        given = any(_given(stage.dataset) for stage in node.plan.stages)
        told = node.plan.with_datasets(lambda stage: _weighed(stage.dataset))
        return replace(node, plan=told) if given else node
    return _weighed(node) if _given(node) else node


def _given(node: Node) -> bool:
    if isinstance(node, Leaf):
        return node.sample_weight is not None
    return node.targets is not None or any(_given(child) for child, _ in node.children)


def _weighed(node: Node) -> Node:
    if isinstance(node, Leaf):
        return replace(node, sample_weight=1.0) if node.sample_weight is None else node
    return replace(node, children=tuple((_weighed(child), share) for child, share in node.children))
