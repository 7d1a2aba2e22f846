"""One item again: a restore key is where the cursor stood before it.

Keys are plain data, so they can be logged, and kept in a file:

    ("energize", position)                      an item of an indexed dataset
    ("energize", lane, lanes, state as JSON)    an item of a stream
    ("Webdataset", shard, index)                a stored sample, as it was loaded

The first two are of what a loader delivers, on any ranks and workers: a batch, a packed
sample, what passed a filter. The last is what a sample carries on its way through task
encoders.
"""

from __future__ import annotations

import copy
import json
from contextlib import closing
from typing import Any, TypeVar, cast

import numpy as np

from energize.core import limits, tree
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.failures import Failed
from energize.core.lanes import Lane
from energize.core.node import LAST_START
from energize.core.padding import with_marks
from energize.core.reader import open_lane
from energize.core.records import STORED_KEY
from energize.core.samples import Markable
from energize.core.stream import (
    MOST_COUNTED,
    State,
)
from energize.core.trace import ReadContext
from energize.core.tree import padding
from energize.core.validation import parse_json, short
from energize.errors import EnergizeError, RestoreKeyError

T = TypeVar("T")

KEY = "__restore_key__"
"""Where delivered items carry their keys, if they have a place for them."""

ITEM = "energize"
"""The first part of the key of a delivered item."""

STORED = "Webdataset"
"""The first part of the key of a stored sample."""

_READING = ReadContext()

_MOST_LANES = 2**16

_FORMS = (
    f'a restore key must be ("{ITEM}", position), '
    f'("{ITEM}", lane, lanes, state as JSON) or '
    f'("{STORED}",'
    " shard, index), with whole numbers >= 0 and lane < lanes"
)


def lane_key(lane: int, lanes: int, state: State | None) -> tuple[Any, ...]:
    """Return the key of the item that a lane of a stream gives after `state`."""
    return ITEM, lane, lanes, json.dumps(state, separators=(",", ":"))


def restore_sample(
    dataset: Dataset[T], key: Any, *, reading: ReadContext = _READING
) -> T:
    """Read the item of a restore key again.

    Samples that failed when the item was made must fail again, for the same
    substitutes.

    Args:
        dataset: The dataset that the loader delivered from.
        key: The restore key. The key of a stored sample restores the sample as loaded
            and typed, before any encoder.
        reading: How samples are read, and the effect of failures.

    Raises:
        RestoreKeyError: If the key does not belong to this dataset.

    Example:
        >>> from energize import BatchDataset, ListSource
        >>> restore_sample(
        ...     BatchDataset(ListSource("abcd"), 2, "".join), ("energize", 1)
        ... )
        'cd'
    """
    item: Any
    match tuple(key) if isinstance(key, list) else key:
        case ("Webdataset", str(shard), index) if _is_number(index, LAST_START):
            return cast("T", _stored(dataset, shard, index))
        case ("energize", position) if _is_number(position, MOST_COUNTED):
            _check_kind(dataset, key, indexed=True)
            indexed = cast("IndexedDataset[T]", dataset)
            is_padding = bool(padding(indexed, np.array([position]))[0])
            item, _ = with_marks(indexed.at([position], reading)[0], is_padding)
        case ("energize", lane, lanes, str(text)) if _is_number(
            lanes, _MOST_LANES + 1
        ) and _is_number(lane, lanes):
            _check_kind(dataset, key, indexed=False)
            item = _in_lane(dataset, Lane(lane, lanes), text, reading)
        case _:
            raise RestoreKeyError(
                f"{_FORMS}, got {short(key)}. Take it from Loader.restore_key or from "
                "the __restore_key__ of an item"
            )
    return cast("T", with_key(item, tuple(key)) if has_place(item) else item)


def _check_kind(dataset: Dataset[Any], key: Any, *, indexed: bool) -> None:
    if dataset.indexed != indexed:
        kinds = ["a stream", "indexed"]
        raise RestoreKeyError(
            f"{short(key)} is the key of an item of another dataset, which is "
            f"{kinds[indexed]}: this {type(dataset).__name__} is {kinds[not indexed]}"
        )


def has_place(item: Any) -> bool:
    """Return whether an item has a field for its restore key."""
    return isinstance(item, Markable) or (isinstance(item, dict) and KEY in item)


def with_key(item: T, key: tuple[Any, ...]) -> T:
    """Return a shallow copy with another restore key.

    Its previous key, that of the stored sample or a list of these, becomes
    `__stored_key__`.
    """
    other: Any = copy.copy(item)
    if isinstance(other, dict):
        other[STORED_KEY], other[KEY] = other[KEY], key
    else:
        object.__setattr__(other, STORED_KEY, getattr(item, KEY, None))
        object.__setattr__(other, KEY, key)
    return other  # type: ignore[no-any-return]  # of the type of `item`


def _in_lane(dataset: Dataset[T], lane: Lane, text: str, reading: ReadContext) -> T:
    subject = "the state in the restore key is"
    try:
        if len(text) > limits.JSON_BYTES:
            raise ValueError(limits.over("JSON_BYTES", len(text)))
        state = parse_json(text)
    except ValueError as error:
        raise RestoreKeyError(f"{subject} not JSON: {str(error)[:200]}") from error
    if not isinstance(state, dict | None):
        raise RestoreKeyError(f"{subject} a {type(state).__name__}, not an object")
    stream = without_loops(dataset)
    endless = tree.never_ends(dataset)
    try:
        cursor = open_lane(stream, lane, state, reading, endless=endless)
    except EnergizeError as error:
        raise RestoreKeyError(
            f"the restore key is of another dataset: {error}"
        ) from error
    with closing(cursor):
        for item in cursor:
            return cast("T", with_marks(item)[0])
    raise RestoreKeyError(
        "the restore key is of another dataset: no item comes after its state"
    )


def without_loops(dataset: Dataset[T]) -> Dataset[T]:
    """Return the dataset without an outermost node that sets the ends of loops."""
    if dataset.traits.loop.steps is not None:
        return dataset.inputs[0]
    if dataset.traits.content_only:
        return dataset.with_inputs([without_loops(dataset.inputs[0])])
    return dataset


def _stored(dataset: Dataset[Any], shard: str, number: int) -> Any:
    """Return a stored sample; what makes typed ones of raw ones is what gives them
    their keys.
    """
    matches: dict[str, tuple[Any, int, Any]] = {}
    for source, load in loads_of(dataset):
        index = source.find(shard, number) if hasattr(source, "find") else None
        if index is not None:
            matches.setdefault(source.location, (source, index, load))
    shown = short((STORED, shard, number))
    if not matches:
        raise RestoreKeyError(
            f"{shown}: the {len(dataset.sources)} sources of this dataset have no "
            f"sample {number} in a shard of this name"
        )
    if len(matches) > 1:
        names = ", ".join(sorted(matches))
        raise RestoreKeyError(
            f"{shown} names a sample in several sources: {names}. Restore it from a "
            "dataset over one of them, or restore the delivered item by the key of "
            "that"
        )
    ((source, index, load),) = matches.values()
    raw = source.read(np.array([index], dtype=np.int64))[0]
    if isinstance(raw, Failed):
        raise raw.reason
    return raw if load is None else load(raw)


def loads_of(dataset: Dataset[Any], load: Any = None) -> list[tuple[Any, Any]]:
    """Return the sources, each with the function that makes typed samples, or None."""
    function = getattr(dataset, "map_fn", None)
    load = function if getattr(function, "loads_stored", False) else load
    if not dataset.inputs:
        return [(source, load) for source in dataset.sources]
    return tree.of_sources(dataset, [loads_of(child, load) for child in dataset.inputs])


def _is_number(value: Any, stop: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < stop
