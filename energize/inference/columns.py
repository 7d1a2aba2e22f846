"""Profiles of the columns of a table: the forms of their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from energize.core.validation import parse_json
from energize.data.media import kind_by_name, media_name, media_value_kind
from energize.data.tables import UNNAMED
from energize.inference.words import METADATA_WORDS, plain_name, words_of
from energize.task.shapes import exchange_of

Row = Mapping[str, Any]

IMAGE = "image"
AV = "av"
"""Forms of columns that hold or name media; lists of them have an `s`."""

_NAMING_FORMS = frozenset(["text", "texts", "number", "object", "objects", "mixed"])
"""Forms of columns that may name media."""

_LISTED_FORMS = frozenset(["text", "url", "number", "object", IMAGE, AV])
"""Forms of values with a form for their lists."""

_WEB_MEDIA_WORDS = frozenset(["image", "img", "photo", "video", "content"])
"""Words in names of columns of URLs of media."""

_DEPTH = 3  # lists and objects in one another that are looked into
_PROSE_WORDS = 3  # words of a text on average, from which on it is a sentence
_CLASS_WORDS = 4
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")
_TURN_KEYS = ({"role", "from"}, {"content", "value", "tool_calls", "function_call"})


class Named(NamedTuple):
    """The media that the values of a column name, and where they are stored, see
    `fill`.
    """

    form: str
    paths: tuple[str, ...]


NameLook = Callable[[str, Sequence[Any]], Named | None]
"""Returns the media that a column and its values name, None if they name none."""


@dataclass(frozen=True)
class ColumnProfile:
    """A column, as shown by its first rows and rows spread over the table.

    `form` is the form of all values that are not null: `image`, `av`, `text`, `url`,
    `number`, `flag`, `bytes`, `object`, `turns`, `exchanges`, with an `s` for lists of
    them; `list` for other lists, `json` for JSON in text, `null` without values,
    `mixed` for several forms.
    """

    name: str
    form: str
    values: tuple[Any, ...]
    rows: int
    paths: tuple[str, ...] = ()

    @property
    def nullable(self) -> bool:
        """Whether some row has no value."""
        return len(self.values) < self.rows

    @property
    def is_media(self) -> bool:
        """Whether it holds or names images, videos or sounds."""
        return self.form.rstrip("s") in (IMAGE, AV)

    @property
    def is_nested(self) -> bool:
        """Whether it is inside another column."""
        return "[" in self.name

    @property
    def is_prose(self) -> bool:
        """Whether it has sentences that mostly differ."""
        if self.form != "text":
            return False
        count = len(self.values)
        words = sum(len(str(text).split()) for text in self.values)
        return words >= _PROSE_WORDS * count and 2 * len({*self.values}) > count

    @property
    def is_class(self) -> bool:
        """Whether it has a few short texts that repeat."""
        texts = {*self.values} if self.form == "text" else set()
        short = all(len(str(text).split()) <= _CLASS_WORDS for text in texts)
        return len(texts) > 1 and short and 2 * len(texts) <= len(self.values)

    @property
    def is_constant(self) -> bool:
        """Whether all rows have the same text."""
        return self.form == "text" and self.rows > 1 and len({*self.values}) == 1

    @property
    def is_metadata(self) -> bool:
        """Whether its name is one of a description, which is not part of samples."""
        words = words_of(self.name)
        return not {*words[-1:], plain_name(self.name)}.isdisjoint(METADATA_WORDS)

    @property
    def is_unnamed(self) -> bool:
        """Whether the table does not name it."""
        return self.name.startswith(UNNAMED)

    @property
    def is_unnamed_text(self) -> bool:
        """Whether it has texts that mostly differ, and the table does not name it."""
        return self.is_unnamed and self.form == "text" and not self.is_class

    @property
    def has_content(self) -> bool:
        """Whether it has content that samples should contain."""
        content = (
            "text",
            "texts",
            "turns",
            "exchanges",
            "json",
            "object",
            "objects",
            "mixed",
            "list",
        )
        unnamed = self.is_unnamed and self.form == "number"
        return unnamed or (self.form in content and not self.is_metadata)


def columns_of(rows: Sequence[Row], look: NameLook) -> dict[str, ColumnProfile]:
    """Return the columns of rows by name; nested columns come last.

    The name of a nested column contains its keys: `answers[*][text]`, `meta[caption]`.
    """
    columns: dict[str, ColumnProfile] = {}
    nested: dict[str, ColumnProfile] = {}
    for name in dict.fromkeys(key for row in rows for key in row):
        if name.startswith("__"):
            continue
        values = [row.get(name) for row in rows]
        column = _column(name, values, look)
        columns[name] = column
        if column.form in ("object", "objects", "json", "list") and _is_plain(name):
            nested |= _inside(column, look, _DEPTH)
    return columns | nested


def _is_plain(name: str) -> bool:
    """Return whether a field map can name a column."""
    return not {*name} & {*"[],()="} and name == name.strip()


def _column(name: str, values: Sequence[Any], look: NameLook) -> ColumnProfile:
    """Return the profile of a column."""
    present = tuple(value for value in values if not _is_null(value))
    forms = {form_of(value) for value in present}
    form = forms.pop() if len(forms) == 1 else _common(forms)
    column = ColumnProfile(name, form, present, len(values))
    if form in _NAMING_FORMS:
        named = look(name, present)
        if named is not None:
            is_list = any(isinstance(value, list) for value in present)
            plural = "s" if is_list else ""
            return replace(column, form=f"{named.form}{plural}", paths=named.paths)
    if form == "text" and all(map(_is_json, present)):
        return replace(column, form="json")
    if form == "text" and all(map(_is_numbers, present)):
        return replace(column, form="list")
    return column


def _is_numbers(text: str) -> bool:
    """Return whether a text consists of numbers, like a box."""
    words = text.replace(",", " ").split()
    return len(words) > 1 and all(_NUMBER.fullmatch(word) for word in words)


def _is_null(value: Any) -> bool:
    """Return whether a value is null, empty, or a list of nulls."""
    if isinstance(value, list):
        return all(entry is None for entry in value)
    return value is None or value == ""


def _common(forms: set[str]) -> str:
    """Return the form of values of several forms."""
    if not forms:
        return "null"
    if forms == {IMAGE, "bytes"}:
        return IMAGE  # damaged ones are found when they are decoded
    singles = {form.rstrip("s") for form in forms}
    if len(singles) == 1 and singles & {IMAGE, AV}:
        return f"{singles.pop()}s"  # a single one is a list of one
    return "mixed"


def form_of(value: Any) -> str:  # noqa: PLR0911
    """Return the form of a value that is not null.

    >>> form_of("a cat"), form_of([1, 2]), form_of([{"role": "user", "content": "Hi"}])
    ('text', 'numbers', 'turns')
    """
    media_kind = media_value_kind(value)
    if media_kind is not None:
        return str(media_kind.value)
    if isinstance(value, bool):
        return "flag"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "url" if "://" in value[:20] and " " not in value.strip() else "text"
    if isinstance(value, bytes):
        return "bytes"
    if isinstance(value, list):
        return _form_of_list(value)
    return "object" if isinstance(value, dict) else "mixed"


def _form_of_list(value: list[Any]) -> str:
    entries = [entry for entry in value if entry is not None]
    if not entries:
        return "texts"
    if all(_is_turn(entry) for entry in entries):
        return "turns"
    if all(exchange_of(entry) is not None for entry in entries):
        return "exchanges"
    form, *more = {form_of(entry) for entry in entries}
    return "list" if more or form not in _LISTED_FORMS else f"{form}s"


def _is_turn(value: Any) -> bool:
    return isinstance(value, dict) and all(keys & value.keys() for keys in _TURN_KEYS)


def _is_json(value: Any) -> bool:
    """Return whether a text is an object or an array of JSON."""
    if not isinstance(value, str) or value.strip()[:1] not in ("{", "["):
        return False
    try:
        return isinstance(parse_json(value), dict | list)
    except ValueError:
        return False


def _inside(
    column: ColumnProfile, look: NameLook, depth: int
) -> dict[str, ColumnProfile]:
    """Return the columns inside a column of objects, of lists of them, or of JSON."""
    if not depth:
        return {}
    as_json = column.form == "json"
    values = [*map(parse_json, column.values)] if as_json else [*column.values]
    is_list = all(isinstance(value, list) for value in values)
    prefix = f"{column.name}[*]" if is_list else column.name
    objects = [_objects_of(value) for value in values]
    keys = dict.fromkeys(key for group in objects for entry in group for key in entry)
    columns: dict[str, ColumnProfile] = {}
    for key in keys:
        if not isinstance(key, str) or not _is_plain(key):
            continue
        inner = _values_of_key(objects, key, is_list=is_list)
        inner += [None] * (column.rows - len(inner))
        profile = _column(f"{prefix}[{key}]", inner, _no_names if as_json else look)
        columns[profile.name] = profile
        if profile.form in ("object", "objects"):
            columns |= _inside(profile, look, depth - 1)
    return columns


def _values_of_key(
    objects: Sequence[list[dict[Any, Any]]], key: str, *, is_list: bool
) -> list[Any]:
    """Return the values of a key: a list for each row, or the first one."""
    if is_list:
        return [[entry.get(key) for entry in group] for group in objects]
    return [group[0].get(key) if group else None for group in objects]


def _objects_of(value: Any) -> list[dict[Any, Any]]:
    """Return a value that is an object, or the objects of a list."""
    entries = value if isinstance(value, list) else [value]
    return [entry for entry in entries if isinstance(entry, dict)]


def _no_names(name: str, values: Sequence[Any]) -> None:
    return None


def names_of(values: Iterable[Any]) -> list[str]:
    """Return the values of a column, also in lists, that may be names of files."""
    listed = (
        entry
        for value in values
        for entry in (value if isinstance(value, list) else [value])
    )
    return [
        name for entry in listed if (name := media_name(entry)) and "://" not in name
    ]


def on_the_web(columns: Mapping[str, ColumnProfile]) -> ColumnProfile | None:
    """Return the column that names images or videos on the web, None if none does."""
    is_sized = {"width", "height"} <= {plain_name(name) for name in columns}
    for column in columns.values():
        if column.form not in ("url", "urls") or column.is_nested:
            continue
        words = {*words_of(column.name)}
        if words & _WEB_MEDIA_WORDS or (is_sized and words == {"url"}):
            return column
        if any(map(_is_media_url, _urls(column))):
            return column
    return None


def _is_media_url(url: str) -> bool:
    return kind_by_name(url.partition("?")[0]) is not None


def _urls(column: ColumnProfile) -> Iterable[str]:
    """Yield the URLs in a column, also those in lists."""
    for value in column.values:
        yield from map(str, value if isinstance(value, list) else [value])
