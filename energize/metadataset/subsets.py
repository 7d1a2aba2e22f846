"""Parts of datasets, as the key `subset` gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from energize.data.source import Subset
from energize.errors import ConfigError
from energize.metadataset.problems import shown

_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*%\s*")
_EXPECTED = (
    "a mapping with 'range', which is two numbers of samples, such as [100, 200] or [100, end], or "
    "two percentages, such as [12.5%, 50%] or [50%, end]; the first sample counts, the last does "
    "not"
)
SUBSET_SCHEMA = {
    "description": _EXPECTED,
    "type": "object",
    "properties": {
        "range": {
            "type": "array",
            "minItems": 2,
            "maxItems": 2,
            "items": {
                "anyOf": [
                    {"type": "integer", "minimum": 0},
                    {"type": "string", "pattern": r"^\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*%\s*$"},
                    {"const": "end"},
                ]
            },
        }
    },
    "required": ["range"],
    "additionalProperties": False,
}


def subset_of(value: Any) -> Subset:
    """The subset that a file writes as `{range: [a, b]}`; what a program gives is taken as it is.

    Raises `ConfigError`, which says what was expected.

    >>> subset_of({"range": ["25%", "end"]})
    Subset(samples=None, ratios=(0.25, 1.0))
    """
    if isinstance(value, Subset):
        return value
    if not isinstance(value, Mapping) or set(value) != {"range"}:
        raise ConfigError(f"expected {_EXPECTED}; got {shown(value)}")
    written = value["range"]
    if not isinstance(written, list | tuple) or len(written) != 2:
        raise ConfigError(f"expected {_EXPECTED}; got the range {shown(written)}")
    start, end = (_bound(each) for each in written)
    if start is None:
        raise ConfigError(f"expected {_EXPECTED}; got the range {shown(written)}, which has none")
    if end is not None and type(start) is not type(end):
        raise ConfigError(
            "a range is either two numbers of samples or two percentages; got "
            f"{shown(written)}, which mixes them"
        )
    if end is not None and start > end:
        raise ConfigError(f"the range {shown(written)} ends before it starts")
    if isinstance(start, float):
        return Subset(ratios=(start, 1.0 if end is None else float(end)))
    return Subset(samples=(start, None if end is None else int(end)))


def _bound(value: Any) -> int | float | None:
    """A number of samples, a ratio (float), or None for the end."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str):
        if value.strip() == "end":
            return None
        found = _PERCENT.fullmatch(value)
        if found and float(found[1]) <= 100:
            return float(found[1]) / 100
        if found:
            raise ConfigError(f"a percentage is from 0% to 100%; got {shown(value)}")
    hint = ""
    if isinstance(value, float):
        hint = f"; for a percentage write '{100 * value:g}%'"
    raise ConfigError(f"expected {_EXPECTED}; got {shown(value)} in the range{hint}")
