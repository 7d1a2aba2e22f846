"""Tables of keys as JSON schemas, for editors and other tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from energize.metadataset.grammar import OLDER, OWN, THEIRS, Grammar, keys_at, kinds_at
from energize.metadataset.keys import Home
from energize.metadataset.table import Key, keys_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PLACES: dict[Grammar, tuple[Home, ...]] = {
    OWN: (Home.SPLIT, Home.ENTRY, Home.REPEATED, Home.JOINED, Home.PART, Home.STAGE),
    THEIRS: (Home.SPLIT, Home.ENTRY, Home.REPEATED, Home.JOINED),
    OLDER: (Home.SPLIT, Home.ENTRY),
}
"""The places of nodes in each grammar."""

Listed = Callable[[str], dict[str, Any]]
"""The schema of a node at a place."""


def json_schema() -> dict[str, Any]:
    """The grammars of metadataset files as one JSON schema."""
    return {
        "$schema": DIALECT,
        "title": "energize metadataset",
        "description": "Weighted sources of a training run",
        "anyOf": [_document(grammar) for grammar in _PLACES],
        "$defs": {
            f"{grammar.name}-{place}": {
                "anyOf": [
                    object_schema(keys_at(grammar, place, given).values(), _listed(grammar))
                    for given in _shapes(grammar, place)
                ]
            }
            for grammar, places in _PLACES.items()
            for place in places
        },
    }


def _shapes(grammar: Grammar, place: Home) -> list[list[str]]:
    """The keys that decide which others a node has: those of each kind of node."""
    if grammar is OLDER:
        return [["datasets" if place == Home.SPLIT else "path"]]
    kinds = [[kind] for kind in kinds_at(grammar, place)]
    if grammar is OWN and place == Home.SPLIT:
        return [*kinds, ["stages"], *([*kind, "stages"] for kind in kinds)]
    return kinds


def object_schema(
    keys: Iterable[Key], listed: Listed | None = None, *, more: bool = False
) -> dict[str, Any]:
    """The schema of a mapping; with `more` it may have other keys too."""
    rows = list(keys)
    return {
        "type": "object",
        "properties": {row.name: _schema(row, listed) for row in rows},
        "required": [row.name for row in rows if row.required],
        "additionalProperties": more,
    }


def _schema(row: Key, listed: Listed | None) -> dict[str, Any]:
    plain = {} if row.adapter is None else row.adapter.json_schema()
    if row.nodes and listed is not None:
        plain = {"type": "array", "minItems": int(row.required), "items": listed(row.nodes)}
        if row.named:
            named = {"type": "object", "minProperties": 2}
            named["additionalProperties"] = listed(row.nodes)
            plain = {"anyOf": [{**plain, "minItems": 2}, named]}
    if row.table is not None:
        plain = {"anyOf": [plain, object_schema(keys_of(row.table))]}
    return {**plain, "description": row.expected}


def _listed(grammar: Grammar) -> Listed:
    return lambda place: {"$ref": f"#/$defs/{grammar.name}-{place}"}


def _document(grammar: Grammar) -> dict[str, Any]:
    modules = [each for each in grammar.modules if grammar is not OWN or each == grammar.name]
    return {
        "type": "object",
        "properties": {
            "__module__": {"enum": modules},
            "__class__": {"const": grammar.kind},
            "splits": {
                "description": grammar.splits,
                "type": "object",
                "minProperties": 1,
                "additionalProperties": _listed(grammar)(Home.SPLIT),
            },
        },
        "required": ["__module__", "__class__", "splits"] if grammar.headed else ["splits"],
        "additionalProperties": False,
    }
