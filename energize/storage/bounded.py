"""Text that stands for more than there is room for: told before it is turned into values.

Readers of JSON and YAML go down by recursion, which ends the process when it is deep enough, and a
few lines of YAML aliases can stand for more values than there is memory for.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

MOST_LEVELS = 100
"""How deep lists and mappings may be nested."""

MOST_VALUES = 1_000_000
"""How many values aliases may stand for, all of them written out."""

TOO_DEEP = f"lists and mappings are nested too deeply, in more than {MOST_LEVELS} levels"
INSIDE_ITSELF = "an alias to a list or mapping from inside it"

# The safe subset of YAML, parsed in C where PyYAML was built with libyaml.
SafeLoader: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)


def check_yaml(text: str | bytes, *, circles: bool = False) -> None:
    """Raise ValueError for YAML that is nested too deeply, or whose aliases stand for too much.

    Also for aliases to what they stand in, unless `circles` are allowed. Text that is no YAML
    passes: what parses it says where and why.

    >>> check_yaml("[" * 101 + "]" * 101)
    Traceback (most recent call last):
      ...
    ValueError: lists and mappings are nested too deeply, in more than 100 levels
    """
    sizes: dict[str, int] = {}
    around: list[tuple[str | None, int]] = []  # anchors of what is open, and values before it
    values = aliased = 0
    try:
        for event in yaml.parse(text, SafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                around.append((event.anchor, values))
                if len(around) > MOST_LEVELS:
                    raise ValueError(TOO_DEEP)
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before = around.pop()
                if anchor is not None:
                    sizes[anchor] = values - before + 1
            elif isinstance(event, yaml.AliasEvent):
                if not circles and any(event.anchor == anchor for anchor, _ in around):
                    raise ValueError(INSIDE_ITSELF)
                size = sizes.get(str(event.anchor), 1)
                aliased, values = aliased + size, values + size - 1
            values += isinstance(event, yaml.NodeEvent)
            if aliased > MOST_VALUES:
                raise ValueError(f"more than {MOST_VALUES} values when aliases are written out")
    except yaml.YAMLError:
        return


def load_yaml(text: str) -> Any:
    """The values of a YAML text; ValueError or `yaml.YAMLError` for what is none or too much."""
    check_yaml(text)
    return yaml.load(text, SafeLoader)  # noqa: S506 - safe


def load_json(text: str) -> Any:
    """The values of a JSON text; ValueError for what is none, or nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Raise ValueError for lists and mappings that are nested too deeply."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return
        level = [
            inner for each in level for inner in (each.values() if isinstance(each, dict) else each)
        ]
    raise ValueError(TOO_DEEP)
