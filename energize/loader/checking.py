"""Whether what a saved state says can be: its numbers agree, and it says nothing else.

A state that was changed is told by its check value; this is for one whose check value was made
anew. Two things are looked at: what is opened from a state has that very state again, and what it
says twice, how many items came and how many each lane gave, it says alike.
"""

from __future__ import annotations

import json
from typing import Any

from energize.core.stream import State, counter_field
from energize.errors import StateError
from energize.loader.streams import StreamState

_COMPUTED = ("places", "slot")
"""What a state tells of a mix beside where it stands; only an edited mix goes by it."""

_CALLS = "calls"
"""How often functions were called. A run may go on with others than it was saved with."""


def check_cursor(saved: State, now: State, *, same_mix: bool) -> None:
    """Raise `StateError` unless a cursor's state is what is saved `now` that it was loaded.

    Where the mix is another one, or calls other functions, not by what is computed of that; nor by
    the step of a loop, which may have another length.
    """
    apart = {"step", "cursors", *(() if same_mix else _COMPUTED)}
    held = {name: value for name, value in saved.items() if name not in apart}
    kept = {name: value for name, value in now.items() if name not in apart}
    for name in _COMPUTED:
        if name not in held:
            kept.pop(name, None)
    _check_same(held, kept, "the state", same_mix=same_mix)


def check_lane(lane: int, saved: State, now: State, *, same_mix: bool) -> None:
    """Raise `StateError` unless the state of a lane is that from which it was opened."""
    _check_same(saved, now, f"the state of lane {lane}", same_mix=same_mix)


def check_turns(state: StreamState, size: int | None, *, partly: bool) -> None:
    """Raise `StateError` unless each lane gave an item at each of its turns in the epoch, of `size`
    items where that is known, or is over. `partly`: those of one rank, where ranks do not talk.
    """
    came = state.position if size is None else min(state.position, size)
    for lane in range(state.lanes):
        cursor = state.cursors.get(lane)
        if partly and cursor is None:
            continue
        turns = len(range(lane, came, state.lanes))
        epoch, taken = counter_field(cursor, "epoch"), counter_field(cursor, "taken")
        over = epoch == state.epoch + 1 and not taken
        if size is not None and over:
            over = turns == len(range(lane, size, state.lanes))
        if not over and (epoch, taken) != (state.epoch, turns):
            raise StateError(
                f"the saved state contradicts itself: after {state.position} items of epoch "
                f"{state.epoch} in {state.lanes} lanes, lane {lane} has given {turns} of that "
                f"epoch, and its own state says {taken} of epoch {epoch}"
            )


def _check_same(saved: State, now: State, what: str, *, same_mix: bool) -> None:
    if _text(saved) == _text(now):
        return
    where = _first_apart(saved, now, "", same_mix=same_mix)
    if where is not None:
        raise StateError(f"{what} that was saved is none that this dataset can have: {where}")


def _first_apart(saved: Any, now: Any, path: str, *, same_mix: bool) -> str | None:
    """Where two trees differ first, and how; None where they do not. Inputs of another mix may be
    new, or fewer.
    """
    if isinstance(saved, dict) and isinstance(now, dict):
        for name in {**now, **saved}:
            at = f"{path}[{name!r}]"
            if name == _CALLS and not same_mix:
                continue
            if name not in now or name not in saved:
                return f"{at[:80]} {'is missing' if name in now else 'is no part of it'}"
            found = _first_apart(saved[name], now[name], at, same_mix=same_mix)
            if found is not None:
                return found
        return None
    lists = isinstance(saved, list) and isinstance(now, list)
    if lists and (len(saved) == len(now) or not same_mix):
        pairs = enumerate(zip(saved, now, strict=False))
        lines = (_first_apart(a, b, f"{path}[{n}]", same_mix=same_mix) for n, (a, b) in pairs)
        return next((line for line in lines if line is not None), None)
    new = saved is None and not same_mix
    if new or _text(saved) == _text(now):
        return None
    return f"{path} is {_text(saved)[:80]}, and would be {_text(now)[:80]}"


def _text(tree: Any) -> str:
    return json.dumps(tree, sort_keys=True)
