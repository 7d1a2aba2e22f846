"""Values of a file against tables of keys: what they say, and every fault with its path."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from energize.core import limits
from energize.errors import ConfigError, nearest
from energize.metadataset.grammar import (
    NODE,
    OLDER,
    OWN,
    SHARED,
    THEIRS,
    Grammar,
    in_older_grammar,
    keys_at,
    kinds_at,
)
from energize.metadataset.keys import ENERGIZE, ENERGON, Home, Spec
from energize.metadataset.located import KeyPath, Located
from energize.metadataset.problems import Problem, check_few, shown
from energize.metadataset.table import Key, Table, keys_of, unknown_key, valid_keys

T = TypeVar("T", bound=Table)

_BESIDE = {
    "weight": "an entry of 'blend'",
    "repetitions": "an entry of 'blend_epochized'",
    "nonmatch": "an entry of 'join'",
    "joiner": "a 'join'",
    "max_correction": "the outermost 'blend' of a split or a stage",
    "target_weight": "an entry of a 'blend' that is mixed by weights",
    "sample_weight": "a dataset, a blend, a concat or a join as a whole",
}
"""Keys of one kind of node, and which it is."""
_OF_STAGE_FILES = {
    "data_stages": "stages",
    "dataset_path": "path",
    "dataset_folders": "blend",
    "dataset_weights": "weight",
    "dataset_random_seed": "seed",
}
"""Keys of stage files, and what they are called here."""


_PLACES: Mapping[str | int, str] = {key.name: key.nodes for key in keys_of(Spec) if key.nodes}
"""Keys that list nodes, and the place of these."""


class Checker(ABC):
    """Reads mappings of a file by their tables; what is wrong goes to `problems`."""

    def __init__(self, text: Located) -> None:
        self.text = text
        self.problems: list[Problem] = []

    def fault(self, path: KeyPath, message: str) -> None:
        """Note what is wrong with the value at `path`; raise what was noted when that is much."""
        self.problems.append(self.text.problem(path, message))
        check_few(self.text.file, self.problems)

    def mapping(
        self, table: type[T], value: Mapping[str, Any], path: KeyPath, keys: Mapping[str, Key]
    ) -> T | None:
        """What a mapping with the rows `keys` says; None when something in it is wrong."""
        before = len(self.problems)
        strange = [name for name in value if name not in keys]
        for name in strange:
            self.fault((*path, name), self.unknown(name, value, path, list(keys)))
        for row in keys.values():
            if row.required and row.name not in value:
                self.missing(row, path, strange)
        found = {
            name: self.value(keys[name], each, (*path, name))
            for name, each in value.items()
            if name in keys
        }
        if len(self.problems) == before:
            read = self.made(table, found)
            for key, fault in self.faults(read):
                self.fault((*path, key) if key else path, fault)
        return read if len(self.problems) == before else None

    def value(self, key: Key, value: Any, path: KeyPath) -> Any:
        """The value of a key; None when it is wrong."""
        listed = key.nodes and isinstance(value, list | Mapping) and len(value)
        if listed and listed > limits.ENTRIES:
            self.fault(path, limits.over("ENTRIES", listed))
            return None
        if key.nodes and isinstance(value, list) and (value or not key.required):
            return tuple(self.node(each, (*path, i), key.nodes) for i, each in enumerate(value))
        if key.named and isinstance(value, Mapping) and value:
            return {name: self.node(each, (*path, name), key.nodes) for name, each in value.items()}
        if key.table is not None and isinstance(value, Mapping):
            rows = {row.name: row for row in keys_of(key.table)}
            return self.mapping(key.table, value, path, rows)
        try:
            return key.read(value)
        except ConfigError as fault:
            self.fault(path, str(fault))
            return None

    def made(self, table: type[T], values: dict[str, Any]) -> T:
        """A table of values that are right one by one."""
        return table(**values)

    def faults(self, read: Table) -> Iterator[tuple[str, str]]:
        """What is wrong with the values of a table together."""
        yield from read.faults()

    @abstractmethod
    def node(self, value: Any, path: KeyPath, place: str) -> Any:
        """One of the nodes that a key lists."""

    def missing(self, key: Key, path: KeyPath, strange: Sequence[str]) -> None:
        """Note a key that is missing, unless one beside it is that one misspelt."""
        if not any(nearest(name, [key.name]) for name in strange):
            self.fault(path, f"the key {key.name!r} is missing; expected {key.expected}")

    def unknown(self, name: str, beside: Mapping[str, Any], path: KeyPath, keys: list[str]) -> str:
        """What to say of a key that is not among `keys`."""
        return unknown_key(name, keys)


class NodeChecker(Checker):
    """Reads the nodes of a metadataset; `weights`: those of a blend are given to all or to none."""

    def __init__(self, text: Located, grammar: Grammar, *, weights: bool) -> None:
        super().__init__(text)
        self.grammar, self.weights = grammar, weights

    def node(self, value: Any, path: KeyPath, place: str) -> Spec | None:
        """The node at `path`, which is a split, an entry or a stage."""
        if not isinstance(value, Mapping):
            expected = self.grammar.nodes[Home(place)]
            hint = f"; write `path: {value}`" if expected == NODE and isinstance(value, str) else ""
            self.fault(path, f"expected {expected}; got {shown(value)}{hint}")
            return None
        return self.mapping(Spec, value, path, keys_at(self.grammar, place, value))

    def made(self, table: type[T], values: dict[str, Any]) -> T:
        given = {"given": frozenset(values)} if table is Spec else {}
        return table(**values, **given)

    def faults(self, read: Table) -> Iterator[tuple[str, str]]:
        yield from read.faults()
        if isinstance(read, Spec) and self.weights and (fault := read.unweighted()):
            yield "blend" if read.blend else "datasets", fault

    def missing(self, key: Key, path: KeyPath, strange: Sequence[str]) -> None:
        if key.name != "path" or self.grammar is OLDER:
            super().missing(key, path, strange)
        elif not any(
            nearest(name, [*kinds_at(self.grammar, _place(path)), "stages"]) for name in strange
        ):
            self.fault(path, f"neither 'path' nor 'blend' is given; expected {NODE}")

    def unknown(self, name: str, beside: Mapping[str, Any], path: KeyPath, keys: list[str]) -> str:
        place = _place(path)
        kinds = kinds_at(self.grammar, place) if place else ()
        given = [kind for kind in kinds if kind in beside]
        if place and self.grammar is not OLDER:
            keys += [] if given and "stages" not in beside else kinds
            keys += ["stages"] if place == Home.SPLIT and self.grammar is OWN else []
            keys = list(dict.fromkeys(keys))
        if name in given:
            both = " and ".join(map(repr, given))
            return f"both {both} are given; expected exactly one of them: {NODE}"
        fault = self._known_elsewhere(name, place)
        return f"{fault}. {valid_keys(keys)}" if fault else unknown_key(name, keys)

    def _known_elsewhere(self, name: str, place: str) -> str:
        """What is wrong with a key of another place or another grammar; "" for other keys."""
        home = next((key.home for key in keys_of(Spec) if key.name == name), "")
        if name == "stages" and place in (Home.ENTRY, Home.STAGE):
            return (
                f"{name!r} are parts of the whole run, so they stand in a split, not in an entry "
                "of a blend or in another stage"
            )
        if place == Home.JOINED and name in kinds_at(OWN, Home.SPLIT):
            return f"the key {name!r} has no place here: what is joined are prepared folders"
        if home in (Home.PLAN, Home.SETTING) and place == Home.SPLIT and self.grammar is OWN:
            return f"the key {name!r} stands beside 'stages', and there are none"
        if name in _OF_STAGE_FILES and self.grammar is not THEIRS:
            return (
                f"unknown key {name!r}, which is for stage files, with a table 'training'; in a "
                f"metadataset it is {_OF_STAGE_FILES[name]!r}"
            )
        for key in keys_of(Spec) if not home else ():
            if name in key.instead_of:
                own = self._of_a_grammar(key.name, key.home) if self.grammar is not OWN else ""
                return f"unknown key {name!r}: it is called {key.name!r}" + (own and f"; {own}")
        return self._of_a_grammar(name, home) if home else ""

    def _of_a_grammar(self, name: str, home: str) -> str:
        if self.grammar is OLDER and not in_older_grammar(home):
            return (
                f"unknown key {name!r} in a file of the older grammar; it needs "
                "`__class__: MetadatasetV2`"
            )
        if self.grammar is OWN or home in SHARED:
            where = f"; it is for {_BESIDE[name]}" if name in _BESIDE else ""
            return f"the key {name!r} has no place here{where}"
        return f"unknown key {name!r} in a {ENERGON} file; it needs `__module__: {ENERGIZE}`"


def _place(path: KeyPath) -> str:
    """Where the node at `path` stands; "" for a mapping that is no node."""
    if len(path) == 2:
        return Home.SPLIT
    return _PLACES.get(path[-2], "") if len(path) > 2 else ""
