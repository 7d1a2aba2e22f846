"""Text that is, or stands for, more than there is room for: told before it is turned into values.

Readers of JSON and YAML go down by recursion, which ends the process when it is deep enough, and a
few lines of YAML aliases can stand for more values than there is memory for. The limits are those
of `energize.core.limits`.
"""

from __future__ import annotations

import errno
import json
import re
from os import PathLike, fspath
from typing import Any

import yaml

from energize.core.limits import limit, over_limit
from energize.data.files import LocalFile

_WIDE = {4: re.compile(rb"[\xf0-\xff]"), 2: re.compile(rb"[\xc4-\xef]")}
"""How a UTF-8 text with a letter that takes so many bytes in memory is told."""

_OF_TEXTS = ("LETTERS", "DIGITS")
_DIGITS = re.compile(r"[-+]?[0-9_:.]+")

_SURELY_FLAT = 50
"""Lists and mappings of which nobody would forbid that they lie in one another."""

INSIDE_ITSELF = "an alias to a list or mapping from inside it"

# The safe subset of YAML, parsed in C where PyYAML was built with libyaml.
SafeLoader: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)


def read_bounded(path: str | PathLike[str], name: str = "TEXT_BYTES") -> bytes:
    """All bytes of a regular file that is not larger than the limit of this name.

    Raises OSError for what is none, or cannot be read, and for a larger one.
    """
    file = LocalFile(fspath(path))
    if file.size > limit(name):
        raise OSError(errno.EFBIG, over_limit(name, file.size), file.path)
    return file.read(0, file.size)


def check_yaml(text: str | bytes, *, circles: bool = False) -> None:
    """Raise ValueError for YAML that is nested too deeply, or has, or stands for, too many values,
    or has texts of too many letters.

    Also for aliases to what they stand in, unless `circles` are allowed. Text that is no YAML
    passes: what parses it says where and why.

    >>> check_yaml("[" * 101 + "]" * 101)
    Traceback (most recent call last):
      ...
    ValueError: lists and mappings are nested too deeply, more than 100; to raise that, set \
ENERGIZE_LIMIT_LEVELS in the environment
    """
    levels, most, shortest = limit("LEVELS"), limit("VALUES"), min(map(limit, _OF_TEXTS))
    sizes: dict[str, int] = {}
    around: list[tuple[str | None, int]] = []  # anchors of what is open, and values before it
    values = 0
    try:
        for event in yaml.parse(text, SafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                around.append((event.anchor, values))
                if len(around) > levels:
                    raise ValueError(over_limit("LEVELS"))
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before = around.pop()
                if anchor is not None:
                    sizes[anchor] = values - before + 1
            elif isinstance(event, yaml.AliasEvent):
                if not circles and any(event.anchor == anchor for anchor, _ in around):
                    raise ValueError(INSIDE_ITSELF)
                values += sizes.get(str(event.anchor), 1) - 1
            values += isinstance(event, yaml.NodeEvent)
            if values > most:
                raise ValueError(over_limit("VALUES"))
            if isinstance(event, yaml.ScalarEvent) and len(event.value) > shortest:
                _check_scalar(event)
    except yaml.YAMLError:
        return


def _check_scalar(event: yaml.ScalarEvent) -> None:
    """Raise ValueError for a text with too many letters, or a number with too many digits: such
    ones take time that grows with their square.
    """
    letters, mark = len(event.value), event.start_mark
    where = "" if mark is None else f"line {mark.line + 1}: "
    if letters > limit("LETTERS"):
        raise ValueError(where + over_limit("LETTERS", letters))
    if letters > limit("DIGITS") and _DIGITS.fullmatch(event.value) and not event.style:
        raise ValueError(where + over_limit("DIGITS", letters))


def load_yaml(text: str) -> Any:
    """The values of a YAML text; ValueError or `yaml.YAMLError` for what is none or too much."""
    check_yaml(text)
    try:
        return yaml.load(text, SafeLoader)  # noqa: S506 - safe
    except (ArithmeticError, AttributeError, LookupError, TypeError) as reason:  # PyYAML's own
        raise ValueError(f"a value does not fit its tag: {reason}") from reason


def read_json(path: str | PathLike[str], name: str = "META_VALUES") -> Any:
    """The values of a file of JSON that a program wrote; `name` is that of the limit of values.

    Raises OSError as `read_bounded` does, and ValueError for what is no JSON in UTF-8, is nested
    too deeply, or has more values than there may be.
    """
    data = read_bounded(path, "META_BYTES")
    width = _width(data)
    if len(data) * width > limit("META_BYTES"):
        raise ValueError(
            f"{over_limit('META_BYTES', len(data) * width)}: of the text in memory, where letters "
            f"of this script take {width} bytes each"
        )
    # Commas in texts count too: there are never fewer than values.
    if sum(map(data.count, (b",", b"[", b"{"))) > limit(name):
        raise ValueError(over_limit(name))
    text = data.decode("utf-8")
    del data
    return load_json(text)


def _width(data: bytes) -> int:
    """How many bytes a letter of a UTF-8 text takes in memory: as many as its widest one."""
    if data.isascii():
        return 1
    return next((width for width, letters in _WIDE.items() if letters.search(data)), 1)


def load_json(text: str | bytes) -> Any:
    """The values of a JSON text; ValueError for what is none, or nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(over_limit("LEVELS")) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError as reason:
        raise ValueError("a number has more digits than Python reads; write it shorter") from reason
    # Counting brackets costs little, going through all values as much as parsing them.
    opened = text.count("{") + text.count("[") if isinstance(text, str) else _opened(text)
    if opened > _SURELY_FLAT:
        check_depth(value)
    return value


def _opened(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")


def check_depth(value: Any) -> None:
    """Raise ValueError for lists and mappings that are nested too deeply."""
    level = [value]
    for _ in range(limit("LEVELS") + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return
        level = [
            inner for each in level for inner in (each.values() if isinstance(each, dict) else each)
        ]
    raise ValueError(over_limit("LEVELS"))
