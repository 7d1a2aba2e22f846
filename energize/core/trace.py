"""The walk down a tree of datasets, along the positions that each node locates.

It determines the samples of an item, the items at positions, the consumption of each
source and the positions of inputs, for reading and accounting alike. Nodes state
`route` and, if they have closed forms for prefixes, `spans`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from energize.core import tree
from energize.core.arrays import Int64Array, rows_by_value
from energize.core.call_context import call_context, leave_call
from energize.core.description import label_of
from energize.core.failures import (
    Failed,
    FailureMemory,
    FailurePolicy,
    FailureSink,
    LeftOut,
)
from energize.core.node import (
    IndexedNode,
    Node,
    Origin,
    Refs,
    Routes,
    SourceNode,
    Span,
)
from energize.core.padding import Padded, has_padding, unpadded
from energize.core.quarantine import Listed
from energize.core.randomness import defer, read_in_window
from energize.core.rng import derive
from energize.errors import (
    EncoderError,
    SubstitutionError,
)

T = TypeVar("T")

_COUNTED_AT_ONCE = 2**16
"""Items that are counted together."""


# How items are read, and samples that fail.

AHEAD = 4096
"""Maximum number of samples that a reader prefetches from object storage."""

AHEAD_BYTES = 128 * 1024 * 1024
"""Maximum size of the samples that a reader prefetches, in bytes."""

_AT_FIRST = 64
"""Number of samples to prefetch until their sizes are known."""

READY = 32
"""Items per worker that are read ahead where they are small: enough for hundreds of
thousands of small ones a second."""

MAX_ATTEMPTS = 256
"""How many samples in a row may fail at one position before it is an error: enough for
encoders that leave out nine of ten, where one position in 10**11 needs more."""


def make_padded(
    node: IndexedNode[Any], items: list[Any], request: Request
) -> list[Any | Failed]:
    """Return the items that a node makes of items with `Padded` among them."""
    if not has_padding(items):
        return node.make(items, request)
    results = list(node.make([*map(unpadded, items)], request))
    for row, item in enumerate(items):
        if type(item) is Padded and type(results[row]) is not Failed:
            results[row] = item.made_into(results[row])
    return results


class Request(NamedTuple):
    """Positions to make items for.

    Attributes:
        positions: The positions, int64.
        reading: How samples are read.
        where: Returns the location of the n-th item, for messages.
    """

    positions: Int64Array
    reading: ReadContext
    where: Callable[[int], str]


@dataclass(frozen=True, slots=True)
class ReadContext:
    """How items are read; passed down to the sources.

    Attributes:
        attempt: The number of the substitute; 0 for the sample itself.
        failures: The policy for samples and functions that fail.
        sink: Receives the samples that fail.
        listed: The samples that are left out without being read.
        substitute: Whether a substitute takes the place of a sample that failed or was
            skipped. Otherwise the slot is padding (`Padded`), as in an evaluation.
        config: The worker config for users' functions.
        threads: The threads of torch while functions are called.
        taken: Called with the dataset of each item that a stream takes of an indexed
            dataset.
    """

    attempt: int = 0
    failures: FailurePolicy = FailurePolicy()  # noqa: RUF009 - frozen
    sink: FailureSink = FailureSink()  # noqa: RUF009 - frozen
    listed: Listed | None = None
    substitute: bool = True
    config: Any = None
    threads: int = 1
    taken: Callable[[Node[Any]], None] | None = None

    @classmethod
    def reporting(cls, report: Callable[[Failed], None]) -> ReadContext:
        """Return a context that reports the samples that fail.

        Args:
            report: Called with each sample that failed, every time that it fails.

        Example:
            >>> from energize import DataError, ListSource, MapDataset
            >>> def check(number):
            ...     if number == 2:
            ...         raise DataError("two is damaged")
            ...     return number
            >>> failed = []
            >>> numbers = MapDataset(ListSource(range(4)), check)
            >>> len(numbers.at(range(4), ReadContext.reporting(failed.append)))
            4
            >>> print(failed[0].reason)
            two is damaged
        """
        return cls(sink=FailureSink(report))

    def leave_out(
        self,
        failed: Failed,
        dataset: Any,
        origin: int | Sequence[Any] | None,
        attempt: int = 0,
    ) -> None:
        """Count a sample that is left out, and report it if it failed.

        Takes effect once the read is settled. A failure is counted by the identity of
        its source and the number of its sample there, so a sample that fails in every
        epoch counts once. An item of several samples is counted by the first one,
        separately from that sample itself.

        Args:
            failed: The failure.
            dataset: The dataset of the item; None if unknown.
            origin: Its position, or its origins; None if unknown.
            attempt: The number of the substitute.
        """
        defer(partial(self._count_left_out, failed, dataset, origin, attempt))

    def _count_left_out(
        self,
        failed: Failed,
        dataset: Any,
        origin: int | Sequence[Any] | None,
        attempt: int,
    ) -> None:
        if failed.skipped:
            self._count_skipped(failed, dataset, origin, attempt)
            return
        if isinstance(origin, int):
            at = np.array([origin], dtype=np.int64)
            memory = self.sink.memory
            if memory is not None and failed.lasting and memory.takes(failed):
                part = Trace(dataset, at).reading_part()
                if part is not None:
                    memory.add(part.node, part.refs(attempt), failed)
            refs = dataset.refs(at, attempt)
            locate = self.failures.quarantine is not None
            failed = _identified(failed, dataset, refs, locate)
        elif origin is not None:
            failed = _identified(
                failed, dataset, refs_of(dataset, origin), locate=False
            )
        self.failures.check(failed)
        self.sink.report(failed)

    def _count_skipped(
        self,
        skipped: Failed,
        dataset: Any,
        origin: int | Sequence[Any] | None,
        attempt: int,
    ) -> None:
        left_out = self.sink.left_out
        if left_out is None:
            return
        left_out.add_reason(skipped)
        if isinstance(origin, int):
            left_out.add_position(dataset, origin, attempt)
        elif origin is not None:
            refs = refs_of(dataset, origin)
            left_out.add_skipped(
                dataset.sources[row].key for row in refs.source.tolist()
            )

    def again(self, attempt: int) -> ReadContext:
        """Return the same, for another attempt."""
        return self if attempt == self.attempt else replace(self, attempt=attempt)

    def counted_by(
        self,
        report: Callable[[Failed], None],
        left_out: LeftOut | None = None,
        memory: FailureMemory | None = None,
    ) -> ReadContext:
        """Return the same with another sink.

        Args:
            report: Called with each sample that failed.
            left_out: Counts the samples that are skipped.
            memory: The damaged samples of this process; not used if the policy reads
                them again.
        """
        remembered = None if self.failures.retry else memory
        return replace(self, sink=FailureSink(report, left_out, remembered))


def _identified(failed: Failed, dataset: Node[Any], refs: Refs, locate: bool) -> Failed:
    """Return a failure with what it is counted by; `locate`: and which stored sample it
    is.
    """
    sources: list[Any] = [dataset.sources[number] for number in refs.source.tolist()]
    if not sources:
        return failed
    source = sources[0]
    index = int(refs.index[0])
    several = len(sources) > 1
    stored = getattr(source, "location", ""), getattr(source, "identity", source.name)
    sample = derive("failed", *stored, index, int(several)) % 2**64
    location = failed.place
    if locate:
        location = None if several else source.place(index)
    return replace(
        failed,
        place=location,
        sample=sample,
        sources=tuple(entry.key for entry in sources),
    )


SILENT = ReadContext.reporting(lambda _: None)
"""For what was reported when it was read first, or is not read for what it is."""


class Trace:
    """Items of a dataset at some positions, followed down to their samples.

    Nodes that only map positions are skipped: `node` and `positions` are those of the
    first node that reads, gathers or makes items.
    """

    __slots__ = ("_below", "_bounds", "node", "positions", "routes")

    def __init__(self, node: IndexedNode[Any], positions: Int64Array) -> None:
        routes: Routes | None = None
        while node.inputs:
            routes = node.route(positions)
            if (
                routes.owner is not None
                or routes.child is not None
                or node.traits.makes
            ):
                break
            node = node.children[0]
            positions = routes.position
            routes = None
        self.node = node
        self.positions = positions
        self.routes = routes
        self._below: list[tuple[int, Int64Array | None, Trace]] = []
        self._bounds: list[int] = []
        if routes is None:
            return
        inner = routes.position
        children = node.children
        if routes.child is None:
            self._below.append((0, None, Trace(children[0], inner)))
        elif len(inner) == 1:
            number = int(routes.child[0])
            self._below.append((number, None, Trace(children[number], inner)))
        else:
            for number, rows in rows_by_value(routes.child):
                below = Trace(children[number], inner[rows])
                self._below.append((number, rows, below))
        if routes.owner is not None:
            ends = np.arange(len(positions) + 1)
            self._bounds = np.searchsorted(routes.owner, ends).tolist()

    def refs(self, attempt: int = 0) -> Refs:
        """Return the samples that the items are made of."""
        others = self.node.traits.loop.substitutes if attempt else None
        if others is not None:
            return Trace(self.node, others.at(self.positions, attempt)).refs()
        routes = self.routes
        positions = self.positions
        if routes is None:
            leaf = cast("SourceNode[Any]", self.node)
            index = leaf.samples_at(positions, attempt)
            at = np.arange(len(index))
            return Refs(at, np.zeros_like(at), index, positions // leaf.count)
        if routes.owner is not None:
            attempt *= MAX_ATTEMPTS
        parts = []
        for number, rows, below in self._below:
            refs = below.refs(attempt)
            item = refs.item
            source = refs.source
            if rows is not None:
                item = rows[item]
            if routes.padding is not None:
                drawn = ~routes.padding[item]
                item = item[drawn]
                source = source[drawn]
                refs = Refs(item, source, refs.index[drawn], refs.epoch[drawn])
            if routes.owner is not None:
                item = routes.owner[item]
            numbers = self.node.source_numbers[number]
            source = source + numbers if isinstance(numbers, int) else numbers[source]
            parts.append(Refs(item, source, refs.index, refs.epoch))
        return Refs.merged(parts)

    def read(
        self, reading: ReadContext, start: int = 0, stop: int | None = None
    ) -> list[Any]:
        """Return the items in rows `start` to before `stop`, failed ones as
        `Failed`.
        """
        node = self.node
        positions = self.positions
        if stop is None:
            stop = len(positions)
        elif stop - start < len(positions):
            positions = positions[start:stop]
        others = node.traits.loop.substitutes if reading.attempt else None
        if others is not None:
            trace = Trace(node, others.at(positions, reading.attempt))
            return trace.read(reading.again(0))
        memory = reading.sink.memory
        if memory is not None and id(node) in memory.nodes:
            failed = memory.rows(node, self.refs(reading.attempt), start, stop)
            if failed:
                return self._read_remaining(failed, positions, reading)
        routes = self.routes
        if routes is None:
            source = cast("SourceNode[Any]", node)
            return source.fetch(positions, reading)
        if routes.owner is None:
            below = self._below
            single = len(below) == 1 and below[0][1] is None
            items = (below[0][2].read if single else self._gathered)(
                reading, start, stop
            )
        else:
            items = self._owned(routes, reading, start, stop)
        if not node.traits.makes:
            return items

        def of_row(row: int) -> str:
            return location_of(node, int(positions[row]), reading.attempt)

        return make_padded(node, items, Request(positions, reading, of_row))

    def _owned(
        self, routes: Routes, reading: ReadContext, start: int, stop: int
    ) -> list[Any]:
        """Return for each row the list of its members, or `Padded` in an evaluation."""
        bounds = self._bounds[start : stop + 1]
        first = bounds[0]
        members = self._members(routes, reading, first, bounds[-1])
        items: list[Any] = [members[a - first : b - first] for a, b in pairwise(bounds)]
        if not has_padding(members):
            return items
        return [
            Padded.of_members(item, self._sizes(routes, *rows))
            if has_padding(item)
            else item
            for item, rows in zip(items, pairwise(bounds), strict=True)
        ]

    def _read_remaining(
        self, failed: Mapping[int, Failed], positions: Int64Array, reading: ReadContext
    ) -> list[Any]:
        """Return the items at positions, without reading `failed` ones again."""
        rows = range(len(positions))
        unread = [row for row in rows if row not in failed]
        read = iter(Trace(self.node, positions[unread]).read(reading) if unread else ())
        return [failed[row] if row in failed else next(read) for row in rows]

    def items(
        self, reading: ReadContext, start: int = 0, stop: int | None = None
    ) -> list[Any]:
        """Return the items in rows `start` to before `stop`, with substitutes for
        failures.

        Substitutes are a function of position and attempt, so an item is a function of
        its position. Without `reading.substitute`, an item with a failure is `Padded`.

        Raises:
            SubstitutionError: If `MAX_ATTEMPTS` in a row fail.
        """
        try:
            items = self.read(reading, start, stop)
            for row, item in enumerate(items):
                if type(item) is Failed:
                    position = self.positions[start + row : start + row + 1]
                    items[row] = _substituted(self.node, position, reading, item)
        except StopIteration as stopped:
            raise stop_raised(self.node) from stopped
        return items

    def _gathered(self, reading: ReadContext, start: int, stop: int) -> list[Any]:
        """Return the items of the inputs in some rows of the routes, in their order."""
        if len(self._below) == 1 and self._below[0][1] is None:
            return self._below[0][2].read(reading, start, stop)
        items: list[Any] = [None] * (stop - start)
        for _, rows, below in self._below:
            rows = cast("Int64Array", rows)
            first, last = np.searchsorted(rows, (start, stop)).tolist()
            if first < last:
                values = below.read(reading, first, last)
                for row, item in zip(rows[first:last].tolist(), values, strict=True):
                    items[row - start] = item
        return items

    def _members(
        self, routes: Routes, reading: ReadContext, start: int, stop: int
    ) -> list[Any]:
        """As `_gathered`, with failed ones substituted, or counted as left out."""
        of_members = reading.again(reading.attempt * MAX_ATTEMPTS)
        outer = call_context.get()
        call_context.set(outer._replace(gathering=self.node))
        try:
            substitutes = self.node.traits.loop.substitutes
            chosen = None if substitutes is None else substitutes.members
            items = self._gathered(of_members, start, stop)
            for row, item in enumerate(items):
                if type(item) is Failed:
                    at = start + row
                    child = self.node.children[
                        0 if routes.child is None else routes.child[at]
                    ]
                    position = routes.position[at : at + 1]
                    if substitutes is not None and chosen is None:
                        if not item.remembered:
                            reading.leave_out(item, child, int(position[0]))
                        continue
                    others = None if chosen is None else chosen(int(position[0]))
                    items[row] = _substituted(child, position, of_members, item, others)
        finally:
            leave_call(outer, reading.config)
        return items

    def _sizes(self, routes: Routes, start: int, stop: int) -> Iterator[int]:
        """Yield of how many samples each member in some rows of the routes is made."""
        for at in range(start, stop):
            child = self.node.children[0 if routes.child is None else routes.child[at]]
            is_padding = routes.padding is not None and routes.padding[at]
            yield 0 if is_padding else len(child.refs(routes.position[at : at + 1]))

    def reading_part(self) -> Trace | None:
        """Return the part that reads one stored sample, and makes a typed one of it;
        None if a function of the user takes part in that.
        """
        trace = self
        part = None
        while trace.routes is not None:
            node = trace.node
            is_pure = getattr(getattr(node, "map_fn", None), "is_pure", False)
            if trace.routes.owner is not None or (
                part is not None and node.traits.makes and not is_pure
            ):
                return None
            if is_pure and part is None:
                part = trace
            trace = trace._below[0][2]
        return trace if part is None else part


def stop_raised(dataset: Node[Any]) -> EncoderError:
    """Return what to raise if code that a dataset calls raised `StopIteration`, which
    would end an epoch.
    """
    return EncoderError(
        f"{label_of(dataset)}: a function that it calls raised StopIteration, which is "
        "not the end of an epoch. Return an item, or raise SkipSample to leave one out"
    )


def read_items(
    dataset: IndexedNode[T], positions: Int64Array, reading: ReadContext
) -> list[T]:
    """Return the items at `positions`, see `Trace.items`, read in a window of their
    own.
    """
    return read_in_window(partial(Trace(dataset, positions).items, reading))


class Ahead:
    """Prefetches samples from object storage before they are read.

    Announces the next positions of a dataset, for up to `AHEAD` samples and
    `AHEAD_BYTES` bytes.

    Args:
        dataset: The dataset.
        announce: Called with positions; returns the size of their samples in bytes, or
            0 if it is unknown. None: the sources of the dataset prefetch them.
        samples: The largest number of samples.
    """

    def __init__(
        self,
        dataset: IndexedNode[Any],
        announce: Callable[[Int64Array], int] | None = None,
        samples: int = AHEAD,
    ) -> None:
        self._told = announce or partial(expect, dataset)
        self._expected = 0
        self._items = self._asked = 0
        self._far = announce is not None or any(
            source.remote for source in dataset.sources
        )
        self._least = (
            max(1.0, dataset.consumed(1).sum()) / samples if self._far else 1.0
        )
        self._each = self._least * samples / _AT_FIRST
        self._bytes = AHEAD_BYTES * samples / AHEAD

    def __call__(
        self, turn: int, positions: Callable[[Int64Array], Int64Array]
    ) -> None:
        """Announce the items from `turn` on; `positions` maps turns to positions."""
        if not self._far:
            return
        self._learn(self._told(np.zeros(0, dtype=np.int64)))
        until = turn + max(1, int(1 / self._each))
        begin = max(turn, self._expected)
        if begin >= until or until - begin < (until - turn) // 4:
            return
        at = positions(np.arange(begin, until, dtype=np.int64))
        self._expected = until
        self._items += len(at)
        self._learn(self._told(at))

    def _learn(self, size: int) -> None:
        self._asked += size
        if self._items:  # sizes can be of positions that were announced before a change
            self._each = max(self._least, self._asked / self._items / self._bytes)


def expect(dataset: IndexedNode[Any], positions: Int64Array) -> int:
    """Have the samples that items are made of fetched; return how many bytes that
    is.
    """
    if not len(positions):  # but for those of which it was not known where they lie
        return sum(
            source.expect(positions) for source in dataset.sources if source.remote
        )
    refs = Trace(dataset, positions).refs()
    size = 0
    for number, rows in rows_by_value(refs.source):
        if dataset.sources[number].remote:
            size += dataset.sources[number].expect(refs.index[rows])
    return size


def _substituted(
    dataset: IndexedNode[Any],
    position: Int64Array,
    reading: ReadContext,
    item: Any,
    others: Iterator[int] | None = None,
) -> Any:
    """Return the first substitute for a failed item that does not fail; `Padded` if
    `reading.substitute` is not set.

    Substitutes are the items at positions `others`, if given.
    """
    slot = position
    tries = 1
    attempt = reading.attempt
    while type(item) is Failed:
        # Where each sample has its own slot, one that would only fill another slot does
        # not count.
        if not item.remembered and (reading.substitute or attempt + tries == 1):
            reading.leave_out(item, dataset, int(position[0]), attempt)
        other = None if others is None else next(others, None)
        if tries >= MAX_ATTEMPTS or (others is not None and other is None):
            raise SubstitutionError(
                f"item {int(position[0])}: the sample and its {tries - 1} substitutes "
                f"were all skipped or failed, the last one at {item}. To leave out "
                "nearly all samples, use FilterDataset, which continues with the next "
                "sample, or leave them out when the data are prepared"
            )
        if other is None:
            attempt += 1
        else:
            position = np.array([other], dtype=np.int64)
        [item] = Trace(dataset, position).read(reading.again(attempt))
        tries += 1
    if reading.substitute:
        return item
    count = len(dataset.refs(slot))
    slots = tuple(range(count))
    fillers = item.fillers if type(item) is Padded else ()
    return Padded(unpadded(item), slots, (*slots, *fillers), count, fillers)


def location_of(dataset: IndexedNode[Any], position: int, attempt: int = 0) -> str:
    """Return the location of the first sample of an item, for messages."""
    refs = dataset.refs([position], attempt)
    if not len(refs):
        return f"item {position}, which is padding"
    return dataset.sources[int(refs.source[0])].where(int(refs.index[0]))


def refs_of(dataset: Node[Any], origins: Sequence[Origin]) -> Refs:
    """Return the samples of an item with these origins, as refs of item 0."""
    parts = []
    for part, position, epoch, attempt in origins:
        node, numbers = dataset.read_parts[part]
        at = np.array([position], dtype=np.int64)
        if node.indexed:
            refs = cast("IndexedNode[Any]", node).refs(at, attempt)
        else:
            none = np.zeros_like(at)
            refs = Refs(none, none, at, np.array([epoch]))
        parts.append(replace(refs, source=numbers[refs.source]))
    return Refs.merged(parts)


def divided(node: IndexedNode[Any], n: int, samples: Int64Array) -> Any:
    """Return the first `n` items, divided among sources by their samples."""
    return samples * (tree.full_items(node, n) / max(int(samples.sum()), 1))


def consumed(node: IndexedNode[Any], n: int, *, items: bool = False) -> Any:
    """Count the samples of each source that the first `n` items are made of.

    Args:
        node: An indexed dataset.
        n: Number of items, from the start.
        items: Count items instead: an item of several samples is divided among their
            sources.

    Returns:
        Counts of shape (num_sources,): int64, or float64 with `items`.
    """
    if not node.inputs:
        return np.array([n], dtype=np.int64)
    if items and node.traits.gathers:
        return divided(node, n, consumed(node, n))
    spans, counted = node.spans(n)
    total = np.zeros(len(node.sources), dtype=np.float64 if items else np.int64)
    for span in spans:
        _add_span(total, node, span, items=items)
    if counted < n and tree.has_single_samples(node):
        return total + (n - counted)
    for first in range(counted, n, _COUNTED_AT_ONCE):
        at = np.arange(first, min(first + _COUNTED_AT_ONCE, n), dtype=np.int64)
        refs = Trace(node, at).refs()
        parts = 1.0 / np.bincount(refs.item)[refs.item] if items else None
        total += np.bincount(refs.source, parts, len(total)).astype(total.dtype)
    return total


def _add_span(total: Any, node: IndexedNode[Any], span: Span, *, items: bool) -> None:
    child, start, stop, times = span
    if start == stop:
        return
    inner = node.children[child]
    numbers = node.source_numbers[child]
    samples = consumed(inner, stop, items=items)
    if start:
        samples = samples - consumed(inner, start, items=items)
    if isinstance(numbers, int):
        total[numbers : numbers + len(samples)] += samples * times
    else:
        np.add.at(total, numbers, samples * times)
