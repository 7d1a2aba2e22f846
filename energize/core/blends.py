"""Blends in a tree of datasets: found by name, how far a run has come in them, others
in their places.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from energize.core import limits, tree
from energize.core.arrays import Int64Array
from energize.core.checks import real_number, whole_number
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.failures import Failed
from energize.core.node import LAST_START, NodeTraits, Routes, Span, StreamTraits
from energize.core.rng import derive
from energize.core.stream import (
    MOST_COUNTED,
    LaneStream,
    MixStream,
    Opening,
    State,
    counter_field,
    state_field,
)
from energize.core.trace import (
    Request,
)
from energize.core.validation import short
from energize.errors import ConfigError, StateError, WeightError, nearest

Way = tuple[int, ...]
"""From the outermost dataset to one below it: the number of an input, again and
again."""

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class NamedBlend:
    """A blend in a tree of datasets.

    Attributes:
        name: The names of the inputs of mixes on the way to it, such as "texts/code";
            "" for the outermost blend.
        way: The way to it.
        blend: The dataset.
        unnamed: The name if no entry of the mix had one.
    """

    name: str
    way: Way
    blend: Any
    unnamed: str = ""

    @property
    def label(self) -> str:
        """The blend in messages."""
        return f"blend {self.name!r}" if self.name else "the blend"


def blends_in(dataset: Dataset[Any]) -> list[NamedBlend]:
    """Return every blend with changeable weights, outermost first."""
    return list(_blends(dataset, ("", ""), ()))


def _blends(node: Any, above: tuple[str, str], way: Way) -> Iterator[NamedBlend]:
    """Yield the blends in a node under its name, with and without names of entries."""
    if callable(getattr(node, "with_weights_from", None)):
        yield NamedBlend(above[0], way, node, above[1])
    inputs = node.inputs
    if len(inputs) == 1:
        yield from _blends(inputs[0], above, (*way, 0))
        return
    names = getattr(node, "names", None) or list(map(str, range(len(inputs))))
    pairs = zip(names, getattr(node, "unnamed", names), strict=True)
    for number, (child, (name, unnamed)) in enumerate(zip(inputs, pairs, strict=True)):
        if child.inputs:  # no source: most of a wide mix
            below = _joined(above[0], name), _joined(above[1], unnamed)
            yield from _blends(child, below, (*way, number))


def _joined(group: str, name: object) -> str:
    return f"{group}/{name}" if group else str(name)


def chosen_blend(
    dataset: Dataset[Any], weights: Mapping[str, float], name: str | None
) -> NamedBlend:
    """Return the blend to change the weights of.

    Args:
        dataset: The outermost dataset.
        weights: The new weights by name.
        name: The name of the blend. None for the only blend, or the one with the names
            of the weights as inputs.

    Raises:
        ConfigError: If there is no such blend, or several.
        WeightError: If the weights do not name the inputs of the blend.
    """
    blends = blends_in(dataset)
    if not blends:
        raise ConfigError(
            f"{type(dataset).__name__} has no blend whose weights could change: "
            "a BlendDataset is missing. Quotas and concatenations have no weights"
        )
    if name is not None:
        matches = [blend for blend in blends if blend.name == name]
        names = [blend.name for blend in blends]
        fault = f"this dataset has no blend {name!r}{nearest(name, names)}"
    else:
        matches = _blends_over(blends, weights)
        fault = (
            f"there are {len(blends)} blends, and {', '.join(map(repr, weights))} are "
            f"the names of {'several' if matches else 'none'} of them. Select one with "
            "blend=."
        )
    if len(matches) != 1:
        raise ConfigError(f"{fault} There are {_listed(blends)}")
    _check_names(matches[0], weights)
    return matches[0]


def _blends_over(
    blends: list[NamedBlend], weights: Mapping[str, float]
) -> list[NamedBlend]:
    """Return the only blend, or those with inputs of the names of the weights."""
    if len(blends) == 1:
        return blends
    return [blend for blend in blends if set(blend.blend.names) == set(weights)]


def _check_names(match: NamedBlend, weights: Mapping[str, float]) -> None:
    names = match.blend.names
    groups = {name: group_of(name, weights) for name in names}
    missing = [name for name, group in groups.items() if group is None]
    extra = [name for name in weights if name not in groups.values()]
    if missing or extra:
        raise _name_error(match, missing, extra)


def _name_error(
    match: NamedBlend, missing: Sequence[str], extra: Sequence[str]
) -> WeightError:
    names = match.blend.names
    faults = []
    if missing:
        faults.append(f"missing {', '.join(map(repr, missing[:_SHOWN]))}")
    if extra:
        shown = [
            f"{name!r}{nearest(str(name), missing or names)}" for name in extra[:_SHOWN]
        ]
        faults.append(f"unknown {', '.join(shown)}")
    return WeightError(
        f"weights of {match.label} need a value for every source, by name: "
        f"{'; '.join(faults)}. Its sources are {', '.join(names[:_SHOWN])}"
        f"{', ...' if len(names) > _SHOWN else ''}"
    )


def group_of(name: str, weights: Mapping[str, float]) -> str | None:
    """Return what of some names a name is, or is below, as "texts/code" is below
    "texts".
    """
    while name not in weights:
        name, slash, _ = name.rpartition("/")
        if not slash:
            return None
    return name


_LEAST_OF_GROUP = 1e-300
"""Lower bound of the weight of a part of a group, whatever its share."""


def ungrouped(blend: Any, weights: Mapping[str, float], slot: int) -> dict[str, float]:
    """Return a weight for each name of a blend.

    The weight of a group, such as a flattened blend, is divided among its parts in
    their proportions at a slot.
    """
    if set(weights) == set(blend.names):
        return dict(weights)
    if max(weights.values()) < _LEAST_OF_GROUP:
        raise WeightError(
            "weights of groups are divided among their parts, and the largest weight "
            f"is {max(weights.values()):g}, less than {_LEAST_OF_GROUP:g}. Multiply "
            "all of them by one number"
        )
    shares = blend.by_name(blend.shares(slot))
    groups: dict[str, list[str]] = {}
    for name in blend.names:
        groups.setdefault(group_of(name, weights) or name, []).append(name)
    divided: dict[str, float] = {}
    for group, names in groups.items():
        divided |= _divided(weights[group], {name: shares[name] for name in names})
    return {name: divided[name] for name in blend.names}


def _divided(weight: float, shares: Mapping[str, float]) -> dict[str, float]:
    """Return the weight of a group divided among its parts, by their shares."""
    if len(shares) == 1:
        return dict.fromkeys(shares, weight)
    total = sum(shares.values())
    if not total:
        return dict.fromkeys(shares, weight * (1 / len(shares)))
    return {name: weight * (share / total) for name, share in shares.items()}


def same_shares(weights: Mapping[str, float], target: Mapping[str, float]) -> bool:
    """Return whether weights have the shares of a target, which may name groups."""
    sums = dict.fromkeys(target, 0.0)
    for name, weight in weights.items():
        group = group_of(name, target)
        if group is None:
            return False
        sums[group] += weight
    totals = sum(sums.values()), sum(target.values())
    return all(totals) and all(
        math.isclose(sums[name] / totals[0], target[name] / totals[1], abs_tol=1e-12)
        for name in target
    )


MOST_WEIGHT = 1e300
"""The largest weight of a change."""


def numbers_by_name(weights: object) -> dict[str, float]:
    """Return the weights of a change by name, as numbers that a state can hold.

    The same check holds for weights that are set and for those of a saved state.

    Args:
        weights: A mapping of names to numbers of any type.

    Returns:
        The weights by name, as int or float, in their order.

    Raises:
        WeightError: If it is not a mapping, if a name is given twice, if a weight is
            not a number from 0 to `MOST_WEIGHT`, or if all weights are 0.

    Example:
        >>> import numpy as np
        >>> numbers_by_name({"web": np.int64(3), "code": 0.5})
        {'web': 3, 'code': 0.5}
    """
    if not isinstance(weights, Mapping) or not weights:
        raise WeightError(
            "weights that change during a run must be a dict {name: number}, got "
            f"{short(weights)}"
        )
    numbers: dict[str, float] = {}
    for key, weight in weights.items():
        name = str(key)
        if name in numbers:
            raise WeightError(f"weights: {name!r} is given twice. Pass each name once")
        numbers[name] = _plain_weight(weight, name)
    if not any(numbers.values()):
        raise WeightError(
            f"all {len(numbers)} weights are 0, so no sample could be drawn. Set "
            "one above 0"
        )
    return numbers


def _plain_weight(weight: object, name: str) -> float:
    number = real_number(weight)
    try:
        value = math.nan if number is None else float(number)
    except OverflowError:
        value = math.inf
    vanishes = bool(number) and not value
    if vanishes or not 0 <= value <= MOST_WEIGHT:
        raise WeightError(
            f"the weight of {name!r} must be a finite number >= 0 and at most "
            f"{MOST_WEIGHT:g}, got {short(weight)}. For weights that follow a plan, "
            "write a Schedule in the mix"
        )
    whole = whole_number(number)
    return value if whole is None else whole


def checked_request(
    weights: object, at_step: object, blend: object
) -> tuple[dict[str, float], int | None, str | None]:
    """Return the arguments of `Loader.set_weights` as plain values.

    Args:
        weights: Weights by name, see `numbers_by_name`.
        at_step: The first step with these weights; None for the next one.
        blend: The name of the blend; None to select it by the names of the weights.

    Returns:
        Weights, step and name.

    Raises:
        WeightError: If no change can have the weights.
        ConfigError: If `at_step` is out of range, or `blend` is not text.

    Example:
        >>> checked_request({"web": 3}, 2000, None)
        ({'web': 3}, 2000, None)
    """
    numbers = numbers_by_name(weights)
    step = None if at_step is None else whole_number(at_step, 0)
    if at_step is not None and step is None:
        raise ConfigError(
            f"at_step must be a whole number >= 0 or None, got {short(at_step)}"
        )
    if step is not None and step >= MOST_COUNTED:
        raise ConfigError(
            f"at_step={short(at_step)} is after the last step that a run can count, "
            f"{MOST_COUNTED - 1}. Set an earlier one"
        )
    if blend is not None and not isinstance(blend, str):
        raise ConfigError(
            f"blend must be the name of a blend or None, got {short(blend)}"
        )
    return numbers, step, blend


def _listed(blends: Sequence[NamedBlend]) -> str:
    shown = [
        f"{blend.name!r} over {', '.join(blend.blend.names[:4])}"
        for blend in blends[:_SHOWN]
    ]
    return "; ".join(shown) + ("; ..." if len(blends) > _SHOWN else "")


def blend_called(dataset: Dataset[Any], name: str) -> NamedBlend | None:
    """Return the blend of a name, or None."""
    return next((blend for blend in blends_in(dataset) if blend.name == name), None)


def with_names_of(dataset: Dataset[Any], cursor: State) -> State:
    """Return a saved cursor with the names of a dataset in its changes of weights.

    Entries of a mix may have been named since; then the saved names are the unnamed
    ones.
    """
    edits = Edits.loaded(cursor)
    changes = []
    for change in edits.changes:
        renamed = change
        for match in blends_in(dataset):
            names = dict(zip(match.blend.unnamed, match.blend.names, strict=True))
            if match.unnamed == change.blend and names.keys() == change.weights.keys():
                weights = {
                    names[name]: weight for name, weight in change.weights.items()
                }
                renamed = replace(change, blend=match.name, weights=weights)
        changes.append(renamed)
    return cursor | replace(edits, changes=tuple(changes)).saved()


def replaced(dataset: Any, way: Way, blend: Any) -> Any:
    """Return the same tree with another blend at the end of the way."""
    if not way:
        return blend
    inputs = list(dataset.inputs)
    inputs[way[0]] = replaced(inputs[way[0]], way[1:], blend)
    return dataset.with_inputs(inputs)


def slot_after(dataset: Any, way: Way, items: int) -> int | None:
    """Return the number of slots of a blend that the first `items` items use.

    Returns:
        The number of slots; None if it is unknown without reading; at least
        `LAST_START` if it cannot be computed.
    """
    for number in way:
        if items >= LAST_START:
            break
        reached = dataset.reached(items)
        if reached is None:
            return None
        items = reached[number]
        dataset = (dataset.children if dataset.indexed else dataset.inputs)[number]
    return items


T_co = TypeVar("T_co", covariant=True)


class ContinuedDataset(IndexedDataset[T_co]):
    """Another dataset, with its item `read` at position `since`, and so on.

    It continues where a run, or an earlier stage of one, stopped. Earlier positions are
    unchanged, and do not count. For a stage, `afresh` gives users' functions new random
    draws.
    """

    order_name = "ContinuedDataset"

    since: int
    read: int
    afresh: bool

    def __init__(
        self, dataset: Dataset[T_co], since: int, read: int, *, afresh: bool = False
    ) -> None:
        self.freeze(inputs=[dataset], since=since, read=read, afresh=afresh)

    @cached_property
    def key(self) -> int:
        inner = self.inputs[0].key
        return derive("AdvancedDataset", inner, self.read) if self.afresh else inner

    @cached_property
    def traits(self) -> NodeTraits:
        return NodeTraits(
            makes=True,
            stream=StreamTraits(divisible=self.inputs[0].traits.stream.divisible),
        )

    def route(self, positions: Int64Array) -> Routes:
        later = positions + (self.read - self.since)
        return Routes(
            np.where(positions < self.since, positions, later) if self.since else later
        )

    def spans(self, n: int) -> tuple[Sequence[Span], int]:
        return [Span(0, self.read, self.read + max(n - self.since, 0))], n

    def anchor_items(self, n: int) -> list[int]:
        return [n if n < self.since else n - self.since + self.read]

    def make(self, items: list[Any], request: Request) -> list[T_co | Failed]:
        first = int(request.positions.min(initial=self.since))
        if first < self.since:
            raise StateError(
                f"item {first} of {self.sources[0].name!r} was read before the mix "
                "was edited. Look it up in the mix before the edit"
            )
        return items

    def open_pass(self, opening: Opening) -> LaneStream[T_co]:
        inputs = None if opening.state is None else {"inputs": [opening.state]}
        inside = opening._replace(state=inputs)
        return _ContinuedStream(self.route, self.inputs, inside, addressed=True)


class _ContinuedStream(MixStream[Any]):
    """Use the states of the input, so that another mix can resume from them."""

    def state(self) -> State:
        return cast("State", self._inputs[0].state())


_DIGITS = 8

MOST_PARTS = 256
"""Maximum number of parts with positions in a state."""


class PartPosition(NamedTuple):
    """How many items of a part have been taken.

    Attributes:
        digest: Identifies the order of the part.
        name: The names of its sources.
        items: The number of items.
        sources: The sources that it reads.
    """

    digest: str
    name: str
    items: int
    sources: tuple[Any, ...] = ()


class Move(NamedTuple):
    """A part of a mix that a run has read up to another position.

    By the arithmetic of the mix, `since` items were used when `read` were read: its
    item `since` is item `read`.
    """

    part: str
    since: int
    read: int


def part_positions(dataset: Any, items: int) -> list[PartPosition]:
    """Return how many items of each part the first items of a dataset take.

    Args:
        dataset: An endless dataset.
        items: Number of its items.

    Example:
        >>> from energize import BatchDataset, BlendDataset, ListSource
        >>> web, code = ListSource("ab", name="web"), ListSource("cd", name="code")
        >>> mix = BatchDataset(BlendDataset((web, 3), (code, 1)), 4, list)
        >>> [(part.name, part.items) for part in part_positions(mix, 25)]
        [('web', 75), ('code', 25)]
    """
    positions = []
    for digest, part, count in _parts_by_digest(dataset, items):
        name = ", ".join([source.label or source.name for source in part.sources])
        positions.append(PartPosition(digest, name, count, part.sources))
    return positions


def saved_part_positions(dataset: Any, items: int, lanes: Any) -> State:
    """Return what a state records about the positions of parts; see `remapped`.

    Below a node that finds its items by reading, it is the position of the lane that
    has come farthest, when that lane began its current round (`slot`).

    Args:
        dataset: The outermost dataset.
        items: Number of items that were delivered.
        lanes: The state of the lanes of a stream; None for an indexed dataset.
    """
    if len(dataset.sources) > MOST_PARTS or not tree.never_ends(dataset):
        return {}
    mix = read_mix(dataset)
    if mix is None or lanes is None:
        return {"places": _items_by_digest(dataset, items)}
    counted = [round_of(cursor) for cursor in lanes.cursors.values() if cursor]
    rounds = [counter_field(state, "round") for state in counted if state]
    slot = max(rounds, default=0) * lanes.lanes
    return {"places": _items_by_digest(mix.node, slot), "slot": slot}


def _items_by_digest(dataset: Any, items: int) -> dict[str, int]:
    return {digest: count for digest, _, count in _parts_by_digest(dataset, items)}


def _parts_by_digest(dataset: Any, items: int) -> Iterator[tuple[str, Any, int]]:
    """Yield the digest of each part, the part, and how many of its items are taken."""
    seen: dict[str, int] = {}
    for _, node, count in _parts(dataset, items):
        if type(node) is ContinuedDataset:
            part = node.inputs[0]
            yield _part_digest(part, seen), part, count + node.read - node.since
        else:
            yield _part_digest(node, seen), node, count


def round_of(tree: State) -> State:
    """Return the innermost part of a lane's state that counts rounds of a mix."""
    innermost: State = {}
    while isinstance(tree, dict):
        innermost = tree if "round" in tree else innermost
        tree = tree.get("input", None)  # type: ignore[assignment]  # the end of the way
    return innermost


def moved(dataset: Any, moves: Mapping[str, Move]) -> Any:
    """Return the same tree with parts that go on where they were left."""
    seen: dict[str, int] = {}
    mix = read_mix(dataset)
    node, above = (dataset, ()) if mix is None else mix
    for way, part, _ in _parts(node, 0):
        move = moves.get(_part_digest(part, seen))
        if move is not None:
            continued = ContinuedDataset(part, move.since, move.read)
            dataset = replaced(dataset, (*above, *way), continued)
    return dataset


class ReadMix(NamedTuple):
    """The outermost mix of a stream, `node`, and the `way` to it."""

    node: Any
    way: Way


def read_mix(dataset: Any) -> ReadMix | None:
    """Return the mix below packing, a filter or another stream.

    Returns:
        The mix, if its position is known by reading only; None if there is no mix, or
        positions determine it.
    """
    node: Any = dataset
    way: Way = ()
    while len(node.inputs) == 1:
        node = node.inputs[0]
        way = (*way, 0)
    if dataset.indexed or not node.inputs or slot_after(dataset, way, 0) is not None:
        return None
    return ReadMix(node, way)


def _parts(node: Any, items: int, way: Way = ()) -> list[tuple[Way, Any, int]]:
    """Return the parts of a mix, the way to each, and the items that it provides.

    Stops at nodes with positions that are unknown without reading, or that do not take
    items in sequence.
    """
    counts = None
    while node.traits.content_only and (node.indexed or node.sized):
        node = node.inputs[0]
        way = (*way, 0)
    several = len(node.inputs) > 1
    if several and (node.indexed or node.sized):
        counts = node.taken(items)
    elif node.inputs and not several:
        counts = node.reached(items)
    if counts is None:
        return [(way, node, items)]
    parts: list[tuple[Way, Any, int]] = []
    for number, (child, count) in enumerate(zip(node.inputs, counts, strict=True)):
        below = (*way, number)
        mixed = several and not node.indexed  # a mix of streams
        parts += [(below, child, count)] if mixed else _parts(child, count, below)
    return parts


def _part_digest(part: Any, seen: dict[str, int]) -> str:
    """Return a digest of what decides the order of a part; the second of one order has
    a number.
    """
    digest: str = part.fingerprint[:_DIGITS]
    seen[digest] = number = seen.get(digest, 0) + 1
    return digest if number == 1 else f"{digest}.{number}"


@dataclass(frozen=True, slots=True)
class Change:
    """New weights of a blend, from one of its slots on.

    A change is checked here, whether it is set or loaded from a state, so a state
    contains only changes that can be loaded again.

    Attributes:
        blend: The name of the blend.
        at: The first slot with the weights; while the change waits, an item of the run.
        weights: The new weights by name.
        waits: Whether the slot is still to be determined: earlier changes can move it,
            and in streams it is `Run.first_unread_slot` at the first step from that
            item on.
        of_file: Whether an operator's file requested the change.

    Raises:
        WeightError: If weights are invalid.
        ConfigError: If another value is invalid.
    """

    blend: str
    at: int
    weights: Mapping[str, float]
    waits: bool = False
    of_file: bool = False
    size: tuple[int, int] = field(init=False, compare=False, repr=False)
    """Characters and values of its JSON, as `limits` count them."""

    def __post_init__(self) -> None:
        if not isinstance(self.blend, str):
            raise ConfigError(
                f"a change must have the name of a blend, got {short(self.blend)}"
            )
        if type(self.waits) is not bool or type(self.of_file) is not bool:
            raise ConfigError(
                "the flags of a change, waits and of_file, must be True or False"
            )
        counted, most = ("item", MOST_COUNTED) if self.waits else ("slot", LAST_START)
        at = whole_number(self.at, 0)
        if at is None or at >= most:
            raise ConfigError(
                f"weights cannot change at {counted} {short(self.at)}; {counted}s are "
                f"0 to {most - 1}. Set an earlier at_step"
            )
        object.__setattr__(self, "at", at)
        object.__setattr__(self, "weights", numbers_by_name(self.weights))
        text = json.dumps(self.saved())
        object.__setattr__(
            self, "size", (len(text), sum(map(text.count, (",", "[", "{"))))
        )

    @classmethod
    def loaded(cls, row: list[Any]) -> Change:
        """Return the change of a row of `saved`; raise as the class does."""
        if not isinstance(row, list) or len(row) not in (4, 5) or row[4:] == [False]:
            raise ConfigError(
                "a change must have 4 values, and True for one of a file, got "
                f"{short(row)}"
            )
        return cls(*row)

    def saved(self) -> list[Any]:
        """Return the change as plain JSON, which `loaded` reads."""
        of_file = [True] if self.of_file else []
        return [self.blend, self.at, dict(self.weights), self.waits, *of_file]


@dataclass(frozen=True, slots=True)
class Edits:
    """Changes in the order of their slots, with waiting ones last, and moves."""

    changes: tuple[Change, ...] = ()
    moves: tuple[Move, ...] = ()

    def with_change(self, change: Change) -> Edits:
        """With another change; it takes the place of one at the same slot.

        Raises `ConfigError` if a state could not hold that many changes.
        """
        slot = change.blend, change.at, change.waits
        remaining = [
            edit for edit in self.changes if (edit.blend, edit.at, edit.waits) != slot
        ]
        changes = sorted([*remaining, change], key=lambda edit: (edit.waits, edit.at))
        _check_size(changes)
        return replace(self, changes=tuple(changes))

    def without(self, change: Change) -> Edits:
        """Return these edits without a change."""
        return replace(
            self, changes=tuple(edit for edit in self.changes if edit != change)
        )

    @property
    def waiting(self) -> tuple[Change, ...]:
        """The changes with slots that are still to be determined."""
        return tuple(edit for edit in self.changes if edit.waits)

    def applied(
        self,
        dataset: Dataset[Any],
        previous: Edits | None = None,
        edited: Any = None,
        anchored: tree.Anchored | None = None,
    ) -> Any:
        """Return the dataset with all changes of a known slot.

        Args:
            dataset: The dataset without edits.
            previous: Edits that `edited` has already; only later changes are added.
            edited: The dataset with `previous`.
            anchored: The anchors of the position of the run, see `tree.anchored_at`.

        Raises:
            ConfigError: If a blend is missing, or a change is invalid.
            StateError: If the anchors are damaged, or of another dataset.
        """
        begun = 0 if previous is None else len(previous.changes)
        if previous != replace(self, changes=self.changes[:begun]):
            begun = 0
            moves = {move.part: move for move in self.moves}
            edited = moved(dataset, moves) if moves else dataset
        for change in self.changes[begun:]:
            if change.waits:  # its slot is that of a later item
                edited = tree.anchored_at(edited, anchored)
            edited = with_change(edited, change)
        return tree.anchored_at(edited, anchored)

    def saved(self) -> State:
        """Return the edits as JSON-able data; empty if there are none."""
        changes = [edit.saved() for edit in self.changes]
        state = {"changes": changes, "moves": [list(edit) for edit in self.moves]}
        return {name: edits for name, edits in state.items() if edits}

    @classmethod
    def loaded(cls, cursor: State) -> Edits:
        """Create edits from a saved cursor.

        Raises:
            StateError: If the data are invalid.
        """
        if "changes" not in cursor and "moves" not in cursor:
            return NOT_EDITED
        held = {"changes": [], "moves": [], **cursor}
        try:
            changes = tuple(map(Change.loaded, state_field(held, "changes", list)))
            moves = tuple(Move(*row) for row in state_field(held, "moves", list))
        except (ConfigError, TypeError) as reason:
            raise StateError(
                f"the saved state's changes and moves are not edits of a run: {reason}"
            ) from reason
        for move in moves:
            state_field(move._asdict(), "part", str)
            counter_field(move._asdict(), "since")
            counter_field(move._asdict(), "read")
        return cls(changes, moves)


NOT_EDITED = Edits()


def with_change(dataset: Dataset[Any], change: Change) -> Any:
    """Return the dataset with one change, if its slot is known; with no other one at
    that slot.
    """
    match = blend_called(dataset, change.blend)
    if match is None:
        raise ConfigError(
            f"the weights of the blend {change.blend!r} were changed during the run, "
            "but this dataset has no blend of this name"
        )
    slot = change.at
    weights = change.weights
    blend = match.blend
    if change.waits:
        reached = slot_after(dataset, match.way, change.at)
        if reached is None:
            return dataset
        _check_names(match, weights)
        acting = Change(match.name, reached, ungrouped(blend, weights, reached))
        slot = acting.at
        weights = acting.weights
    if blend.changes[-1:] and blend.changes[-1][0] == slot:
        blend = blend.replace(changes=blend.changes[:-1])
    return replaced(dataset, match.way, blend.with_weights_from(slot, weights))


def _check_size(changes: Sequence[Change]) -> None:
    """Raise `ConfigError` for changes that take more than half of what a state may
    hold.
    """
    for counted, name in enumerate(("JSON_BYTES", "JSON_VALUES")):
        total = sum(change.size[counted] for change in changes)
        most = getattr(limits, name) // 2
        if total > most:
            raise ConfigError(
                f"weights: {len(changes)} changes of this run are too many for a saved "
                f"state, {total} of half of energize.core.limits.{name}, {most}. "
                "Change weights less often, or set a larger limit in this program and "
                "in those that load its states"
            )
