"""The keys `by`, `weights` and `other`: what they hold, and what is wrong with them together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from energize.errors import ConfigError
from energize.metadataset.problems import shown
from energize.metadataset.table import Table, keys_of, unknown_key

if TYPE_CHECKING:
    from energize.metadataset.keys import Spec

SUBFLAVORS = "subflavors."
"""What stands before the name of a subflavor in the place of a column's."""

_WEIGHTS = (
    "a mapping of values to weights, such as {high: 3, low: 1}; a weight is a number or a schedule "
    "(a mapping with 'points')"
)
WEIGHTS_SCHEMA = {
    "description": _WEIGHTS,
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {
        "anyOf": [
            {"type": "number", "minimum": 0},
            {"type": "object", "required": ["points"]},
        ]
    },
}


def weights_by_value(value: Any, schedule: type[Table]) -> dict[Any, Any]:
    """The weights of values; mappings among them are read as the table `schedule` of a schedule.

    Raises `ConfigError` that says what was expected.
    """
    if not isinstance(value, Mapping) or not value:
        hint = "; the share of an entry in its blend is 'weight'" if _is_number(value) else ""
        raise ConfigError(f"expected {_WEIGHTS}; got {shown(value)}{hint}")
    weights = {}
    for name, weight in value.items():
        if not isinstance(name, str | int | float):
            raise ConfigError(f"a value is a word, a number or a range; got {shown(name)}")
        if isinstance(weight, Mapping):
            weights[name] = _schedule(weight, schedule, name)
        elif not _is_number(weight) or not 0 <= weight < math.inf:
            raise ConfigError(
                f"the weight of {shown(name)} is a finite number, 0 or more, or a schedule (a "
                f"mapping with 'points'); got {shown(weight)}"
            )
        else:
            weights[name] = weight
    return weights


def property_faults(spec: Spec, weighed: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What is wrong with the keys together: at which key, and what. `weighed` are the keys of
    entries that weigh them.
    """
    if spec.by is None:
        for name in ("weights", "other"):
            if getattr(spec, name) is not None:
                yield (
                    name,
                    f"{shown(name)} belongs to a property, and no 'by' says which; the share of an "
                    "entry in its blend is 'weight'",
                )
        return
    if spec.by.startswith("subflavor."):
        yield "by", f"write {SUBFLAVORS}{spec.by.partition('.')[2]}, with an s"
    if spec.weights is None:
        yield "by", f"'by' needs 'weights': {_WEIGHTS}"
    elif not any(spec.weights.values()) and not spec.other:
        yield "weights", "all weights are 0, so nothing could ever be drawn"
    if spec.by_quotas:
        yield "by", "a property weighs samples, and this blend is mixed by quotas; remove either"
    elif weighed:
        yield (
            "by",
            f"the samples of all entries are weighed by {shown(spec.by)}, so {', '.join(weighed)} "
            "says nothing; remove it, or give 'by' to the entries",
        )


def _schedule(given: Mapping[str, Any], table: type[Table], name: Any) -> Any:
    rows = {row.name: row for row in keys_of(table)}
    for key in given:
        if key not in rows:
            raise ConfigError(f"the weight of {shown(name)}: {unknown_key(str(key), list(rows))}")
    for row in rows.values():
        if row.required and row.name not in given:
            raise ConfigError(f"the weight of {shown(name)}: the key {row.name!r} is missing")
    read = table(**{key: rows[key].read(each) for key, each in given.items()})
    return read.schedule()  # type: ignore[attr-defined]  # it is the table of a schedule


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
