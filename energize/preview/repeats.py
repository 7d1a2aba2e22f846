"""When samples of a source come again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple

from energize.core.blends import ContinuedDataset
from energize.core.dataset import IndexedDataset
from energize.core.description import digest
from energize.core.stream import INFINITE
from energize.core.trace import one_each
from energize.data.source import Source
from energize.datasets.batch import BatchDataset
from energize.datasets.level import LevelDataset
from energize.datasets.order import LimitDataset, RepeatDataset, ShuffleDataset
from energize.datasets.quota import ComposedDataset, ComposedSamples, QuotaDataset
from energize.datasets.stages import StagedDataset

Bounds = tuple[int, int]
"""The first so many samples that are read of a source all differ; of more than so many, some have
come before. Where each pass is a permutation, both are the number of samples that there are.
"""


class _Draws(NamedTuple):
    """How a source is read: `drawn(n)` samples of it in the first n items, in the order of a
    dataset from its first item on.
    """

    drawn: Callable[[int], int]
    bounds: Bounds
    order: IndexedDataset[Any]


def first_repeats(dataset: IndexedDataset[Any], steps: int) -> list[tuple[int | None, bool]]:
    """For each of `dataset.sources` the first of `steps` items by which a sample of it has come
    before, and whether none comes again earlier. None when it is in none of them; or, if that is
    not exact, when it cannot be told.

    >>> from energize import BatchDataset, ListSource, ShuffleDataset
    >>> first_repeats(BatchDataset(ShuffleDataset(ListSource(range(100))), 8, list), 50)
    [(13, True)]
    """
    found: list[tuple[int | None, bool]] = []
    for drawn, (new, most), _ in _draws(dataset):
        read = drawn(steps)
        if read > most:
            found.append((_item_above(drawn, most, steps * most // read, steps), new == most))
        else:
            found.append((None, read <= max(new, 1)))
    return found


def _item_above(drawn: Callable[[int], int], most: int, near: int, end: int) -> int:
    """The first of `end` items with which more than `most` samples are drawn, which is probably
    `near`.
    """
    low, high, reach = near, near, 1
    while drawn(low) > most:
        low, reach = max(low - reach, 0), 4 * reach
    while drawn(high) <= most:
        high, reach = min(high + reach, end), 4 * reach
    return low + bisect_right(range(low, high), most, key=drawn) - 1


def _draws(dataset: IndexedDataset[Any]) -> list[_Draws]:
    """How each of `dataset.sources` is read."""
    if isinstance(dataset, LevelDataset):
        return _levelled(dataset)
    if dataset.taken(0) is not None:
        return [
            each._replace(drawn=_through(dataset, number, each.drawn))
            for number, inner in enumerate(dataset._children)
            for each in _draws(inner)
        ]
    order = dataset._children[0] if isinstance(dataset, ContinuedDataset) else dataset
    return [
        _Draws(_column(dataset, number), bounds, order)
        for number, bounds in enumerate(_bounds(order))
    ]


def _levelled(dataset: LevelDataset[Any]) -> list[_Draws]:
    """Of a global batch it is known what it holds, but not before which of its items; those that
    end with every pass over the only source aside.
    """
    inner = _draws(dataset._children[0])
    if one_each(dataset) and dataset.size == dataset.sources[0].count:
        return inner
    length = dataset.global_batch_size

    def certain(drawn: Callable[[int], int]) -> Callable[[int], int]:
        def drawn_whole(n: int) -> int:
            inside = n if dataset.size == INFINITE else n % dataset.size
            return drawn(n - inside % length)

        return drawn_whole

    return [
        each._replace(
            drawn=certain(each.drawn),
            bounds=(max(each.bounds[0] - length, 0), each.bounds[1]),
        )
        for each in inner
    ]


def _through(
    dataset: IndexedDataset[Any], number: int, drawn: Callable[[int], int]
) -> Callable[[int], int]:
    return lambda n: drawn((dataset.taken(n) or ())[number])


def _column(dataset: IndexedDataset[Any], number: int) -> Callable[[int], int]:
    return lambda n: int(dataset.consumed(n)[number])


def _bounds(dataset: IndexedDataset[Any]) -> list[Bounds]:
    """Those of each source of a dataset that takes something else than the first items of its
    inputs.
    """
    if isinstance(dataset, Source):
        return [(dataset.count, dataset.count)]
    if isinstance(dataset, ComposedDataset):
        return _bounds(dataset.samples)
    if isinstance(dataset, QuotaDataset):
        return _of_quotas(dataset)
    if isinstance(dataset, StagedDataset):
        return _of_stages(dataset)
    shuffled = isinstance(dataset, ShuffleDataset) and dataset.over_epochs == 1
    if not shuffled and not isinstance(dataset, LimitDataset | RepeatDataset | BatchDataset):
        return [(0, source.count) for source in dataset.sources]
    inner = dataset._children[0]
    alike = inner.size == INFINITE or _as_stored(inner)
    first_epoch = dataset.consumed(dataset.size).tolist()
    return [
        (_new_of(each, read, shuffled=shuffled), min(each.bounds[1], read if alike else INFINITE))
        for each, read in zip(_draws(inner), first_epoch, strict=True)
    ]


def _new_of(draws: _Draws, read: int, *, shuffled: bool) -> int:
    """Of the first samples that are read of a source, so many, how many are certain to differ."""
    new = draws.bounds[0]
    return 0 if shuffled and read > new else min(read, new)


def _of_quotas(dataset: QuotaDataset[Any]) -> list[Bounds]:
    found = []
    early = dataset.composition.early if isinstance(dataset, ComposedSamples) else 0
    for inner, count in zip(dataset._children, dataset.counts(), strict=True):
        first_pass = inner.consumed(inner.size).tolist()
        for each, read in zip(_draws(inner), first_pass, strict=True):
            new, most = each.bounds
            if count >= inner.size:
                new = _new_of(each, read, shuffled=dataset.shuffle)
            elif not count or not _as_stored(inner):
                new = 0
            elif dataset.sampling_method == "fixed":
                new = most = count
            else:  # others in every epoch, as long as there are enough
                new = inner.size // count * count
            found.append((new - early, most))
    return found


def _as_stored(dataset: IndexedDataset[Any]) -> bool:
    """Whether all epochs are alike: the samples of one source as they lie, each once."""
    if isinstance(dataset, Source):
        return True
    as_below = one_each(dataset) and dataset.taken(0) is not None
    whole = as_below and dataset.size == dataset.sources[0].count
    return whole and _as_stored(dataset._children[0])


def _of_stages(dataset: StagedDataset[Any]) -> list[Bounds]:
    """A source is read on and on in one order, or at some stage anew."""
    by_source: list[list[tuple[int, _Draws]]] = [[] for _ in dataset.sources]
    for stage, each in enumerate(dataset._children):
        for row, draws in zip(dataset.numbers_of(stage).tolist(), _draws(each), strict=True):
            by_source[row].append((stage, draws))
    found = []
    for row, parts in enumerate(by_source):
        stage, (_, (new, most), _) = parts[0]
        orders = {digest(each.order.describe()) for _, each in parts}
        if len(dict(parts)) < len(parts):  # in two places of one stage
            new, most = 0, dataset.sources[row].count
        elif len(parts) > 1 and not (dataset.carry_over and len(orders) == 1):
            before = int(dataset.consumed(dataset.plan.first_items[stage + 1])[row])
            new, most = min(new, before), dataset.sources[row].count
        found.append((new, most))
    return found
