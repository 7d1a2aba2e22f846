"""The three grammars of metadatasets: which keys a node has in each, by the place it stands in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from energize.metadataset.keys import ENERGIZE, ENERGON, Home, Spec
from energize.metadataset.table import Key, keys_of

_OLDER = (Home.DATASET, Home.READ, Home.OLDER_BLEND, Home.OLDER_ENTRY, Home.ENTRY)
"""The homes of keys that Energon's older grammar knows."""

SHARED = (
    *_OLDER,
    Home.NEWER_DATASET,
    Home.ANY,
    Home.BLEND,
    Home.EPOCHIZED,
    Home.REPEATED,
    Home.JOIN,
    Home.JOINED,
)
"""The homes of keys that Energon knows."""

NODE = (
    "a dataset (a mapping with 'path'), a blend (one with 'blend' or 'blend_epochized') or a join "
    "(one with 'join')"
)
_JOINED = "a dataset (a mapping with 'path')"
_NODES = {Home.SPLIT: NODE, Home.ENTRY: NODE, Home.REPEATED: NODE, Home.JOINED: _JOINED}

_KINDS = {
    "path": (Home.DATASET, Home.NEWER_DATASET, Home.READ, Home.ANY),
    "blend": (Home.BLEND, Home.ANY),
    "blend_epochized": (Home.EPOCHIZED, Home.ANY),
    "join": (Home.JOIN, Home.READ, Home.ANY),
    "concat": (Home.CONCAT, Home.ANY),
}
"""By the key that makes a node what it is: the homes of the keys that it may have."""

_ENTRIES = (Home.ENTRY, Home.REPEATED, Home.JOINED, Home.PART)


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
        **_NODES,
        Home.PART: NODE,
        Home.STAGE: "a stage (a mapping with 'name', 'start_step' and either 'path' or 'blend')",
    },
    f"a mapping of split names, each to {NODE}, or to stages",
)
THEIRS = Grammar(
    "energon",
    (ENERGON,),
    "MetadatasetV2",
    _NODES,
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


@cache
def kinds_at(grammar: Grammar, place: str) -> tuple[str, ...]:
    """Of the keys that make a node what it is, those that it may have at a place."""
    if grammar is OLDER or place == Home.JOINED:
        return ("path",)
    return tuple(name for name in _KINDS if name != "concat" or grammar is OWN)


def keys_at(grammar: Grammar, place: str, given: Collection[str]) -> Mapping[str, Key]:
    """The keys that a node has at a place, where it has those `given` already."""
    staged = place == Home.SPLIT and "stages" in given and grammar is OWN
    kinds = reversed(kinds_at(grammar, place))
    return _keys(grammar, place, next((name for name in kinds if name in given), ""), staged)


@cache
def _keys(grammar: Grammar, place: str, kind: str, staged: bool) -> Mapping[str, Key]:
    homes = set(_homes(grammar, place, kind, staged))
    keys = [key for key in keys_of(Spec) if key.home in homes]
    if grammar is not OWN:  # which has no tables in the place of values
        keys = [replace(key, table=None, called="") if key.table else key for key in keys]
    return MappingProxyType({key.name: key for key in keys})


def in_older_grammar(home: str) -> bool:
    """Whether the older grammar has the keys of a home."""
    return home in _OLDER


def _homes(grammar: Grammar, place: str, kind: str, staged: bool) -> Iterator[Home]:
    entry, own = place in _ENTRIES, grammar is OWN
    if entry:
        yield from (Home.DATASET, Home.READ, Home.OLDER_ENTRY) if grammar is OLDER else ()
        yield Home(place)
        if own and place == Home.ENTRY:
            yield from (Home.WEIGHTED_ENTRY, Home.TARGETED_ENTRY, Home.QUOTA_ENTRY)
    if grammar is OLDER:
        yield from () if entry else (Home.OLDER_BLEND,)
        return
    homes = _KINDS.get(kind, () if staged else _KINDS["path"])
    yield from (home for home in homes if (place, home) != (Home.JOINED, Home.NEWER_DATASET))
    if own and place != Home.JOINED and {Home.READ, Home.BLEND} & set(homes):
        yield Home.PROPERTY
    yield from (Home.WEIGHED,) if own and place != Home.JOINED else ()
    if kind == "blend" and own:
        yield from (Home.WEIGHTED_BLEND, Home.QUOTA_BLEND)
        yield from () if entry else (Home.OUTERMOST, Home.TARGETED_BLEND)
    yield from (Home.PACKED,) if own and not entry and not staged else ()
    yield from (Home.STAGE, Home.SETTING) if place == Home.STAGE else ()
    yield from (Home.PLAN, Home.SETTING) if staged else ()
