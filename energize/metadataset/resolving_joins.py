"""From a join in a file to the leaf that it is read as."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from energize.metadataset.inheriting import Inherited
from energize.metadataset.joiners import joiner_of
from energize.metadataset.keys import Spec
from energize.metadataset.located import KeyPath
from energize.metadataset.nodes import JoinedLeaf, JoinedPart, Leaf, Node, Staged
from energize.metadataset.plans import FaultyError
from energize.metadataset.problems import Problem, place_noted, shown
from energize.metadataset.reading import MetadatasetFile

Follow = Callable[[Path, Spec, Inherited, str], Node | Staged]
"""What an entry at a place refers to, its path being the first argument."""

_log = logging.getLogger("energize")


def joined_leaf(
    metadataset: MetadatasetFile, spec: Spec, path: KeyPath, outer: Inherited, follow: Follow
) -> JoinedLeaf:
    """What the join `spec` at `path` reads.

    Raises `FaultyError` with the faults of all its parts together.
    """
    inner = outer.with_entry(spec)
    around = replace(inner, subset=None, multiplier=1, sample_weight=None)
    parts: list[JoinedPart] = []
    found: list[Problem] = []
    for name, entry in spec.joined:
        at = metadataset.place((*path, "join", name, "path"))
        given = replace(
            entry,
            dataset_config=entry.dataset_config or spec.dataset_config,
            split_config=entry.split_config or spec.split_config,
        )
        if entry.shuffle_over_epochs_multiplier != 1:
            _log.warning("%s: the order is that of the join; the multiplier here is not", at)
        try:
            leaf = follow(metadataset.file.parent / entry.path, given, around, at)
            if not isinstance(leaf, Leaf) or leaf.is_jsonl:
                text = f"what is joined are prepared folders, and {shown(entry.path)} is none"
                raise FaultyError(Problem(at, text))
        except FaultyError as error:
            found += error.problems
            continue
        named = name if isinstance(name, str) else None
        parts.append(JoinedPart(leaf, entry.nonmatch, named))
    if found:
        raise FaultyError(*found)
    first = parts[0].leaf
    place = metadataset.place((*path, "join"))
    with place_noted(place):
        joiner = joiner_of(spec.joiner)
    return JoinedLeaf(
        path=first.path,
        split_part=first.split_part,
        subflavors=first.subflavors,
        dataset_config=first.dataset_config,
        split_config=first.split_config,
        shuffle_over_epochs_multiplier=inner.multiplier,
        place=place,
        subset=inner.subset,
        sample_weight=inner.sample_weight,
        parts=tuple(parts),
        joiner=joiner,
        cache=metadataset.file.with_name(f"{metadataset.file.name}.cache"),
    )
