"""Saved states that tell whether they were changed: a check value over all that they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from energize.core import limits
from energize.core.checks import whole_number
from energize.core.description import digest
from energize.core.stream import State
from energize.errors import StateError, nearest

VERSION = 4

FIELDS = ("digest", "dataset", "details", "cursor")
"""The texts of a state."""

_DIGITS = 16


def sealed(texts: Mapping[str, str]) -> State:
    """A state that holds these `FIELDS`: with the version of its form, and its check value."""
    held = {name: texts[name] for name in FIELDS}
    return {"version": VERSION, **held, "check": _check(held)}


def checked_state(saved: object) -> State:
    """A state as it was saved; `StateError` for one that was changed since, and for what is none.

    The check value tells damage, not malice: it is no signature. So what the texts hold is looked
    at when they are read all the same.
    """
    if not isinstance(saved, Mapping):
        raise StateError(
            f"a loader's state is the dict that state_dict() returned; got {type(saved).__name__}"
        )
    _check_version(saved)
    for name in saved:
        if name not in ("version", *FIELDS, "check"):
            raise StateError(
                f"the saved state has {str(name)[:80]!r}, and a state has no such field"
                f"{nearest(str(name)[:80], FIELDS)}; load what state_dict() returned, as it is"
            )
    texts = {name: _text(saved, name) for name in FIELDS}
    if _text(saved, "check") != _check(texts):
        raise StateError(
            "the saved state was changed or damaged since it was saved: its check value is another "
            "one. Load another copy of it, or the state saved before it. No state can be edited by "
            'hand: to go on in an edited mix, load it with on_mismatch="remap" or write it anew '
            "with `energize state remap`; for other weights use set_weights"
        )
    return {"version": VERSION, **texts}


def _check_version(saved: Mapping[Any, Any]) -> None:
    version = whole_number(saved.get("version"))
    if version is None:
        raise StateError(
            f"the saved state has no usable 'version': expected a whole number, found "
            f"{str(saved.get('version'))[:80]!r}"
        )
    if version != VERSION:
        shown = version if abs(version) < 10**9 else "of many digits"
        raise StateError(
            f"the saved state has version {shown}, this energize reads version {VERSION}; resume "
            "with the energize that saved it"
        )


def _text(saved: Mapping[Any, Any], name: str) -> str:
    value = saved.get(name)
    if not isinstance(value, str):
        found = "nothing" if value is None else type(value).__name__
        raise StateError(f"the saved state has no usable {name!r}: expected str, found {found}")
    if len(value) > limits.JSON_BYTES:
        raise StateError(f"the saved state's {name!r}: {limits.over('JSON_BYTES', len(value))}")
    return value


def _check(texts: Mapping[str, str]) -> str:
    return digest([texts[name] for name in FIELDS])[:_DIGITS]
