"""Text that is, or stands for, more than there is room for: told before it is turned into values.

Readers of JSON and YAML go down by recursion, which ends the process when it is deep enough, and a
few lines of YAML aliases can stand for more values than there is memory for. The limits are those
of `energize.limits`.
"""

from __future__ import annotations

import errno
import json
from os import PathLike, fspath
from typing import Any

import yaml

from energize.limits import limit, over_limit
from energize.storage.files import LocalFile

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


def check_yaml(text: str | bytes, *, circles: bool = False, name: str = "VALUES") -> None:
    """Raise ValueError for YAML that is nested too deeply, or has, or stands for, too many values.

    Also for aliases to what they stand in, unless `circles` are allowed. `name` is that of the
    limit of values. Text that is no YAML passes: what parses it says where and why.

    >>> check_yaml("[" * 101 + "]" * 101)
    Traceback (most recent call last):
      ...
    ValueError: lists and mappings are nested too deeply, more than 100; to raise that, set \
ENERGIZE_LIMIT_LEVELS in the environment
    """
    levels, most = limit("LEVELS"), limit(name)
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
                raise ValueError(over_limit(name))
    except yaml.YAMLError:
        return


def load_yaml(text: str) -> Any:
    """The values of a YAML text; ValueError or `yaml.YAMLError` for what is none or too much."""
    check_yaml(text, name="META_VALUES")
    return yaml.load(text, SafeLoader)  # noqa: S506 - safe


def load_json(text: str) -> Any:
    """The values of a JSON text; ValueError for what is none, or nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(over_limit("LEVELS")) from None
    check_depth(value)
    return value


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
