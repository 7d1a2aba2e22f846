"""Resuming an edited mix from a saved state.

Every source that is still in the mix keeps its position.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from energize.core import tree
from energize.core.blends import (
    MOST_PARTS,
    Change,
    Edits,
    Move,
    PartPosition,
    ReadMix,
    moved,
    part_positions,
    read_mix,
    round_of,
)
from energize.core.config import (
    Tree,
    config_tree,
    leaf_names,
    packed,
    shares_of,
    weights_of,
)
from energize.core.dataset import Dataset
from energize.core.lanes import Lane, is_first_rank
from energize.core.reader import open_lane
from energize.core.restoring import without_loops
from energize.core.stream import (
    State,
    counter_field,
    state_field,
)
from energize.core.trace import SILENT
from energize.errors import (
    StateError,
)
from energize.loader.position import StreamPosition

_log = logging.getLogger("energize")

_SHOWN = 20


_TRIES = 8
_MOST_LEFT_OUT = 32

_OF_THE_MIX = ("places", "slot", "moves", "changes", "cursors")
"""Fields of a cursor that describe the previous mix."""

_COUNTS = ("epoch", "taken", "called", "calls", "before", "position")
"""Counter fields of lane states; independent of the inputs."""


@dataclass(frozen=True)
class RemapReport:
    """The sources of a saved state in an edited mix, by name.

    Attributes:
        kept: Samples, or items of a stream, delivered of each source that continues.
        added: New sources, which begin.
        dropped: Samples delivered of each source that was removed.
        restarted: Sources that begin again: they have the name of a removed source, but
            other samples, another seed or another shuffle.
        reweighted: The saved and the new share of each source with another share, as
            far as the state contains them.
        ended: Number of changes of weights during the run, which the weights of the mix
            replace.
        left_out: Number of samples that each source skips. Not 0 only if shares are
            those of costs, mixes are nested, and no exact position exists.
    """

    kept: Mapping[str, int]
    added: tuple[str, ...]
    dropped: Mapping[str, int]
    restarted: tuple[str, ...]
    reweighted: Mapping[str, tuple[float, float]]
    ended: int
    left_out: int = 0

    def lines(self) -> list[str]:
        """Return one line for each source and each changed share."""
        lines = [
            f"{name}: goes on after {count:,} samples"
            for name, count in self.kept.items()
        ]
        lines += [f"{name}: added, starts at its beginning" for name in self.added]
        other = "its samples or their order changed, starts at its beginning"
        lines += [f"{name}: {other}" for name in self.restarted]
        lines += [
            f"{name}: dropped after {n:,} samples" for name, n in self.dropped.items()
        ]
        for name, (saved, current) in self.reweighted.items():
            lines.append(f"{name}: share {saved:.4g} -> {current:.4g}")
        if self.left_out:
            lines.append(
                f"each source leaves out {self.left_out} of its samples, see left_out"
            )
        if self.ended:
            changes = "change" if self.ended == 1 else "changes"
            lines.append(
                f"{self.ended} {changes} of weights, made while it ran, not kept"
            )
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def remapped(
    dataset: Dataset[Any], saved: Tree, cursor: State, replaced: Sequence[Any] = ()
) -> tuple[State, RemapReport]:
    """Compute the cursor from which a run resumes in an edited mix.

    The position stays, so steps, schedules and loops continue.

    Args:
        dataset: The edited mix.
        saved: The config of the dataset in the state.
        cursor: The cursor in the state.
        replaced: Sources with changed files. They begin again.

    Returns:
        The cursor in the edited mix, and a report of the sources.

    Raises:
        StateError: If the positions of sources are unknown, or not valid in this
            dataset.
    """
    saved_counts = _saved_places(cursor)
    lanes = StreamPosition.loaded(cursor) if "lanes" in cursor else None
    _check_comparable(dataset, lanes)
    position = counter_field(cursor, "position")
    cursor = _next_windows(dataset, cursor, position)
    dataset = tree.anchored_at(dataset, tree.anchors_in(dataset, cursor))
    mix, parts, begin = _new_places(dataset, cursor, lanes)
    saved_counts = _without(saved_counts, parts, replaced)
    _check_continues(parts, saved_counts)
    node = dataset
    items = position
    if mix is not None and lanes is not None:
        node = mix.node
        items = begin * lanes.lanes
    moves, left_out = _moves(node, items, parts, saved_counts)
    remaining = _without_keys(cursor, _OF_THE_MIX)
    remaining |= Edits(moves=tuple(moves)).saved()
    if lanes is None:
        _check_settled(dataset, position, parts)
    else:
        edited = moved(dataset, {move.part: move for move in moves})
        order = _old_numbers(parts, saved_counts)
        remaining["cursors"] = _remap_lanes(
            edited, lanes, order, begin if mix else None
        )
    report = replace(
        _report(dataset, saved, cursor, saved_counts, parts), left_out=left_out
    )
    if is_first_rank():
        text = "a saved state resumes in an edited mix:\n  %s"
        _log.warning(text, "\n  ".join(report.lines()))
    return remaining, report


def _next_windows(dataset: Dataset[Any], cursor: State, position: int) -> State:
    """Return a cursor with anchors of the edited mix.

    Its plans of packs and batches begin with a new window. The samples of the started
    window count as taken, and those that were not delivered are left out.
    """
    remaining = _without_keys(cursor, ["anchors"])
    if not (dataset.indexed and dataset.anchored and position):
        return remaining
    saved = tree.saved_anchors(cursor) if "anchors" in cursor else {}
    window = 1 + max((window for window, _ in saved.values()), default=-1)
    return remaining | {"anchors": tree.anchors_of_windows(dataset, position, window)}


def _without_keys(state: State, keys: Sequence[str]) -> State:
    return {name: value for name, value in state.items() if name not in keys}


def _old_numbers(
    parts: Sequence[PartPosition], saved: Mapping[str, int]
) -> list[int | None]:
    """Return the number that each part had in the saved mix; None if it is new."""
    numbers = {digest: number for number, digest in enumerate(saved)}
    return [numbers.get(part.digest) for part in parts]


def _saved_places(cursor: State) -> dict[str, int]:
    """Return the number of items of each part in the saved run."""
    saved_counts = cursor.get("places")
    if not isinstance(saved_counts, dict):
        raise StateError(
            "the saved state has no positions of sources: its mix has more than "
            f"{MOST_PARTS} sources, or its epochs end. Resume the unedited mix"
        )
    for name in saved_counts:
        counter_field(saved_counts, name)
    return saved_counts


def _check_comparable(dataset: Dataset[Any], lanes: StreamPosition | None) -> None:
    """Raise `StateError` for a dataset that cannot resume another one's state."""
    if not tree.never_ends(dataset):
        raise StateError(
            f"{type(dataset).__name__} ends, and its content decides the end of an "
            "epoch, so an edited mix cannot resume in the middle of one. Finish the "
            "epoch, or repeat it forever (RepeatDataset, stop='restart')"
        )
    if dataset.indexed != (lanes is None):
        raise StateError(
            "one of the saved state and this dataset is a stream, the other is "
            "indexed: a filter or packing was added or removed. Start it without the "
            "state"
        )


def _check_continues(
    parts: Sequence[PartPosition], saved_counts: Mapping[str, int]
) -> None:
    """Raise `StateError` if no part of the new mix was in the saved one."""
    if any(part.digest in saved_counts for part in parts):
        return
    names = ", ".join(part.name for part in parts[:_SHOWN])
    raise StateError(
        "no source of the saved state is in this mix, with the same samples in the "
        f"same order. The mix has {names}. (In stages, and below filters before a mix, "
        "only whole stages and filters are compared.) Start it without the state"
    )


def _new_places(
    dataset: Dataset[Any], cursor: State, lanes: StreamPosition | None
) -> tuple[ReadMix | None, list[PartPosition], int]:
    """Locate the mix in a dataset.

    Returns:
        The mix, if it is below a reading node. The positions of its parts after a read
        from the beginning. The round that lanes begin with.
    """
    mix = read_mix(dataset)
    if (mix is not None) != ("slot" in cursor):
        raise StateError(
            "only one of the mix of the saved state and this mix is below packing, a "
            "filter or the like. Start it without the state"
        )
    if mix is None or lanes is None:
        return None, part_positions(dataset, counter_field(cursor, "position")), 0
    begin = -(-counter_field(cursor, "slot") // lanes.lanes)
    return mix, part_positions(mix.node, begin * lanes.lanes), begin


def _moves(
    dataset: Any, items: int, new: Sequence[PartPosition], old: Mapping[str, int]
) -> tuple[list[Move], int]:
    """Compute the moves that bring each part to its saved position.

    If shares are those of costs, a cheap part of a nested mix may have been due
    earlier. All parts then skip samples.

    Returns:
        The moves, and the number of samples that each part skips.

    Raises:
        StateError: If there is no such position.
    """
    for left_out in range(_MOST_LEFT_OUT + 1):
        targets = {part.digest: old.get(part.digest, 0) + left_out for part in new}
        moves = _moves_to(dataset, items, new, targets)
        if moves is not None:
            return moves, left_out
    raise StateError(
        f"after {items} items this mix has no position at which all sources can "
        "resume, because of their costs. Remap a state of another step"
    )


def _moves_to(
    dataset: Any, items: int, parts: Sequence[PartPosition], targets: Mapping[str, int]
) -> list[Move] | None:
    """Search the moves that bring each part to its target; None if there are none."""
    starts = {part.digest: part.items for part in parts}
    for _ in range(_TRIES):
        moves = {
            digest: Move(digest, start, targets[digest])
            for digest, start in starts.items()
            if start != targets[digest]
        }
        reached = parts
        if moves:
            anchored = tree.anchored_of(dataset, items)
            continued = tree.anchored_at(moved(dataset, moves), anchored)
            reached = part_positions(continued, items)
        excess = {part.digest: part.items - targets[part.digest] for part in reached}
        if not any(excess.values()):
            return list(moves.values())
        starts = {
            digest: max(start + excess[digest], 0) for digest, start in starts.items()
        }
    return None


def _without(
    old: Mapping[str, int], new: Sequence[PartPosition], replaced: Sequence[Any]
) -> dict[str, int]:
    """Return saved counts; those of parts with replaced sources match no new part."""
    gone = {source.identity for source in replaced}
    replaced_digests = {
        part.digest
        for part in new
        if gone & {source.identity for source in part.sources}
    }
    return {
        f"{name}, replaced" if name in replaced_digests else name: n
        for name, n in old.items()
    }


def _check_settled(
    dataset: Dataset[Any], position: int, parts: Sequence[PartPosition]
) -> None:
    """Raise `StateError` if the next item was composed earlier, from samples already
    counted.
    """
    if [part.items for part in part_positions(dataset, position + 1)] == [
        part.items for part in parts
    ]:
        raise StateError(
            "the saved state is in the middle of a global batch that was levelled for "
            "the earlier mix. Remap a state after a whole global batch"
        )


def _remap_lanes(
    dataset: Dataset[Any],
    state: StreamPosition,
    order: Sequence[int | None],
    begin: int | None,
) -> str:
    """Return the states of lanes in an edited mix.

    Args:
        dataset: The edited mix.
        state: The saved position.
        order: The saved number of each input; None if it is new.
        begin: The round in which lanes begin; None if they read the mix as a whole.
    """
    stream = without_loops(dataset)
    cursors: list[State | None] = []
    for lane in range(state.lanes):
        saved = state.cursors.get(lane)
        if saved is None and begin is None:
            cursors.append(None)
            continue
        with closing(
            open_lane(stream, Lane(lane, state.lanes), None, SILENT, endless=True)
        ) as new:
            tree = _remap_state(new.state(), saved or {}, order)
        if begin is not None:
            round_of(tree)["round"] = begin
        cursors.append(tree)
    return packed({"cursors": cursors if state.cursors else []})


def _remap_state(fresh: State, saved: State, order: Sequence[int | None]) -> State:
    """Return a fresh state with the counters and kept inputs of a saved state."""
    counts = {
        name: saved.get(name, value) for name, value in fresh.items() if name in _COUNTS
    }
    if "inputs" in fresh:
        inputs = state_field({"inputs": [], **saved}, "inputs", list)
        by_number: dict[int | None, Any] = dict(enumerate(inputs))
        return fresh | counts | {"inputs": [by_number.get(number) for number in order]}
    if "input" in fresh:
        inner = state_field({"input": {}, **saved}, "input", dict)
        counts["input"] = _remap_state(fresh["input"], inner, order)
    return fresh | counts


def _report(
    dataset: Dataset[Any],
    saved: Tree,
    cursor: State,
    saved_counts: Mapping[str, int],
    parts: Sequence[PartPosition],
) -> RemapReport:
    changes = Edits.loaded(cursor).changes
    dropped = _dropped(saved, saved_counts, parts)
    names = _source_names(parts)
    labels = {name: label for label, name in names.items()}
    new = [part.name for part in parts if part.digest not in saved_counts]
    restarted = [name for name in new if names[name] in dropped]
    restarted_names = [name for name, label in labels.items() if label in restarted]
    return RemapReport(
        kept=_continued_counts(parts, saved_counts),
        added=tuple(_without_names(new, restarted)),
        dropped=_without_keys(dropped, restarted_names),
        restarted=tuple(restarted),
        reweighted=_reweighted(dataset, saved, changes, labels),
        ended=len(changes),
    )


def _source_names(parts: Sequence[PartPosition]) -> dict[str, str]:
    """Return the source names of each part, which configs use, by its label."""
    return {
        part.name: ", ".join([source.name for source in part.sources]) for part in parts
    }


def _continued_counts(
    parts: Sequence[PartPosition], saved_counts: Mapping[str, int]
) -> dict[str, int]:
    """Return the counts of the parts that the saved mix had, by label."""
    return {
        part.name: saved_counts[part.digest]
        for part in parts
        if part.digest in saved_counts
    }


def _without_names(names: Sequence[str], left_out: Sequence[str]) -> list[str]:
    return [name for name in names if name not in left_out]


def _reweighted(
    dataset: Dataset[Any],
    saved: Tree,
    changes: Sequence[Change],
    labels: Mapping[str, str],
) -> dict[str, tuple[float, float]]:
    """Return the old and new shares that differ, by the label of the part."""
    old_shares = shares_of(_last_weights(saved, changes))
    new_shares = shares_of(weights_of(config_tree(dataset)))
    return {
        labels.get(name, name): (old_shares[name], share)
        for name, share in new_shares.items()
        if name in old_shares and not math.isclose(old_shares[name], share)
    }


def _dropped(
    saved: Tree, saved_counts: Mapping[str, int], parts: Sequence[PartPosition]
) -> dict[str, int]:
    """Return the counts of the saved parts that were removed, by source names."""
    digests = {part.digest for part in parts}
    names = _names(saved, saved_counts)
    return {
        name: count
        for name, (digest, count) in zip(names, saved_counts.items(), strict=True)
        if digest not in digests
    }


def _last_weights(saved: Tree, changes: Sequence[Change]) -> dict[str, Any]:
    """Return the last weights of the outermost blend of a saved run."""
    weights: dict[str, Any] = dict(weights_of(saved))
    for change in changes:
        if not change.blend and set(change.weights) == set(weights):
            weights = dict(change.weights)
    return weights


def _names(tree: Any, old: Mapping[str, int]) -> Iterator[str]:
    """Yield the names of the parts of a saved state, or their digests if unknown."""
    names = list(leaf_names(tree))
    has_names = len(names) == len(old)
    yield from names if has_names else (f"source {digest}" for digest in old)
