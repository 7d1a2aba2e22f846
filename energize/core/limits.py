"""How much is read of files that nobody has looked at; parsers of YAML and JSON that keep to it.

More than a limit allows is an error that names the limit, told before memory is taken for it. A
program sets a limit before it makes datasets, and at the top of its script where workers are
spawned:

>>> from energize.core import limits
>>> limits.PIXELS = 500_000_000
>>> limits.PIXELS = 100_000_000

Readers of JSON and YAML go down by recursion, which ends the process when it is deep enough, and a
few lines of YAML aliases can stand for more values than there is memory for: both are told here
before text is turned into values.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

_MIB = 1024 * 1024

# Bytes of a file that people write: a metadataset, a stage file, `split.yaml`, `dataset.yaml`.
YAML_BYTES = 16 * _MIB

# Values in a file of YAML, with aliases written out.
YAML_VALUES = 60_000

# Letters of a text, a number or a key in YAML, and of a pattern of names.
LETTERS = 10_000

# Bytes of a stage file of TOML.
TOML_BYTES = _MIB // 4

# Bytes of a file of JSON that programs write, and of a part of a saved state; in memory, where
# letters of some scripts take two or four bytes each.
JSON_BYTES = 32 * _MIB

# Values in a file of JSON that programs write, and in a part of a saved state.
JSON_VALUES = 1_000_000

# Lists and mappings in one another, and braces in patterns of names.
LEVELS = 100

# Entries of a blend, a concat, a join or a list of stages.
ENTRIES = 10_000

# Names that the braces in one list of shards stand for.
NAMES = 200_000

# Bytes of an extension header of a tar, which holds a long name.
HEADER_BYTES = 64 * 1024

# Bytes of a stored sample, or of a line of JSON.
SAMPLE_BYTES = 2048 * _MIB

# Parts of a sample, and arrays in an `.npz`.
PARTS = 10_000

# Bytes that a part in `.gz` or `.npz` unpacks to.
PART_BYTES = 256 * _MIB

# Pixels of an image.
PIXELS = 100_000_000

# Samples of a batch, a global batch or a group.
BATCH_ITEMS = 1_000_000

# Rows that an `index.sqlite` has for one name.
ROWS = 10_000

# Bytes of a value in an `index.sqlite`.
CELL_BYTES = 64 * _MIB

_COMPLAINTS = {
    "YAML_BYTES": "the file is too large",
    "YAML_VALUES": "there are too many values when aliases are written out",
    "LETTERS": "a text has too many letters",
    "TOML_BYTES": "the file is too large",
    "JSON_BYTES": "it is too large",
    "JSON_VALUES": "there are too many values",
    "LEVELS": "lists and mappings are nested too deeply",
    "ENTRIES": "the list has too many entries",
    "NAMES": "braces stand for too many names",
    "HEADER_BYTES": "an extension header of a tar has too many bytes",
    "SAMPLE_BYTES": "a sample has too many bytes",
    "PARTS": "a sample has too many parts",
    "PART_BYTES": "it is too large when it is unpacked, in bytes",
    "PIXELS": "the image has too many pixels",
    "BATCH_ITEMS": "a batch has too many items",
    "ROWS": "the database has too many rows for one name",
    "CELL_BYTES": "a value in the database has too many bytes",
}

# How a UTF-8 text with a letter that takes so many bytes in memory is told.
_WIDE = {4: re.compile(rb"[\xf0-\xff]"), 2: re.compile(rb"[\xc4-\xef]")}

# Lists and mappings of which nobody would forbid that they lie in one another.
_SURELY_FLAT = 50

INSIDE_ITSELF = "an alias to a list or mapping from inside it"

# The safe subset of YAML, parsed in C where PyYAML was built with libyaml.
SafeLoader: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)


def over(name: str, found: int | None = None) -> str:
    """Return that there is more than a limit allows, and how to raise it, for messages.

    >>> over("LEVELS")
    'lists and mappings are nested too deeply, more than 100; to allow more, set \
energize.core.limits.LEVELS'
    """
    seen = "" if found is None else f", {found}"
    return (
        f"{_COMPLAINTS[name]}{seen}, more than {globals()[name]}; to allow more, set "
        f"{__name__}.{name}"
    )


def check_yaml(text: str | bytes, *, circles: bool = False) -> None:
    """Raise ValueError for YAML that is nested too deeply, has or stands for too many values, or
    has a text with too many letters; unless `circles`, also for aliases to what they stand in.

    Text that is no YAML passes: what parses it says where and why.

    >>> check_yaml("[" * 101 + "]" * 101)
    Traceback (most recent call last):
      ...
    ValueError: lists and mappings are nested too deeply, more than 100; to allow more, set \
energize.core.limits.LEVELS
    """
    sizes: dict[str, int] = {}
    around: list[tuple[str | None, int]] = []  # anchors of what is open, and values before it
    values = 0
    try:
        for event in yaml.parse(text, SafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                around.append((event.anchor, values))
                if len(around) > LEVELS:
                    raise ValueError(over("LEVELS"))
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before = around.pop()
                if anchor is not None:
                    sizes[anchor] = values - before + 1
            elif isinstance(event, yaml.AliasEvent):
                if not circles and any(event.anchor == anchor for anchor, _ in around):
                    raise ValueError(INSIDE_ITSELF)
                values += sizes.get(str(event.anchor), 1) - 1
            elif isinstance(event, yaml.ScalarEvent) and len(event.value) > LETTERS:
                where = "" if event.start_mark is None else f"line {event.start_mark.line + 1}: "
                raise ValueError(where + over("LETTERS", len(event.value)))
            values += isinstance(event, yaml.NodeEvent)
            if values > YAML_VALUES:
                raise ValueError(over("YAML_VALUES"))
    except yaml.YAMLError:
        return


def load_yaml(text: str | bytes) -> Any:
    """Return the values of a YAML text; raise `yaml.YAMLError` if it is none, ValueError if it is
    too much.
    """
    check_yaml(text)
    try:
        return yaml.load(text, SafeLoader)  # noqa: S506 - safe
    except (ArithmeticError, AttributeError, LookupError, TypeError) as reason:  # PyYAML's own
        raise ValueError(f"a value does not fit its tag: {reason}") from reason


def load_json(text: str | bytes) -> Any:
    """Return the values of a JSON text; raise ValueError if it is none, or nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(over("LEVELS")) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError as reason:
        raise ValueError("a number has more digits than Python reads; write it shorter") from reason
    # Counting brackets costs little, going through all values as much as parsing them.
    if isinstance(text, str):
        opened = text.count("{") + text.count("[")
    else:
        opened = text.count(b"{") + text.count(b"[")
    if opened > _SURELY_FLAT:
        check_depth(value)
    return value


def load_large_json(data: bytes) -> Any:
    """Return the values of a whole file of JSON that a program wrote.

    Raise ValueError if it is no JSON in UTF-8, nested too deeply, or too much for memory.
    """
    width = 1
    if not data.isascii():
        width = next((width for width, letters in _WIDE.items() if letters.search(data)), 1)
    if len(data) * width > JSON_BYTES:
        raise ValueError(over("JSON_BYTES", len(data) * width))
    # Commas in texts count too: there are never fewer than values.
    if sum(map(data.count, (b",", b"[", b"{"))) > JSON_VALUES:
        raise ValueError(over("JSON_VALUES"))
    return load_json(data.decode("utf-8"))


def check_depth(value: Any) -> None:
    """Raise ValueError for lists and mappings that are nested too deeply."""
    level = [value]
    for _ in range(LEVELS + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return
        level = [
            inner for each in level for inner in (each.values() if isinstance(each, dict) else each)
        ]
    raise ValueError(over("LEVELS"))
