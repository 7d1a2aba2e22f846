"""The saved state of a loader: what it holds, and whether it fits."""

from __future__ import annotations

import itertools
import json
import logging
from typing import Any

from energize.cursor import State, state_field
from energize.dataset import Dataset
from energize.errors import StateError, StateMismatchError
from energize.outline import differences, functions_of, packed, unpacked

__all__ = ["packed_state", "unpacked_state"]

VERSION = 2

_DIFFERENCES_SHOWN = 20

_FUNCTIONS_KEPT = 40

_log = logging.getLogger("energize")


def packed_state(dataset: Dataset[Any], cursor: State) -> State:
    """The state to save: `version`, the outline of the `dataset`, the `functions` that are called
    on items, and the `cursor`'s state.

    The last three are texts. torch.distributed.checkpoint cuts dicts and lists into one entry for
    each leaf, and then insists on the same leaves when it loads; a text stays one entry.
    """
    return {
        "version": VERSION,
        "dataset": dataset.packed_outline,
        "functions": json.dumps(functions_of(dataset)[:_FUNCTIONS_KEPT]),
        "cursor": packed(cursor),
    }


def unpacked_state(dataset: Dataset[Any], saved: object, *, strict: bool = True) -> State:
    """The cursor's state in a saved one.

    Raises `StateMismatchError` when it was saved over another dataset, `StateError` when it is not
    a state of this version at all. Without `strict` differences are warnings, as are functions of
    other names, which change no order, in any case.
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
    cursor = unpacked(state_field(saved, "cursor", str), "cursor")
    found = _mismatches(dataset, saved, cursor)
    if found:
        shown = "\n".join(f"  {each}" for each in found[:_DIFFERENCES_SHOWN])
        more = len(found) - _DIFFERENCES_SHOWN
        text = (
            "the saved state belongs to another dataset, and positions in that one mean nothing in "
            f"this one:\n{shown}{f'{chr(10)}  and {more} more' if more > 0 else ''}"
        )
        if strict:
            raise StateMismatchError(
                f"{text}\nBuild the dataset as it was, start without the state, or go on all the "
                "same with load_state_dict(state, strict=False)"
            )
        _log.warning("%s\n  (it goes on all the same: strict=False)", text)
    _warn_of_functions(dataset, saved)
    return cursor


def _mismatches(dataset: Dataset[Any], saved: State, cursor: State) -> list[str]:
    trees = differences(state_field(saved, "dataset", str), dataset)
    if trees is None:
        return []
    found = list(itertools.islice(dataset.mismatches(*trees, cursor), 1000))
    unnamed = "something of its settings is different (a state of so wide a mix does not keep what)"
    return found or ([] if dataset.forgives_later_changes else [unnamed])


def _warn_of_functions(dataset: Dataset[Any], saved: State) -> None:
    text = saved.get("functions")
    try:
        before = json.loads(text) if isinstance(text, str) else []
    except (ValueError, RecursionError):
        before = []
    now = functions_of(dataset)[:_FUNCTIONS_KEPT]
    if not isinstance(before, list) or before == now:
        return
    gone = [str(each) for each in before if each not in now]
    new = [each for each in now if each not in before]
    _log.warning(
        "the saved state was made with other functions than this dataset has: gone %s; new %s. The "
        "order of the samples does not depend on them",
        ", ".join(gone) or "none",
        ", ".join(new) or "none",
    )
