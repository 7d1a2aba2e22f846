"""Values from outside (YAML, JSON, arguments), checked with pydantic.

A file is described by a `Model`. `validated` creates one from the values of a file, or
raises one error with all faults: file, line, path, value, and the nearest key. Readers
of several files collect `faults`, and add the locations themselves.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Strict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from energize.core import limits
from energize.core.lazy import yaml
from energize.errors import EnergizeError, nearest

T = TypeVar("T")

KeyPath: TypeAlias = tuple[str | int, ...]
"""The way from the root of a document to a value: keys of mappings and indices of
lists."""

Listed: TypeAlias = Annotated[tuple[T, ...], Strict(strict=False)]
"""A list in a file, which becomes a tuple."""

MOST_FAULTS = 100
"""Maximum number of faults in an error."""

_LINES_BYTES = 200_000
"""A longer text is not searched for the line of a fault."""

_MESSAGES = {
    "dict_type": "expected a mapping",
    "int_parsing": "expected an integer",
    "list_type": "expected a list",
    "model_attributes_type": "expected a mapping",
    "model_type": "expected a mapping",
    "string_type": "expected text",
    "tuple_type": "expected a list",
}
_OWN = ("value_error", "assertion_error")


# Upper bound of the memory of a JSON value, with its share of its container.
_VALUE_BYTES = 128

# Number of brackets up to which the depth of a text is not checked.
_SURELY_FLAT = 50

# Patterns of UTF-8 texts with a character of 4 or 2 bytes in memory.
_WIDE = {4: re.compile(rb"[\xf0-\xff]"), 2: re.compile(rb"[\xc4-\xef]")}

_PAIR = re.compile(rb"(?<!\\)((?:\\\\)*)(\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w)")

# Keys that are shown without quotes.
_PLAIN = re.compile(r"[\w-]{1,80}")

INSIDE_ITSELF = "an alias to a list or mapping from inside it"


class Model(BaseModel):
    """A mapping in a file: unknown keys are faults, and no value is taken for one of
    another type.

    >>> class Point(Model):
    ...     x: int
    ...     name: str = ""
    >>> Point(x=1)
    Point(x=1, name='')
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Fault(NamedTuple):
    """One thing that is wrong: the path of the value, and what is wrong and what to
    do.
    """

    path: KeyPath
    text: str


def validated(
    schema: TypeAdapter[T],
    value: object,
    error: type[EnergizeError],
    file: str | os.PathLike[str],
    text: str | bytes = "",
) -> T:
    """Validate the content of a file.

    Args:
        schema: The schema.
        value: The content of the file.
        error: The class of the error.
        file: The path, for the error.
        text: The text of the file, for the lines of faults.

    Raises:
        EnergizeError: An `error` with all faults, if the value is invalid.

    Example:
        >>> from energize.errors import DatasetError
        >>> schema = TypeAdapter(dict[str, int])
        >>> validated(schema, {"a": "b"}, DatasetError, "sizes.yaml", "a: b")
        Traceback (most recent call last):
            ...
        energize.errors.DatasetError: sizes.yaml:1 (a): expected an integer, got 'b'
    """
    try:
        return schema.validate_python(value)
    except ValidationError as reason:
        raise error(
            fault_report(faults(reason, schema, value), file, lines_of(text))
        ) from None


def faults(
    error: ValidationError, schema: TypeAdapter[Any], value: object
) -> list[Fault]:
    """Return the faults of a validation error, in the words of this package.

    For a value that fits no member of a union, the faults of its members are one, or
    those of the closest member.

    Args:
        error: The error of pydantic.
        schema: The schema that raised it.
        value: The invalid value.
    """
    keys = list(dict.fromkeys(_keys(schema.core_schema)))
    messages: dict[KeyPath, list[str]] = {}
    shown: dict[KeyPath, str] = {}
    deepest: dict[KeyPath, int] = {}
    for detail in error.errors(include_url=False)[: 10 * MOST_FAULTS]:
        path, union = _place_in(value, detail["loc"])
        if union is not None:
            depth = deepest.setdefault(union, len(path))
            if len(path) < depth:
                continue
            if len(path) > depth:
                deepest[union] = len(path)
                messages = {
                    prefix: messages[prefix]
                    for prefix in messages
                    if prefix[: len(union)] != union
                }
        text, shown[path] = _fault(detail, keys)
        if text not in messages.setdefault(path, []):
            messages[path].append(text)
    first = list(messages.items())[:MOST_FAULTS]
    return [Fault(path, ", or ".join(texts) + shown[path]) for path, texts in first]


def _place_in(value: Any, loc: KeyPath) -> tuple[KeyPath, KeyPath | None]:
    """Return the path in a document for a location of pydantic.

    Locations also contain members of unions. The second result is the path of the last
    union without tags, or None.
    """
    path: list[str | int] = []
    union: KeyPath | None = None
    for number, step in enumerate(loc, 1):
        inside: Any = range(len(value)) if isinstance(value, list | tuple) else value
        if isinstance(inside, dict | range) and step in inside:
            value = value[step]
        elif isinstance(step, str) and (step == "[key]" or step.startswith("<")):
            continue
        elif not isinstance(value, dict) or number < len(loc):
            union = tuple(path)
            continue
        path.append(step)
    return tuple(path), union


def _keys(schema: Any) -> Iterator[str]:
    """Yield the keys of all models, dataclasses and typed dicts in a schema."""
    if isinstance(schema, list | tuple):
        for inner in schema:
            yield from _keys(inner)
    elif isinstance(schema, dict):
        for name, inner in schema.items():
            if isinstance(inner, dict) and str(inner.get("type")).endswith("-field"):
                yield str(inner.get("validation_alias", name))
            yield from _keys(inner)
        if schema.get("type") == "dataclass-field":
            yield str(schema["name"])


def fault_report(
    faults: Iterable[Fault], file: str | os.PathLike[str], lines: Mapping[KeyPath, int]
) -> str:
    """Return faults of a file as the text of an error, each with its place."""
    texts = [f"{place(file, fault.path, lines)}: {fault.text}" for fault in faults]
    if len(texts) == 1:
        return texts[0]
    return "\n  ".join([f"{len(texts)} errors in {os.fspath(file)}:", *texts])


def place(
    file: str | os.PathLike[str], path: KeyPath, lines: Mapping[KeyPath, int]
) -> str:
    """Return `file:line (path)`, with the line of what encloses a path that is not
    there.

    >>> place("a.yaml", ("splits", "train"), {(): 1, ("splits",): 3})
    'a.yaml:3 (splits.train)'
    """
    line = line_of(path, lines)
    location = os.fspath(file) + (f":{line}" if line else "")
    return f"{location} ({path_text(path)})" if path else location


def line_of(path: KeyPath, lines: Mapping[KeyPath, int]) -> int | None:
    """Return the line of what is at a path, or of what encloses it."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path)


def path_text(path: KeyPath) -> str:
    """Return a path as people write it.

    >>> path_text(("splits", "train", "blend", 1, "path to"))
    "splits.train.blend[1]['path to']"
    """
    text = ""
    for key in path:
        if isinstance(key, int) or not _PLAIN.fullmatch(key):
            text += f"[{key if isinstance(key, int) else short(key)}]"
        else:
            text += f".{key}" if text else key
    return text


def short(value: object) -> str:
    """Return a value as it may be quoted in a message."""
    try:
        text = repr(value)
    except (
        ValueError,
        RecursionError,
    ):  # a number of very many digits has no such text
        return f"a {type(value).__name__} that is too large to be shown"
    if value is None:
        return "nothing"
    if len(text) <= 80:
        return text
    return f"{text[:77]}..."


def lines_of(text: str | bytes) -> dict[KeyPath, int]:
    r"""Return the line of each path in a text of YAML or JSON.

    Returns an empty dict for a long or invalid text. Aliases must have been counted
    before (`check_yaml`), since they are expanded.

    Example:
        >>> lines_of("a:\n  - 1\n  - 2")[("a", 1)]
        3
    """
    lines: dict[KeyPath, int] = {}
    if not text or len(text) > _LINES_BYTES:
        return lines
    try:
        root = yaml.compose(text, safe_loader())
    except (ValueError, yaml.YAMLError, RecursionError):
        return lines
    open_nodes: set[int] = set()

    def note(node: yaml.Node, path: KeyPath) -> None:
        lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in open_nodes:
            return
        open_nodes.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                name = key.value if isinstance(key.value, str) else ""
                lines[*path, name] = key.start_mark.line + 1
                note(value, (*path, name))
        elif isinstance(node, yaml.SequenceNode):
            for i, value in enumerate(node.value):
                note(value, (*path, i))
        open_nodes.discard(id(node))

    if root is not None:
        note(root, ())
    return lines


def _fault(detail: ErrorDetails, keys: list[str]) -> tuple[str, str]:
    """Return the text of a fault, and the value if it helps."""
    fault_type = detail["type"]
    key = str(detail["loc"][-1]) if detail["loc"] else ""
    if fault_type == "missing":
        return f"the key {key!r} is missing", ""
    if fault_type == "extra_forbidden":
        near = nearest(key, [name for name in keys if name != key])
        return f"unknown key {short(key)}{near}", ""
    if fault_type in _OWN:
        return str(detail["ctx"]["error"]), ""
    words = (
        re.findall(r"'([^']*)'", detail["ctx"]["expected"])
        if fault_type == "literal_error"
        else []
    )
    near = nearest(detail["input"], words) if isinstance(detail["input"], str) else ""
    text = detail["msg"].replace("Input should be", "expected")
    text = text.replace("a valid integer", "an integer").replace("a valid ", "a ")
    return _MESSAGES.get(fault_type, text), f", got {short(detail['input'])}{near}"


# Text of YAML and JSON as values. Readers go down by recursion, which ends the process
# when it is deep enough, and a few lines of aliases can stand for more values than
# there is memory for: both are checked before parsing.


def safe_loader() -> type[Any]:
    """Return the loader of the safe subset of YAML, in C if libyaml was found."""
    return getattr(yaml, "CSafeLoader", None) or yaml.SafeLoader


def check_yaml(text: str | bytes, *, circles: bool = False) -> bytes:
    """Check the limits of a YAML text, and return it for a parser.

    Invalid YAML passes: the parser reports where and why it is invalid. Surrogate pairs
    that JSON writes as two escapes become one character.

    Args:
        text: The text.
        circles: Allow aliases to a value that contains them.

    Raises:
        ValueError: If the text is not UTF-8, is nested too deeply, has or expands to
            too many values, or has too long a string; unless `circles`, also for
            circular aliases.

    Example:
        >>> check_yaml("[" * 101 + "]" * 101)
        Traceback (most recent call last):
          ...
        ValueError: lists and mappings are nested too deeply, more than 100. To allow \
more, set energize.core.limits.LEVELS
    """
    data = text.encode() if isinstance(text, str) else text
    counter = _YamlCounter(circles=circles)
    try:
        counter.count(yaml.parse(data, safe_loader()))
    except yaml.reader.ReaderError as reason:
        at = reason.position
        location = f"line {data[:at].count(10) + 1}: {data[at : at + 1]!r}"
        raise ValueError(
            f"{location}: {reason.reason}. Save the file as UTF-8"
        ) from reason
    except yaml.YAMLError:
        single = _PAIR.sub(
            lambda pair: pair[1] + json.loads(b'"%s"' % pair[2]).encode(), data
        )
        return data if single == data else check_yaml(single, circles=circles)
    return data


class _YamlCounter:
    """Counts the values that a YAML text expands to, and checks its limits."""

    def __init__(self, *, circles: bool) -> None:
        self._circles = circles
        self._values = 0
        self._sizes: dict[str, int] = {}
        # The anchor of each open collection, and the number of values before it.
        self._open: list[tuple[str | None, int]] = []

    def count(self, events: Iterable[Any]) -> None:
        """Count the events of a parser; raise ValueError beyond a limit."""
        for event in events:
            if isinstance(event, yaml.CollectionStartEvent):
                self._open.append((event.anchor, self._values))
                if len(self._open) > limits.LEVELS:
                    raise ValueError(limits.over("LEVELS"))
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, start = self._open.pop()
                if anchor is not None:
                    self._sizes[anchor] = self._values - start + 1
            elif isinstance(event, yaml.AliasEvent):
                self._add_alias(event.anchor)
            elif (
                isinstance(event, yaml.ScalarEvent)
                and len(event.value) > limits.LETTERS
            ):
                raise ValueError(_too_long(event))
            self._values += isinstance(event, yaml.NodeEvent)
            if self._values > limits.YAML_VALUES:
                raise ValueError(limits.over("YAML_VALUES"))

    def _add_alias(self, name: Any) -> None:
        if not self._circles and any(name == anchor for anchor, _ in self._open):
            raise ValueError(INSIDE_ITSELF)
        self._values += self._sizes.get(str(name), 1) - 1


def _too_long(event: Any) -> str:
    """Return the message for a scalar beyond the limit."""
    mark = event.start_mark
    location = "" if mark is None else f"line {mark.line + 1}: "
    return location + limits.over("LETTERS", len(event.value))


def load_yaml(text: str | bytes, loader: type[Any] | None = None) -> Any:
    """Parse a YAML text.

    Args:
        text: The text.
        loader: `SafeLoader` or a subclass of it; None for the fastest one.

    Raises:
        yaml.YAMLError: If the text is invalid.
        ValueError: If it exceeds a limit.
    """
    data = check_yaml(text)
    try:
        return yaml.load(data, loader or safe_loader())
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
    ) as reason:  # PyYAML's own
        raise ValueError(f"a value does not fit its tag: {reason}") from reason


def load_json(text: str | bytes, *, unique: bool = False) -> Any:
    """Return the values of a JSON text that is stored in a sample, as `parse_json`
    does; raise `DecodeError` if they are too many.
    """
    letters: Any = ("{", "[", ",") if isinstance(text, str) else (b"{", b"[", b",")
    limits.decoding.spend(len(text) + _VALUE_BYTES * sum(map(text.count, letters)))
    return parse_json(text, unique=unique)


def parse_json(text: str | bytes, *, unique: bool = False) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: If it is invalid, or nested too deeply; with `unique`, also if an
            object has a key twice.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys if unique else None)
    except _RepeatedKeyError:
        raise
    except RecursionError:
        raise ValueError(limits.over("LEVELS")) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError as reason:
        raise ValueError(
            "a number has more digits than Python reads. Write it shorter"
        ) from reason
    # Counting brackets costs little, going through all values as much as parsing them.
    letters: Any = ("{", "[") if isinstance(text, str) else (b"{", b"[")
    if sum(map(text.count, letters)) > _SURELY_FLAT:
        check_depth(value)
    return value


class _RepeatedKeyError(ValueError):
    """An object of JSON has a key twice."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise _RepeatedKeyError(f"an object has the key {repeated!r} more than once")
    return value


def load_large_json(data: bytes) -> Any:
    """Return the values of a whole file of JSON that a program wrote.

    Raise ValueError if it is no JSON in UTF-8, nested too deeply, or too much for
    memory.
    """
    width = 1
    if not data.isascii():
        width = next(
            (width for width, letters in _WIDE.items() if letters.search(data)), 1
        )
    if len(data) * width > limits.JSON_BYTES:
        raise ValueError(limits.over("JSON_BYTES", len(data) * width))
    # Commas in texts count too: there are never fewer than values.
    if sum(map(data.count, (b",", b"[", b"{"))) > limits.JSON_VALUES:
        raise ValueError(limits.over("JSON_VALUES"))
    return parse_json(data.decode("utf-8"))


def check_depth(value: Any) -> None:
    """Raise ValueError for lists and mappings that are nested too deeply."""
    level = [value]
    for _ in range(limits.LEVELS + 1):
        level = [container for container in level if isinstance(container, dict | list)]
        if not level:
            return
        level = [
            inner
            for container in level
            for inner in (
                container.values() if isinstance(container, dict) else container
            )
        ]
    raise ValueError(limits.over("LEVELS"))
