"""The three grammars of metadatasets: which keys a node has in each, by the place it stands in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from energize.metadataset.keys import ENERGIZE, ENERGON, Home, Spec
from energize.metadataset.table import Key, keys_of

SHARED = (Home.DATASET, Home.BLEND, Home.ENTRY, Home.OLDER_BLEND, Home.OLDER_ENTRY)
"""The homes of keys that Energon knows."""

NODE = "a dataset (a mapping with 'path') or a blend (a mapping with 'blend')"


@dataclass(frozen=True, eq=False)
class Grammar:
    """A grammar: what its document names, and what is expected at each place of a node."""

    name: str
    modules: tuple[str, ...]
    kind: str
    nodes: Mapping[Home, str]
    splits: str
    headed: bool = True
    """Whether the document has to name its module and class."""


OWN = Grammar(
    "energize",
    (ENERGIZE, ENERGON),
    "MetadatasetV2",
    {
        Home.SPLIT: NODE,
        Home.ENTRY: NODE,
        Home.STAGE: "a stage (a mapping with 'name', 'start_step' and either 'path' or 'blend')",
    },
    f"a mapping of split names, each to {NODE}, or to stages",
)
THEIRS = Grammar(
    "energon",
    (ENERGON,),
    "MetadatasetV2",
    {Home.SPLIT: NODE, Home.ENTRY: NODE},
    f"a mapping of split names, each to {NODE}",
)
OLDER = Grammar(
    "older",
    (ENERGIZE, ENERGON),
    "Metadataset",
    {Home.SPLIT: "a mapping with 'datasets'", Home.ENTRY: "a mapping with 'path'"},
    "a mapping of split names, each to a mapping with 'datasets'",
    headed=False,
)


def grammar_of(data: Any) -> Grammar:
    """Which grammar a document follows: the one it names, else the one it looks like."""
    if not isinstance(data, Mapping):
        return OWN
    splits = data.get("splits")
    nodes = splits.values() if isinstance(splits, Mapping) else ()
    listed = any(isinstance(node, Mapping) and "datasets" in node for node in nodes)
    if data.get("__class__", "Metadataset" if listed else "") == "Metadataset":
        return OLDER
    return THEIRS if data.get("__module__") == ENERGON else OWN


def keys_at(grammar: Grammar, place: str, given: Collection[str]) -> dict[str, Key]:
    """The keys that a node has at a place, where it has those `given` already."""
    homes = set(_homes(grammar, place, given))
    keys = [key for key in keys_of(Spec) if key.home in homes]
    if grammar is not OWN:  # which has no tables in the place of values
        keys = [replace(key, table=None, called="") if key.table else key for key in keys]
    return {key.name: key for key in keys}


def _homes(grammar: Grammar, place: str, given: Collection[str]) -> Iterator[Home]:
    entry, own = place == Home.ENTRY, grammar is OWN
    if entry:
        yield from (Home.DATASET, Home.OLDER_ENTRY) if grammar is OLDER else ()
        yield Home.ENTRY
        yield from (Home.WEIGHTED_ENTRY, Home.QUOTA_ENTRY) if own else ()
    if grammar is OLDER:
        yield from () if entry else (Home.OLDER_BLEND,)
        return
    staged = place == Home.SPLIT and "stages" in given and own
    if "blend" in given:
        yield Home.BLEND
        yield from (Home.WEIGHTED_BLEND, Home.QUOTA_BLEND) if own else ()
        yield from (Home.OUTERMOST,) if own and not entry else ()
    elif "path" in given or not staged:
        yield Home.DATASET
    yield from (Home.STAGE, Home.SETTING) if place == Home.STAGE else ()
    yield from (Home.PLAN, Home.SETTING) if staged else ()
