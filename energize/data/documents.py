"""Rows of a JSON file that is a single value.

The value is an array, columns, records by key, or tables that refer to each other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from energize.data.media import kind_by_name
from energize.errors import some

Row = dict[str, Any]

CONTAINERS = (
    *(
        "data",
        "samples",
        "rows",
        "annotations",
        "questions",
        "items",
        "examples",
        "records",
    ),
    *("instances", "entries", "results", "images"),
)
"""Keys under which an object has its array of rows."""

_MOST_COLUMNS = 64
"""Number of texts in one object from which they are records by key, not a row."""

_RECIPES = (
    {"root", "annotation"},
    {"annotation", "repeat_time"},
    {"file_name", "columns"},
    {"file_name", "formatting"},
    {"hf_hub_url"},
    {"script_url"},
    {"data_path", "json_path"},
    {"path", "weight"},
)
"""Keys of an object that names a dataset, in dataset lists of several trainers."""


PACKED = (
    "has lists of samples, ready-made packs. Name the file from which they were "
    "packed, and set 'packing'"
)
"""Fault of a file of packs, after its name."""


class NotRows(ValueError):  # noqa: N818 - a reason, which callers make an error of
    """A JSON value that is not rows; the message continues the name of its file."""


class ParsedRows(NamedTuple):
    """The rows of a JSON value and their layout.

    `shape` is `rows`, `joined`, `columns`, `by key`, or `one row` for an object that is
    a row.
    """

    shape: str
    rows: list[Any]


def document_of(value: Any) -> ParsedRows:
    """Return the rows of a JSON value.

    Args:
        value: An array of objects; an object that has such an array under one of
            `CONTAINERS`; arrays that refer to each other by `image_id` and `id`, as in
            COCO; columns, as pandas writes them; or objects, arrays or texts by key,
            which becomes the column `key`.

    Returns:
        The rows, and how the value holds them.

    Raises:
        NotRows: For a value that holds no rows, such as a list of datasets or a
            metadataset.

    Example:
        >>> document_of({"a.jpg": "a cat", "b.jpg": "a dog"}).rows
        [{'key': 'a.jpg', 'text': 'a cat'}, {'key': 'b.jpg', 'text': 'a dog'}]

    """
    if isinstance(value, list):
        return _of_array(value)
    if not isinstance(value, dict) or not value:
        raise NotRows(
            f"is the JSON value {json.dumps(value):.80}, not rows. Write an object, "
            "an array of objects, or one object per line"
        )
    if "__module__" in value or {"splits", "__class__"} <= value.keys():
        raise NotRows("is a metadataset. Save it with the extension .yaml")
    tables = {name: table for name, table in value.items() if _is_table(table)}
    if _is_split(value):
        return ParsedRows(
            "columns",
            [dict(zip(value["columns"], row, strict=True)) for row in value["data"]],
        )
    joined = _joined(tables)
    if joined is not None:
        return ParsedRows("joined", joined)
    container = next((name for name in CONTAINERS if name in tables), None)
    if container is not None:
        return ParsedRows("rows", tables[container])
    return _of_object(value)


def _of_array(value: list[Any]) -> ParsedRows:
    if value and all(map(_is_table, value)):
        raise NotRows(PACKED)
    if value and not any(isinstance(row, dict) for row in value):
        raise NotRows(
            f"is an array without objects (first value {value[0]!r:.80}). Write an "
            "array of objects"
        )
    return ParsedRows("rows", value)


def _of_object(value: dict[str, Any]) -> ParsedRows:
    """Return the rows of an object without an array of rows."""
    values = [*value.values()]
    types = {*map(type, values)}
    parsed = _of_objects(value) if types == {dict} else None
    if parsed is not None:
        return parsed
    if types == {list} and len(values) > 1 and _are_tables(values):
        return _by_key({key: {"items": table} for key, table in value.items()})
    if _are_texts(values) and _names_records(value):
        return _by_key({key: {"text": text} for key, text in value.items()})
    if types == {list}:
        raise NotRows(
            f"is one object of lists, {some(value)}, which may be columns or one row. "
            "Write it as an array of objects, or one object per line"
        )
    if any(isinstance(scalar, str | int | float) for scalar in values):
        return ParsedRows("one row", [value])
    raise NotRows(
        f"is one object with the keys {some(value)}, not rows. Write an array of "
        f"objects, lines of JSON, or an array under one of {', '.join(CONTAINERS[:4])};"
        " or correct the keys of a mixture file of another project"
    )


def _of_objects(value: Mapping[str, dict[str, Any]]) -> ParsedRows | None:
    """Return the rows of an object of objects, None if these differ in keys."""
    values = [*value.values()]
    if any(map(_is_recipe, values)):
        raise NotRows(
            f"is a list of datasets: {some(value)}. Open the datasets themselves"
        )
    numbers = [*values[0]]
    are_rows = all(map(str.isdigit, numbers))
    if are_rows and all([*column] == numbers for column in values):
        rows = [{name: value[name][number] for name in value} for number in numbers]
        return ParsedRows("columns", rows)
    shared = set.intersection(*map(set, values))
    if shared and (len(values) > 1 or kind_by_name(next(iter(value)))):
        return _by_key(value)
    return None


def _by_key(records: Mapping[str, Mapping[str, Any]]) -> ParsedRows:
    return ParsedRows(
        "by key", [{"key": key, **record} for key, record in records.items()]
    )


def _names_records(value: Mapping[str, Any]) -> bool:
    """Return whether the keys of an object are file names or keys of records."""
    are_files = all(kind_by_name(key) is not None for key in value)
    return are_files or _are_keys([*value])


def _are_keys(names: Sequence[str]) -> bool:
    """Return whether names are keys of records, not columns: numbered, or many."""
    shapes = {re.sub(r"[0-9]+", "0", name) for name in names}
    numbered = shapes == {"0"} or (
        len(shapes) == 1 and "0" in shapes.pop() and len(names) > 2
    )
    return numbered or len(names) > _MOST_COLUMNS


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _is_split(value: Mapping[str, Any]) -> bool:
    """Return whether a value is a pandas table with orient="split"."""
    names = value.get("columns")
    rows = value.get("data")
    if not isinstance(names, list) or not isinstance(rows, list):
        return False
    return all(isinstance(row, list) and len(row) == len(names) for row in rows)


def _is_recipe(record: dict[str, Any]) -> bool:
    """Return whether an object names a dataset, as lists of datasets do."""
    return any(recipe <= record.keys() for recipe in _RECIPES)


def _are_tables(values: Sequence[Any]) -> bool:
    """Return whether all values are tables or empty."""
    return all(_is_table(value) or not value for value in values)


def _are_texts(values: Sequence[Any]) -> bool:
    """Return whether all values are texts or lists of texts."""
    return all(isinstance(value, str) or _is_texts(value) for value in values)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _joined(tables: Mapping[str, Sequence[Row]]) -> list[Row] | None:
    """Return the rows of tables that refer to each other, None if none do.

    Captions become a row each. Other tables become lists in the rows that they refer
    to.
    """
    parent = next((name for name in ("images", "videos") if name in tables), None)
    if parent is None or "id" not in tables[parent][0]:
        return None
    key = f"{parent[:-1]}_id"
    referring = (
        name for name, rows in tables.items() if name != parent and key in rows[0]
    )
    child = next(referring, None)
    if child is None:
        return None
    parents = {row.get("id"): row for row in tables[parent]}
    if "caption" in tables[child][0]:
        return [{**parents.get(row.get(key), {}), **row} for row in tables[child]]
    children: dict[Any, list[Row]] = {parent_id: [] for parent_id in parents}
    for row in _with_categories(tables[child], tables.get("categories", ())):
        children.setdefault(row.get(key), []).append(row)
    return [{**row, child: children[row_id]} for row_id, row in parents.items()]


def _with_categories(rows: Sequence[Row], categories: Sequence[Row]) -> Iterator[Row]:
    """Yield copies of rows with the name of their category as `category`."""
    names = {category.get("id"): category.get("name") for category in categories}
    for row in rows:
        category_id = row.get("category_id")
        named = {"category": names[category_id]} if category_id in names else {}
        yield {**row, **named}
