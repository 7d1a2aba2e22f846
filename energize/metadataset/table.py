"""What a row of a table of keys is, and the classes whose fields are such rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cache, reduce
from operator import or_
from typing import Any, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, core_schema

from energize.errors import ConfigError, nearest
from energize.metadataset.problems import number_hint, shown


@dataclass(frozen=True)
class Key:
    """A key of a mapping: what has it, what it means, and what values it takes.

    `nodes`: the place of the nodes that it lists, or with `named` also maps names to. `table`: the
    class of a mapping that it may hold. `called`: what messages call these. `instead_of`:
    other names that people look for it by. The name, the default
    and what checks plain values are those of the field.
    """

    home: str
    means: str = ""
    required: bool = False
    nodes: str = ""
    named: bool = False
    table: type[Table] | None = None
    called: str = ""
    instead_of: tuple[str, ...] = ()
    name: str = ""
    default: Any = None
    adapter: TypeAdapter[Any] | None = None

    @property
    def expected(self) -> str:
        """What a message says was expected."""
        schemas = () if self.adapter is None else _all_of(self.adapter.json_schema())
        plain = next((each["description"] for each in schemas if "description" in each), "")
        kinds = ", or ".join(filter(None, (plain, self.called)))
        return f"{kinds}: {self.means}" if self.means else kinds

    @property
    def words(self) -> list[str]:
        """The texts to choose from, when only certain ones will do."""
        schemas = () if self.adapter is None else _all_of(self.adapter.json_schema())
        return next((each["enum"] for each in schemas if "enum" in each), [])

    def read(self, value: Any) -> Any:
        """A plain value; `ConfigError` for one that does not fit, which says what does."""
        if self.adapter is None:
            raise ConfigError(self.unexpected(value))
        try:
            return self.adapter.validate_python(value)
        except ValidationError as error:
            own = error.errors()[0].get("ctx", {}).get("error")
            text = own if isinstance(own, ConfigError) else self.unexpected(value)
            raise ConfigError(str(text)) from None

    def unexpected(self, value: Any) -> str:
        """What to say of a value that does not fit."""
        hint = ""
        if isinstance(value, str):
            hint = number_hint(value) or (nearest(value, self.words) if self.words else "")
        return f"expected {self.expected}; got {shown(value)}{hint}"


class Table:
    """A mapping of a file: its fields are its keys, each made by `key`."""

    def faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong with values that are right one by one: at which key, or "", and what."""
        yield from ()


@dataclass(frozen=True, eq=False)
class OneOf:
    """In the annotation of a field: only these texts, which messages list."""

    words: Iterable[str]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        words = list(self.words)
        listed = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
        told = {"pydantic_js_updates": {"enum": words, "description": listed}}
        return core_schema.literal_schema(words, metadata=told)


def key(home: str, means: str = "", *, default: Any = None, **more: Any) -> Any:
    """A row of a table: a field of a `Table`, whose annotation is what values are checked by.

    `more` are other fields of `Key`.
    """
    return field(default=default, metadata={"key": Key(home, means, **more)})


def same_key(table: type[Table], name: str, **changed: Any) -> Any:
    """A row of another table, for a field that is annotated as it is there."""
    row = next(row for row in keys_of(table) if row.name == name)
    return field(default=row.default, metadata={"key": replace(row, **changed)})


def keys_of(table: type[Table]) -> tuple[Key, ...]:
    """The rows of a table in their order."""
    kind: Any = table  # of which mypy knows that it can be hashed
    return _rows(kind)


@cache
def _rows(table: type[Any]) -> tuple[Key, ...]:
    types = get_type_hints(table, include_extras=True)
    rows = []
    for each in fields(table):
        kind, row = types[each.name], each.metadata.get("key")
        if row is None:
            continue
        if row.table is not None:
            kind = reduce(or_, (part for part in get_args(kind) if part is not row.table))
        adapter = None if row.nodes else TypeAdapter(kind, config=ConfigDict(strict=True))
        rows.append(replace(row, name=each.name, default=each.default, adapter=adapter))
    return tuple(rows)


def unknown_key(name: str, known: list[str]) -> str:
    """What to say of a key that nothing reads."""
    return f"unknown key {shown(name)}{nearest(name, known) or '.'} {valid_keys(known)}"


def valid_keys(known: list[str]) -> str:
    """Which keys there are."""
    return f"Valid keys here: {', '.join(known)}"


def _all_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """A JSON schema, and those that it offers to choose from."""
    return [schema, *schema.get("anyOf", [])]
