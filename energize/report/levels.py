"""Levels of a mix: the named tree of its parts above the sources.

Also finds the samples of items in the rows of that tree, without reading.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from energize.core import tree
from energize.core.arrays import BoolArray, FloatArray, Int64Array, rows_by_value
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.node import MixTraits, Origin, SourceNode
from energize.core.reader import ItemOrigin
from energize.core.trace import (
    Trace,
    consumed,
)
from energize.core.tree import has_single_samples
from energize.data.selection import input_labels, source_labels
from energize.datasets.blend import BlendDataset
from energize.datasets.mix_args import numbered
from energize.datasets.quota import QuotaDataset
from energize.datasets.stages import StagedDataset

if TYPE_CHECKING:
    pass

_NAMED = 2
"""Number of sources in the name of a level without a name."""


@dataclass
class LevelNames:
    """The names of a level.

    Args:
        path: Names of the levels down to it, each unique on its level.
        explicit: The same, with None for names that the user did not set.
        source_name: Name of its source in the whole mix, see `source_names`.
    """

    path: tuple[str, ...] = ()
    explicit: tuple[str | None, ...] = ()
    source_name: str | None = None

    def below(self, name: str, *explicit: str | None) -> LevelNames:
        """Return the names of a level called `name` below this one."""
        return LevelNames((*self.path, name), (*self.explicit, *explicit))


@dataclass
class MixLevel:
    """A part of a mix: a source, or a level with parts of its own.

    Args:
        names: Its names.
        rows: Rows of its sources, in depth-first order; a source that occurs twice has
            two rows.
        mix: Dataset whose inputs are the parts. None for a source.
        parts: Levels of the parts.
        members: Numbers of the inputs of `mix` that belong to each part.
        above: Datasets from the input of the level above down to this one.
        source: The source. None for a level with parts.
    """

    names: LevelNames
    rows: range
    mix: Dataset[Any] | None = None
    parts: list[MixLevel] = field(default_factory=list)
    members: list[range] = field(default_factory=list)
    above: tuple[Dataset[Any], ...] = ()
    source: SourceNode[Any] | None = None

    @property
    def path(self) -> tuple[str, ...]:
        """Names of the levels down to it; empty for the whole."""
        return self.names.path

    @property
    def name(self) -> str:
        """Name on its level; empty for the whole."""
        return self.path[-1] if self.path else ""

    @property
    def traits(self) -> MixTraits:
        """How the mix combines the parts; the default for a source."""
        return MixTraits() if self.mix is None else self.mix.traits.mix

    def opened_in(self, owner: MixLevel) -> bool:
        """Return whether the level is a blend that is merged into that of `owner`."""
        return self.mix is not None and self.mix is owner.mix

    def walk(self) -> list[MixLevel]:
        """Return the level and all levels below it, depth first."""
        return [self, *(below for part in self.parts for below in part.walk())]

    @cached_property
    def leaves(self) -> list[MixLevel]:
        """The levels of sources, one for each row."""
        return [level for level in self.walk() if level.source is not None]

    @property
    def label(self) -> str:
        """Name of its source, or else the names of its path."""
        return self.names.source_name or "/".join(self.path)


def levels_of(dataset: Dataset[Any]) -> MixLevel:
    """Return the whole mix as a level with all others below it."""
    whole = _level(LevelNames(), dataset, 0, whole=True)
    leaves = whole.leaves
    sources = list(dict.fromkeys(cast("Any", leaf.source) for leaf in leaves))
    labels = dict(zip(sources, source_labels(sources), strict=True))
    names = [
        _name_of(leaf.names.explicit, labels[cast("Any", leaf.source)])
        for leaf in leaves
    ]
    for leaf, name in zip(leaves, numbered(names), strict=True):
        leaf.names.source_name = name
    return whole


def _name_of(explicit: tuple[str | None, ...], label: str) -> str:
    """Return the name of a source by the explicit names of its path and its label."""
    above = "/".join(filter(None, explicit))
    if explicit and explicit[-1] is not None:
        return above
    if not above or f"{label}/".startswith(f"{above}/"):
        return label  # a metadataset's label has the names of the lists around it
    return f"{above}/{label.removesuffix(f'/{above}')}"


def source_names(dataset: Dataset[Any]) -> list[str]:
    """Return the names of `dataset.sources`, as in reports and `Loader.last_sources`.

    In stages they are those of `source_labels`, without the names of stages.

    Args:
        dataset: Any dataset.

    Returns:
        A unique name for each source.

    Example:
        >>> from energize import BlendDataset, ListSource
        >>> parts = {
        ...     "web": ListSource("a", name="x"),
        ...     "code": ListSource("b", name="x"),
        ... }
        >>> source_names(BlendDataset(parts, weights={"web": 1, "code": 1}))
        ['web', 'code']
    """
    levels = levels_of(dataset)
    nodes = [node for level in levels.walk() for node in (level.mix, *level.above)]
    if any(isinstance(node, StagedDataset) for node in nodes):
        return source_labels(dataset.sources)
    return [leaf.label for leaf in levels.leaves]


def _level(
    names: LevelNames,
    dataset: Dataset[Any],
    first: int,
    *,
    whole: bool,
) -> MixLevel:
    """Return the level of a dataset.

    Args:
        names: Names of the level.
        dataset: The dataset.
        first: First row of the level.
        whole: Whether positions of `dataset` are known, and so the stage of each.
    """
    node = dataset
    above = [dataset]
    while len(node.inputs) == 1:
        if isinstance(node, BlendDataset | StagedDataset) and not any(names.path[-1:]):
            name = node.names[0]
            names = names.below(name, name if _named(node, 0) else None)
        whole = (whole and node.traits.keeps_order) or not node.indexed
        node = node.inputs[0]
        above.append(node)
    if not node.inputs:
        return _source_level(node, names, first, tuple(above))
    level = MixLevel(names, range(first, first), node, above=tuple(above))
    _add_parts(level, node, first, whole=whole)
    level.rows = range(first, level.parts[-1].rows.stop)
    return level


def _add_parts(level: MixLevel, node: Dataset[Any], first: int, *, whole: bool) -> None:
    if isinstance(node, StagedDataset) and node.indexed and not whole:
        _add_sources(level, node, first)
    else:
        _add_inputs(level, node, first, whole=not node.indexed)


def _add_sources(level: MixLevel, node: Dataset[Any], first: int) -> None:
    """Add each source of stages once, if items cannot be assigned to stages."""
    names = source_labels(node.sources)
    level.mix = None
    for number, (name, source) in enumerate(zip(names, node.sources, strict=True)):
        row = range(first + number, first + number + 1)
        level.parts.append(MixLevel(level.names.below(name, None), row, source=source))


def _open_groups(
    level: MixLevel,
    opened: list[tuple[str, MixLevel]],
    names: Sequence[str],
    number: int,
    first: int,
) -> None:
    """Change `opened`, in place, to the groups called `names`; add missing groups.

    Args:
        level: The level that all groups belong to.
        opened: Names and levels of the open groups, the outermost first.
        names: Names of the groups of the next input, the outermost first.
        number: Number of the next input.
        first: First row of the next input.
    """
    pairs = zip(names, opened, strict=False)
    del opened[len([*takewhile(lambda pair: pair[0] == pair[1][0], pairs)]) :]
    for name in names[len(opened) :]:
        owner = opened[-1][1] if opened else level
        is_used = any(part.name == name for part in owner.parts)
        label = f"{name} ({first})" if is_used else name
        group = MixLevel(owner.names.below(label), range(first, first), level.mix)
        opened.append((name, _added(owner, group, number)))


def _split_name(name: str) -> tuple[list[str], str]:
    """Split `outer/inner` into the outer names and the last one.

    Names with an empty part stay whole.
    """
    *outer, last = name.split("/")
    return (outer, last) if all((*outer, last)) else ([], name)


def _source_level(
    dataset: Dataset[Any],
    names: LevelNames,
    row: int,
    above: tuple[Dataset[Any], ...],
) -> MixLevel:
    """Return the level of the only source of a dataset."""
    source = dataset.sources[0]
    if not names.path:
        names = LevelNames((source_labels([source])[0],), names.explicit)
    return MixLevel(names, range(row, row + 1), above=above, source=source)


def _add_inputs(
    level: MixLevel, node: Dataset[Any], first: int, *, whole: bool
) -> None:
    phased = isinstance(node, StagedDataset)
    opened: list[
        tuple[str, MixLevel]
    ] = []  # blends that were opened up, by the names of their parts
    for number, name in enumerate(numbered(_names(node))):
        named = _named(node, number)
        outer, called = _split_name(name) if named and not phased else ([], name)
        _open_groups(level, opened, outer, number, first)
        owner = opened[-1][1] if opened else level
        explicit = (*level.names.explicit, *outer, called if named else None)
        names = LevelNames((*owner.path, called), explicit)
        part = _level(names, node.inputs[number], first, whole=whole)
        first = _added(owner, part, number).rows.stop
        for _, group in opened:
            group.rows = range(group.rows.start, first)
        for holder in (level, *(group for _, group in opened)):
            holder.members[-1] = range(holder.members[-1].start, number + 1)


def _added(owner: MixLevel, part: MixLevel, number: int) -> MixLevel:
    owner.parts.append(part)
    owner.members.append(range(number, number))
    return part


def _named(node: Dataset[Any], number: int) -> bool:
    """Return whether an input has an explicit name, in a blend or as a stage."""
    if isinstance(node, StagedDataset):
        return True
    names = getattr(node, "given_names", None)
    return names is not None and names[number] is not None


def _names(node: Dataset[Any]) -> list[str]:
    """Return the names of inputs: explicit names, or a few of their sources."""
    mixed = isinstance(node, BlendDataset | StagedDataset)
    names = list(cast("Any", node).names) if mixed else [""] * len(node.inputs)
    for number, read in enumerate(input_labels(node)):
        if not _named(node, number) and (not mixed or len(read) > _NAMED):
            more = len(read) - _NAMED
            names[number] = ", ".join(read[:_NAMED]) + (
                f" and {more} more" if more > 0 else ""
            )
    return names


Spans: TypeAlias = dict[tuple[str, ...], int]
"""Number of items that the mix of each level has delivered, by the path of the level.
"""


def spans(
    level: MixLevel,
    items: int | None,
    reached_items: Spans | None = None,
    dataset: Any = None,
) -> Spans:
    """Return the number of items that the mix of each level has delivered.

    Levels whose number is known only by reading are omitted.

    Args:
        level: The whole.
        items: Number of items of the whole. None if unknown.
        reached_items: Result to extend.
        dataset: The dataset of the level as it is read; None for `level.above`.
    """
    reached_items = {} if reached_items is None else reached_items
    if level.mix is None:
        return reached_items
    node: Any = level.above[0] if dataset is None else dataset
    for _ in level.above[:-1]:
        reached = None if items is None else node.reached(items)
        if reached is None:
            return reached_items
        items = reached[0]
        node = node.inputs[0]
    if items is not None:
        _span(level, items, node, reached_items)
    return reached_items


def _span(level: MixLevel, items: int, mix: Any, reached_items: Spans) -> None:
    reached_items[level.path] = items
    reached = mix.reached(items)
    if reached is None:
        return
    for part, numbers in zip(level.parts, level.members, strict=True):
        if part.opened_in(level):
            _span(part, items, mix, reached_items)
            continue
        number = numbers.start
        count = reached[number]
        node = mix.inputs[number]
        if mix.indexed and (mix.anchor_items(items) or reached)[number] is not None:
            node = mix.children[number]
        elif count and mix.indexed and node.anchored:
            continue  # a planned stage that has not begun
        spans(part, count, reached_items, node)


def requested_shares(
    level: MixLevel, start: int | None, stop: int | None
) -> FloatArray | None:
    """Return the requested share of each part of a level, by the weights.

    Args:
        level: A level with parts.
        start: First item of its mix. None if unknown.
        stop: End of the items, exclusive. None if unknown.

    Returns:
        Shares of these items; of all items if they are unknown. None without weights,
        or if items are unknown and weights change.
    """
    mix = level.mix
    if not isinstance(mix, BlendDataset | QuotaDataset):
        return None
    due = None
    if start is not None and stop is not None:
        until = mix.due(max(stop, start + 1))
        due_at_start = mix.due(start)
        due = None if until is None or due_at_start is None else until - due_at_start
    if due is None:
        due = mix.due(None)
    return None if due is None else shares_of(_by_part(level, due))


def items_between(
    level: MixLevel, start: int | None, stop: int | None
) -> FloatArray | None:
    """Return the items of each part from item `start` to `stop` of its mix.

    None if the order does not determine them.
    """
    if level.mix is None or start is None or stop is None:
        return None
    first = level.mix.reached(start)
    last = level.mix.reached(stop)
    if first is None or last is None:
        return None
    items = np.array(last, dtype=np.float64) - np.array(first, dtype=np.float64)
    return _by_part(level, items)


def spent_by(level: MixLevel, items: int | None) -> FloatArray:
    """Return the cost of each part in the first items of a blend; zeros if unknown."""
    mix: Any = level.mix
    if items is None or not hasattr(mix, "spent") or not mix.indexed:
        return np.zeros(len(level.parts))
    return _by_part(level, np.array(mix.spent(items)))


def spend(
    level: MixLevel,
    spent: FloatArray,
    begun: Spans,
    ended: Spans,
    counts: Callable[[MixLevel], bool],
    *,
    costs: bool,
) -> BoolArray:
    """Scale the rows of a level so that their sums are what mixes spent on each part.

    Rows of one part share its cost in proportion to their values.

    Args:
        level: The whole.
        spent: Costs or numbers of samples of each row; changed in place.
        begun: Items of each mix at the start.
        ended: Items of each mix at the end.
        counts: Returns whether the mix of a level weighs the cost that is counted.
        costs: Whether `spent` has costs. If not, rows of inner mixes are final and are
            not scaled again.

    Returns:
        Whether each row was scaled to a cost.
    """
    is_scaled = np.zeros(len(spent), dtype=np.bool_)
    for node in level.walk()[::-1]:  # parts before what they are parts of
        if counts(node) and node.path in ended:
            costs_of_parts = spent_by(node, ended[node.path]) - spent_by(
                node, begun[node.path]
            )
            for part, cost in zip(node.parts, costs_of_parts.tolist(), strict=True):
                rows = np.array(part.rows)
                rest = rows if costs else rows[~is_scaled[rows]]
                total = spent[rest].sum()
                spent[rest] *= (cost - (spent[rows].sum() - total)) / max(total, 1e-300)
                is_scaled[rest] = True
    return is_scaled


def samples_per_item(level: MixLevel) -> FloatArray:
    """Return for each row the samples in an item of the input of its mix.

    NaN if it is known only by reading.
    """
    sizes = np.ones(len(level.rows))
    for part, members in zip(level.parts, level.members, strict=False):
        at = slice(
            part.rows.start - level.rows.start, part.rows.stop - level.rows.start
        )
        if part.opened_in(level):
            sizes[at] = samples_per_item(part)
        else:
            sizes[at] = _mean_size(cast("Any", level.mix).inputs[members.start])
    return sizes


def _mean_size(node: Dataset[Any]) -> float:
    if not node.indexed:
        return math.nan if several(node) else 1.0
    dataset = cast("IndexedDataset[Any]", node)
    items = 1 if has_single_samples(dataset) else min(_ITEMS_LOOKED_AT, dataset.size)
    return float(dataset.consumed(items).sum()) / max(items, 1) or 1.0


def several(node: Dataset[Any]) -> bool:
    """Return whether items may be made of several items of the inputs."""
    return node.traits.gathers or any(map(several, node.inputs))


def shares_of(values: FloatArray | None) -> FloatArray | None:
    """Return values as fractions of their sum, None if the sum is not positive."""
    return (
        None
        if values is None or not values.sum() > 0
        else np.asarray(values / values.sum())
    )


def _by_part(level: MixLevel, values: FloatArray) -> FloatArray:
    return np.array(
        [values[members.start : members.stop].sum() for members in level.members]
    )


_ITEMS_LOOKED_AT = 64
"""Number of items over which the mean size of a batch is computed."""

_NUMBERS = len(Origin._fields)


class LocatedSamples(NamedTuple):
    """Samples of items, ordered by item: int64 arrays of one length.

    Args:
        item: Number of the item in the call.
        row: Row of the source.
        sample: Number of the sample in its source.
        epoch: Earlier passes through the source.
    """

    item: Int64Array
    row: Int64Array
    sample: Int64Array
    epoch: Int64Array


class Places:
    """Locates samples in the rows of the levels of a dataset, without reading."""

    def __init__(self, dataset: Dataset[Any], levels: MixLevel) -> None:
        self._dataset = dataset
        self.rows = len(levels.rows)

    def locate(self, origins: Sequence[ItemOrigin]) -> LocatedSamples:
        """Return the samples of some items."""
        if self._dataset.indexed:
            return self._parts[0].locate(np.array(origins, dtype=np.int64))
        numbers = cast("Sequence[array[int]]", origins)
        counts = np.array(
            [len(samples) // _NUMBERS for samples in numbers], dtype=np.int64
        )
        item = np.repeat(np.arange(len(origins)), counts)
        joined = np.frombuffer(b"".join(numbers), dtype=np.int64).reshape(-1, _NUMBERS)
        part, position, epoch, attempt = joined.T
        some = []
        for number, rows in rows_by_value(part):
            for tried, at in rows_by_value(attempt[rows]):
                of = rows[at]
                samples = self._parts[number].locate(position[of], epoch[of], tried)
                some.append(samples._replace(item=of[samples.item]))
        if not some:
            nothing = np.zeros(0, dtype=np.int64)
            return LocatedSamples(nothing, nothing, nothing, nothing)
        together = [np.concatenate(column) for column in zip(*some, strict=True)]
        order = np.argsort(together[0], kind="stable")
        at, row, index, pass_ = (column[order] for column in together)
        return LocatedSamples(item[at], row, index, pass_)

    def planned(self, count: int, *, items: bool = False) -> Any:
        """Return the samples, or the `items`, of each row in the first `count` items.

        None for a stream.
        """
        return (
            self._parts[0].planned(count, items=items)
            if self._dataset.indexed
            else None
        )

    @property
    def numbers(self) -> Int64Array:
        """The number of the source of each row in `dataset.sources`; of an indexed
        dataset.
        """
        part = self._parts[0]
        return (
            np.arange(self.rows)
            if part.phased is None
            else np.concatenate(part.numbers)
        )

    def by_source(self, rows: FloatArray) -> FloatArray:
        """Return values of rows summed by source; of an indexed dataset."""
        return np.asarray(
            np.bincount(self.numbers, rows, len(self._dataset.sources)), np.float64
        )

    @cached_property
    def _parts(self) -> list[_Part]:
        parts: list[_Part] = []
        first = 0
        for dataset, _ in self._dataset.read_parts:
            parts.append(_Part(dataset, first))
            first += parts[-1].rows
        return parts


class _Part:
    """An indexed dataset, or a source without random access, from row `first` on."""

    def __init__(self, dataset: Dataset[Any], first: int) -> None:
        self._dataset = dataset
        self._first = first
        node = dataset
        node = tree.unwrap(node)
        self.phased = node if isinstance(node, StagedDataset) and node.indexed else None
        self.rows = len(dataset.sources)
        if self.phased is not None:
            self.rows = sum(len(numbers) for numbers in self.numbers)

    @cached_property
    def numbers(self) -> list[Int64Array]:
        """The numbers of the sources of each phase."""
        phased = cast("StagedDataset[Any]", self.phased)
        return cast("list[Int64Array]", phased.source_numbers)

    @cached_property
    def _row_of(self) -> Int64Array:
        """The row of each source (columns) in each phase (rows)."""
        table = np.full(
            (len(self.numbers), len(self._dataset.sources)), -1, dtype=np.int64
        )
        first = self._first
        for phase, numbers in enumerate(self.numbers):
            table[phase, numbers[::-1]] = np.arange(first, first + len(numbers))[::-1]
            first += len(numbers)
        return table

    def locate(
        self, positions: Int64Array, epochs: Int64Array | None = None, attempt: int = 0
    ) -> LocatedSamples:
        if not self._dataset.indexed:
            item = np.arange(len(positions))
            row = np.full(len(positions), self._first, dtype=np.int64)
            return LocatedSamples(item, row, positions, cast("Int64Array", epochs))
        dataset = cast("IndexedDataset[Any]", self._dataset)
        refs = Trace(dataset, positions).refs(attempt)
        row = refs.source + self._first
        if self.phased is not None:
            row = self._row_of[self.phased.phase_of(positions)[refs.item], refs.source]
        return LocatedSamples(refs.item, row, refs.index, refs.epoch)

    def planned(self, count: int, *, items: bool) -> Any:
        dataset = cast("IndexedDataset[Any]", self._dataset)
        if self.phased is None:
            return consumed(dataset, count, items=items)
        starts = [min(item, count) for item in self.phased.plan.first_items] + [count]
        counts = [consumed(dataset, item, items=items) for item in starts]
        rows = np.zeros(self.rows, dtype=counts[0].dtype)
        for phase, numbers in enumerate(self.numbers):
            rows[self._row_of[phase, numbers]] = (counts[phase + 1] - counts[phase])[
                numbers
            ]
        return rows
