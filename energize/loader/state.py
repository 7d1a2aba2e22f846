"""The saved state of a loader: what it holds, and whether it fits."""

from __future__ import annotations

import itertools
import json
from typing import Any

from energize.cursor import State, state_field
from energize.dataset import Dataset
from energize.errors import StateError, StateMismatchError

__all__ = ["packed_state", "unpacked_state"]

VERSION = 1

_DIFFERENCES_SHOWN = 20


def packed_state(dataset: Dataset[Any], cursor: State) -> State:
    """The state to save: `version`, the description of the `dataset` and the `cursor`'s state.

    The two are JSON texts. torch.distributed.checkpoint cuts dicts and lists into one entry for
    each leaf, and then insists on the same leaves when it loads; a text stays one entry.
    """
    return {
        "version": VERSION,
        "dataset": json.dumps(dataset.describe()),
        "cursor": json.dumps(cursor),
    }


def unpacked_state(dataset: Dataset[Any], saved: object) -> State:
    """The cursor's state in a saved one.

    Raises `StateMismatchError` when it was saved over another dataset, `StateError` when it is not
    a state of this version at all.
    """
    if not isinstance(saved, dict):
        raise StateError(
            f"a loader's state is the dict that state_dict() returned; got {type(saved).__name__}"
        )
    version = state_field(saved, "version", int)
    if version != VERSION:
        raise StateError(
            f"the saved state has version {version}, this energize reads version {VERSION}; resume "
            "with the energize that saved it"
        )
    cursor = _parsed(saved, "cursor")
    found = list(dataset.mismatches(_parsed(saved, "dataset"), cursor))
    if found:
        shown = "\n".join(f"  {each}" for each in itertools.islice(found, _DIFFERENCES_SHOWN))
        more = len(found) - _DIFFERENCES_SHOWN
        raise StateMismatchError(
            "the saved state belongs to another dataset, and positions in that one mean nothing in "
            f"this one:\n{shown}{f'{chr(10)}  and {more} more' if more > 0 else ''}\n"
            "Build the dataset as it was, or start without the state"
        )
    return cursor


def _parsed(saved: State, name: str) -> State:
    text = state_field(saved, name, str)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise StateError(f"the saved state's {name!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise StateError(f"the saved state's {name!r} is not a JSON object: {text[:80]}")
    return value
