"""What a saved state holds, for people."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from energize.cli.console import Console
from energize.cli.mix_options import print_table
from energize.cli.saved_states import SavedState
from energize.core.description import leaf_names, leaves, unpacked
from energize.core.stream import State
from energize.loader.edits import Edits
from energize.loader.feeds import StreamState
from energize.loader.state import cursor_of, tree_of

_LANES_SHOWN, _WIDEST, _LONGEST = 64, 60, 80


def show_states(console: Console, alike: Sequence[SavedState]) -> None:
    """Print what states that are all the same hold."""
    first = alike[0]
    more = f" and {len(alike) - 1} more, all of them the same" if len(alike) > 1 else ""
    console.print(f"{first.place}{more}", markup=False, style="bold", soft_wrap=True)
    cursor, tree = cursor_of(first.state), tree_of(first.state)
    console.print(
        f"  version: {first.state['version']}, fingerprint: {first.state['fingerprint']}",
        markup=False,
    )
    console.print(f"  position: {_position(cursor)}", markup=False)
    console.print(f"  dataset: {tree.get('kind', 'unknown')}", markup=False)
    details = unpacked(first.state["details"], "details")
    if details.get("loop") is not None:
        console.print(f"  a loop is {details['loop']} steps", markup=False)
    names = details.get("functions", [])
    for name in map(str, names if isinstance(names, list) else []):
        told = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."
        console.print(f"  calls {told}", markup=False, soft_wrap=True)
    _show_sources(console, tree, cursor)
    for line in change_lines(cursor):
        console.print(f"  {line}", markup=False, soft_wrap=True)
    if "lanes" in cursor:
        _show_lanes(console, StreamState.loaded(cursor))


def _position(cursor: State) -> str:
    position = f"{cursor.get('position', 0):,}"
    if "lanes" not in cursor:
        return f"{position} items delivered, those of all ranks"
    return (
        f"{position} items of epoch {cursor.get('epoch')} delivered, those of all ranks; step "
        f"{cursor.get('step'):,} of the loop, {cursor['lanes']} lanes"
    )


def _show_sources(console: Console, tree: State, cursor: State) -> None:
    table = Table(title="Sources", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("name", overflow="fold", min_width=12)
    table.add_column("split", no_wrap=True)
    table.add_column("samples", justify="right", no_wrap=True)
    table.add_column("seed", justify="right", no_wrap=True)
    taken = taken_of(cursor, list(leaf_names(tree)))
    if taken:
        table.add_column("taken", justify="right", no_wrap=True)
    for number, leaf in enumerate(leaves(tree)):
        count = leaf.get("count")
        table.add_row(
            Text(str(leaf.get("name", leaf.get("kind")))),
            Text(str(leaf.get("split_part", "-"))),
            f"{count:,}" if isinstance(count, int) else "-",
            Text(str(leaf.get("seed", "-"))),
            *([f"{taken[number]:,}"] if taken else []),
        )
    print_table(console, table)


def taken_of(cursor: State, names: Sequence[str]) -> list[int]:
    """How many samples were taken of each source, where the state keeps it of all of them."""
    places = cursor.get("places")
    found = list(places.values()) if isinstance(places, dict) else []
    return found if len(found) == len(names) else []


def change_lines(cursor: State) -> list[str]:
    """A line for each change of weights that was made while the run went on."""
    lines = []
    for change in Edits.loaded(cursor).changes:
        of = f"of the blend {change.blend!r} " if change.blend else ""
        place = (
            f"item {change.at:,}, when it comes to it," if change.waits else f"slot {change.at:,}"
        )
        weights = ", ".join(f"{name} {weight:g}" for name, weight in change.weights)
        lines.append(f"weights {of}from {place} on: {weights}")
    return lines


def _show_lanes(console: Console, state: StreamState) -> None:
    table = Table(title="Lanes", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("lane", justify="right", no_wrap=True)
    table.add_column("items", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("state", overflow="fold", min_width=12)
    for lane in range(min(state.lanes, _LANES_SHOWN)):
        cursor = state.cursors.get(lane)
        if cursor is None:
            table.add_row(str(lane), "-", "-", "before its first item")
            continue
        text = json.dumps(cursor, separators=(",", ":"))
        shown = text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
        position = cursor.get("position", cursor.get("taken"))
        told = f"{position:,}" if isinstance(position, int) else "-"
        table.add_row(str(lane), told, f"{len(text):,}", Text(shown))
    print_table(console, table)
    if state.lanes > _LANES_SHOWN:
        console.print(f"  and {state.lanes - _LANES_SHOWN} more lanes")
